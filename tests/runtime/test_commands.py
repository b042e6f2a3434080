"""What a user imports and starts: names, the examples, two jobs at the same moment."""

from __future__ import annotations

import re
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from latecomer import runtime
from tests.runtime.spawning import execute, python

EXAMPLES = Path(__file__).parents[2] / "examples"
TORCHRUN = ("torchrun", "--standalone", "--nproc-per-node", "3")
SELFTEST = (sys.executable, "-m", "latecomer", "selftest", "--ranks")


def _printed(*command, cwd, **variables):
    """What a command prints that runs in this folder and ends well."""
    completed = execute(*command, cwd=cwd, **variables)
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return completed.stdout


@pytest.mark.long
def test_hybrid_sharding_and_a_profile(tmp_path):
    printed = _printed(*TORCHRUN, "-m", "latecomer", "profile", cwd=tmp_path)
    assert "written: profile.json (3 ranks)" in printed

    variables = {"LATECOMER_MODE": "auto", "LATECOMER_PROFILE": "profile.json"}
    printed = _printed(*TORCHRUN, EXAMPLES / "train_hsdp.py", cwd=tmp_path, **variables)
    assert "'mode auto': 20" in printed


@pytest.mark.long
def test_a_schedule_behind_the_hook(tmp_path):
    _printed("synth", "generate", "--n", "3", "-o", "schedule.json", cwd=tmp_path)
    printed = _printed(*TORCHRUN, EXAMPLES / "train_hook.py", cwd=tmp_path)
    assert "all-reduces by schedule.json" in printed


LONG = [pytest.param(name, marks=pytest.mark.long) for name in ("auto", "schedule")]
TWICE = {
    "auto": (
        (*TORCHRUN, EXAMPLES / "train_auto.py"),
        ["^loss", "^rank +wait +last", r"\d operations ran"],
    ),
    "optireduce": (
        (*SELFTEST, "2", "--algorithm", "optireduce"),
        ["datagrams lost", "selftest of optireduce: passed$"],
    ),
    "schedule": (
        (*SELFTEST, "3", "--schedule", "s.json"),
        ["119 cases"] * 6 + ["^selftest on cpu: passed$"],  # two ways in, three late ranks
    ),
}


@pytest.mark.slow_first
@pytest.mark.parametrize("name", ["optireduce", *LONG])
def test_two_jobs_at_the_same_moment(name, tmp_path):
    """On one host and in one folder they do not meet."""
    command, patterns = TWICE[name]
    _printed("synth", "generate", "--n", "3", "-o", "s.json", cwd=tmp_path)
    before = set(tmp_path.iterdir())

    with ThreadPoolExecutor() as pool:
        first, second = pool.map(lambda _: _printed(*command, cwd=tmp_path), range(2))

    for printed in (first, second):
        assert re.search(r"(.|\n)*?".join(patterns), printed, re.MULTILINE), printed
    losses = re.findall(r"^loss (\S+)", first, re.MULTILINE)
    assert losses == re.findall(r"^loss (\S+)", second, re.MULTILINE)  # the same job twice
    assert set(tmp_path.iterdir()) == before  # nothing that they could have shared is left


EXPORTED = """
AllReduceDispatcher BACKEND Executor Observer Operation Verified Watch configure ddp load
serve_dumps watch
"""
IMPORT = """
import sys, latecomer.runtime
from latecomer.runtime import torch_versions
solvers = {'ortools', 'z3', 'latecomer.synth', 'matplotlib', 'sklearn'}
loaded = {'torch.distributed.pipelining', *solvers} & set(sys.modules)
assert not loaded, loaded
assert torch_versions.PipelineStageBase.__name__ == '_PipelineStageBase'
"""


def test_exported_names():
    assert sorted(runtime.__all__) == EXPORTED.split()
    assert all(hasattr(runtime, name) for name in runtime.__all__)


LEAN = """
import sys
sys.orig_argv = {arguments}
from latecomer import runtime
assert ("torch" in sys.modules) is not {is_command}, "torch"
from latecomer.runtime import ddp, watch
assert callable(ddp.attach) and callable(watch)
assert all(hasattr(runtime, name) for name in runtime.__all__)
assert not hasattr(runtime, "nothing")
"""


COMMANDS = [
    ["python", "-X", "importtime", "-u", "-m", "latecomer", "watch"],
    ["python", "-u", "/usr/bin/latecomer", "watch"],
]
PROGRAMS = [
    ["python", "-m", "pytest", "-m", "latecomer"],
    ["python", "train.py", "-m", "latecomer"],
    ["python", "-c", "import latecomer", "-m", "latecomer"],
]


@pytest.mark.parametrize(("arguments", "is_command"), [(COMMANDS[0], True), (PROGRAMS[2], False)])
def test_all_of_it_comes_with_the_import_but_in_a_command(arguments, is_command):
    """A program that trains has the backend from then on; in a command each name comes if asked."""
    result = python("-c", LEAN.format(arguments=arguments, is_command=is_command))
    assert result.returncode == 0, result.stderr


def test_commands_and_programs_are_told_apart(monkeypatch):
    for arguments in COMMANDS + PROGRAMS:
        monkeypatch.setattr("sys.orig_argv", arguments)
        assert runtime._is_command() is (arguments in COMMANDS)


def test_the_command_that_watches_loads_no_torch():
    result = python("-X", "importtime", "-m", "latecomer", "watch", "--help")
    assert result.returncode == 0, result.stderr
    loaded = {line.rpartition("|")[2].strip() for line in result.stderr.splitlines()}
    assert "latecomer.runtime.telemetry.page.command" in loaded
    needless = {"torch", "prometheus_client", "latecomer.synth", "latecomer.verify.families"}
    assert not needless & loaded


def test_an_import_brings_no_solver_and_pipelining_comes_with_its_first_use():
    result = python("-c", IMPORT)
    assert result.returncode == 0, result.stderr
