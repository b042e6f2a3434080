# Everything one does with the project; `make demo` and `make test` need only Python >= 3.11, pip, make.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready
NEW := .venv-torch-new
FRAMEWORKS := .venv-frameworks
FRAMEWORKS_PINS := -c constraints.txt -c tests/frameworks/constraints.txt
# A run of the tests starts hundreds of processes: each would compile all modules again without it.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo demo-bits demo-elastic test test-busy test-torch-new test-long test-frameworks test-frameworks-long test-torchft-nightly test-gpu-logic test-hunt hunt-gpu test-differential test-docs test-viewer test-lab test-wheel fuzz simulate test-chaos hunt mutation lint bench bench-lab bench-auto bench-pipeline bench-optireduce docs proofs clean

help:            ## this list
	@grep -hE '^[a-z-]+: .*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/'

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python >= 3.11 is needed")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install -q -c constraints.txt setuptools torch
	$(BIN)/pip install -q -c constraints.txt --no-build-isolation -e '.[demo,test,lint]'
	$(BIN)/python -m latecomer.runtime.optireduce.udp.compiled  # kept for all later runs
	touch $(READY)

# DeepSpeed is built without its extensions, which this needs no compiler for. Of torchtitan the parts
# are used that need no data sets and no logs, which it requires, too.
$(FRAMEWORKS)/ready: pyproject.toml constraints.txt tests/frameworks/constraints.txt
	test -x $(FRAMEWORKS)/bin/python || $(PYTHON) -m venv $(FRAMEWORKS)
	$(FRAMEWORKS)/bin/pip install -q $(FRAMEWORKS_PINS) setuptools torch
	$(FRAMEWORKS)/bin/pip install -q $(FRAMEWORKS_PINS) --no-build-isolation -e '.[test]' \
		accelerate expecttest lightning transformers
	DS_BUILD_OPS=0 DS_ACCELERATOR=cpu $(FRAMEWORKS)/bin/pip install -q $(FRAMEWORKS_PINS) \
		--no-build-isolation deepspeed
	$(FRAMEWORKS)/bin/pip install -q $(FRAMEWORKS_PINS) --no-deps \
		docstring_parser spmd_types torchtitan typeguard tyro
	touch $@

demo: $(READY)   ## synthesize, prove and train with one late rank, beside plain DDP (about a minute)
	$(BIN)/python examples/demo.py

demo-elastic: $(READY)  ## a replica dies and comes back: the same parameters, bit for bit (half a minute)
	$(BIN)/python examples/elastic.py

demo-bits: $(READY)  ## one hash of all parameters, whoever is late, in every mode, on 4 and 8 ranks (QUICK=--quick; some minutes)
	$(BIN)/python examples/same_bits.py $(QUICK) --picture out/demo-bits/losses.svg

test: $(READY)   ## the tests (6 minutes on 2 idle cores)
	$(BIN)/python -m pytest -n 5 --dist worksteal

test-busy: $(READY)  ## all tests, RUNS=5 times, beside two busy loops: none may depend on the machine's mood
	for i in 1 2; do $(BIN)/python -c 'while True: pass' & loops="$$loops $$!"; done; \
	trap "kill $$loops" EXIT; trap "exit 130" INT TERM; \
	for i in $$(seq $(or $(RUNS),5)); do $(BIN)/python -m pytest -n 3 --dist worksteal || exit 1; done

$(NEW)/ready: pyproject.toml constraints.txt constraints-torch-new.txt
	test -x $(NEW)/bin/python || $(PYTHON) -m venv $(NEW)
	{ grep -Ev '^(torch|triton)==' constraints.txt; cat constraints-torch-new.txt; } > $(NEW)/constraints.txt
	$(NEW)/bin/pip install -q -c $(NEW)/constraints.txt setuptools torch
	$(NEW)/bin/pip install -q -c $(NEW)/constraints.txt --no-build-isolation -e '.[test,demo]'
	touch $@

test-torch-new: $(NEW)/ready  ## what meets torch, with the newest one that is tested (5 minutes, 6 GB)
	$(NEW)/bin/python -m pytest -n 3 --dist worksteal tests/runtime tests/docs/test_environment.py tests/synth/pipeline/test_stock_torch.py \
	    tests/verify/pipeline/test_pipeline_torch_csv.py tests/verify/pipeline/test_pipeline_measures.py

test-long: $(READY)  ## long fuzzing (about 10 minutes)
	$(BIN)/python -m pytest -n 3 --dist worksteal -m long

test-frameworks: $(FRAMEWORKS)/ready  ## programs of others on the backend (under 12 minutes)
	$(FRAMEWORKS)/bin/python -m pytest -v tests/frameworks

test-frameworks-long: $(FRAMEWORKS)/ready  ## 10,000 iterations of Megatron's patterns, 5,000 calls in random order (about 25 minutes)
	$(FRAMEWORKS)/bin/python -m pytest -v tests/frameworks -m long

test-torchft-nightly: $(READY)  ## what meets torchft, with its newest nightly (three minutes)
	$(BIN)/pip install -q --no-deps --upgrade --target .torchft-nightly torchft-nightly
	PYTHONPATH=.torchft-nightly $(BIN)/python -m pytest -n 2 --dist worksteal tests/runtime/torchft

test-gpu-logic: $(READY)  ## kernels in triton's interpreter, and what is built for GPUs in one of ours (some minutes)
	$(BIN)/python -m pytest -n 3 --dist worksteal -m gpu_logic

test-hunt: $(READY)  ## 5,000 random files and programs of each kind on which verify could be wrong (a minute)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m hunt tests/hunt

test-differential: $(READY)  ## verify against the extracted checker, all four families (needs make proofs; some minutes)
	$(BIN)/python -m tests.proofs.differential --count 100000
	for family in pipeline blocks device; do \
	    $(BIN)/python -m tests.proofs.differential --count 20000 --family $$family || exit 1; done

test-docs: $(READY)  ## every command that a page shows, but for those that need a GPU, root or Coq (some minutes)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m docs_commands tests/docs tests/test_pages.py

test-viewer: $(READY)  ## the pages in a real browser (chromium; two minutes)
	$(BIN)/pip install -q -c constraints.txt --no-build-isolation -e '.[viewer]'
	LATECOMER_BROWSER=required $(BIN)/python -m pytest -m 'not long' tests/verify/viewer tests/runtime/telemetry_page

test-lab: $(READY)  ## jobs on hosts of an emulated network, firewalls and clusters' manifests (Linux; two minutes)
	$(BIN)/python -m pytest -v -m lab tests/bench

test-wheel: $(READY)  ## wheel and sdist: built, checked, installed into an empty environment (two minutes)
	$(BIN)/pip install -q -c constraints.txt --no-build-isolation -e '.[wheel]'
	$(BIN)/python -m pytest -v -m wheel tests/wheel

fuzz: $(READY)   ## datagrams of an attacker, by atheris (10 minutes on each data path; SECONDS=...)
	$(BIN)/pip install -q -c constraints.txt --no-build-isolation -e '.[fuzz]'
	$(BIN)/python -m tests.fuzz.datagrams --runs -1 --seconds $(or $(SECONDS),600)
	$(BIN)/python -m tests.fuzz.datagrams --compiled --runs -1 --seconds $(or $(SECONDS),600)

simulate: $(READY)  ## the runtime on simulated hosts, with faults, by seeds (SEEDS=1000, FIRST=0, KIND=elastic; 100,000 take an hour on 2 idle cores)
	$(BIN)/python -m tests.simulation --seeds $(or $(SEEDS),1000) --first $(or $(FIRST),0) \
	    $(if $(SECONDS),--seconds $(SECONDS)) $(if $(KIND),--kind $(KIND))

test-chaos: $(READY)  ## replicas that are killed, stopped and come back, at random, as processes (SECONDS=1800, SEED=...)
	$(BIN)/python -m bench.elastic chaos --seconds $(or $(SECONDS),1800) $(if $(SEED),--seed $(SEED))

hunt: $(READY)   ## random MSCCL files, plans and programs on which verify could be wrong (COUNT=200000 of each; an hour)
	printf 'xml\nplan\nmodel\n' | xargs -P 2 -I KIND \
	    $(BIN)/python -m tests.hunt --kind KIND --count $(or $(COUNT),200000) --seed $(or $(SEED),1000000)

hunt-gpu: $(READY)  ## the kernel's PTX in our interpreter: 10,000 seeds, all mutants (SEEDS=10000, FIRST=0; under an hour)
	$(BIN)/python -m tests.runtime.device.ptx --seeds $(or $(SEEDS),10000) --first $(or $(FIRST),0)
	$(BIN)/python -m tests.runtime.device.ptx --mutants

mutation: $(READY)  ## mutants of verify/core that the tests should kill (an hour; EACH=20 of a module, SEED=1)
	$(BIN)/pip install -q -c constraints.txt --no-build-isolation -e '.[mutation]'
	$(BIN)/python -m tests.mutation --each $(or $(EACH),20) --seed $(or $(SEED),1)

lint: $(READY)   ## ruff, mypy, and who may import whom
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m tests.ladder

bench: $(READY)  ## executor, checker and cold start
	$(BIN)/python -m bench

bench-lab: $(READY)  ## completion and modes on an emulated network (under 25 minutes)
	$(BIN)/python -m bench.lab calibrate
	$(BIN)/python -m bench.lab_completion
	$(BIN)/python -m bench.auto

bench-auto: $(READY)  ## collectives and steps of ranks that come together, by Gloo and without any option (half an hour)
	$(BIN)/python -m bench.on_time
	$(BIN)/python -m bench.on_time --lab 200 --ranks 8 --sizes 4KiB 64KiB 1MiB 4MiB
	$(BIN)/python -m bench.on_time --lab 200 --ranks 8 --ranks-per-host 4 --sizes 4KiB 64KiB 1MiB 4MiB
	$(BIN)/python -m bench.on_time --ranks 3 4 8 --sizes 4KiB 64KiB 1MiB 16MiB --collectives reduce_scatter all_gather
	$(BIN)/python -m bench.on_time --lab 200 --ranks 8 --sizes 4KiB 64KiB 1MiB 4MiB --collectives reduce_scatter all_gather
	$(BIN)/python -m bench.behind
	$(BIN)/python -m bench.behind --lab 200 --large 4MiB --gather 1MiB
	for options in "--model cnn" "--model transformer" "--shard --model cnn" "--shard --model transformer"; do \
		$(BIN)/torchrun --standalone --nproc-per-node 4 examples/on_time.py $$options || exit 1; done

bench-pipeline: $(READY)  ## planner and runtime of pipelines (under 20 minutes)
	$(BIN)/python -m bench.pipeline_planner quick
	$(BIN)/python -m bench.pipeline_planner free
	$(BIN)/python -m bench.pipeline_planner capped --sizes 4x12 6x18
	$(BIN)/python -m bench.pipeline_planner capped --sizes 8x24 8x32 --families uneven
	$(BIN)/python -m bench.pipeline_planner links --sizes 4x12 8x24 --families uneven --time-limit 20
	$(BIN)/python -m bench.pipeline_runtime

bench-optireduce: $(READY)  ## OptiReduce beside Gloo and TCP (under 25 minutes; SHORT=--short)
	$(BIN)/python -m bench.optireduce $(SHORT)

docs: $(READY)   ## the documentation as a site in out/site, which loads nothing from elsewhere (seconds)
	$(BIN)/pip install -q -c constraints.txt --no-build-isolation -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

proofs:          ## the theories, and the checker extracted from them (needs Coq; says how to get it)
	$(MAKE) --no-print-directory -C proofs

clean:           ## remove what the targets made
	rm -rf .venv $(NEW) $(FRAMEWORKS) .torchft-nightly out build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
