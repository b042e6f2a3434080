"""Hashes of a run, and where two runs part: ``LATECOMER_HASHES`` and ``latecomer compare-bits``."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import random
import shutil

import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.parallel import DistributedDataParallel

from latecomer.runtime import ddp
from latecomer.runtime.samebits.bits_log import HASH_BYTES
from latecomer.runtime.samebits.comparison import compare
from latecomer.runtime.samebits.hash_files import (
    DECODER,
    End,
    FileName,
    Gradient,
    Head,
    Input,
    Line,
    encode,
)
from latecomer.runtime.samebits.hashed_runs import read_run
from latecomer.verify.errors import ArgumentError, FormatError
from tests.runtime.spawning import on_ranks, python, spawn, values

STEPS = 4
MICROBATCHES = 4


def compare_bits(*arguments):
    return python("-m", "latecomer", "compare-bits", *map(str, arguments))


# Real runs.


def _train(rank, size, store, directory, shares, mistake="", bits="same"):
    """A run of some steps; ``shares``: by rank, its microbatches."""
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    os.environ["LATECOMER_HASHES"] = str(directory)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    net = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))
    model = DistributedDataParallel(net)
    contributions = MICROBATCHES if bits == "same" else None
    attachment = ddp.attach(model, mode="native", bits=bits, contributions=contributions)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(STEPS):
        for number in shares[rank]:
            generator = torch.Generator().manual_seed(100 * step + number)
            x = torch.randn(3, 6, generator=generator)
            y = torch.randn(3, 2, generator=generator)
            if (step, number, mistake) == (2, 3, "data"):
                x[0, 0] += 0.5
            attachment.note_input(x, y, microbatch=number)
            if (step, number, mistake) == (1, 2, "dropout"):
                x = x * 1.5
            is_last = number == shares[rank][-1]
            with contextlib.nullcontext() if is_last else model.no_sync():
                (model(x) - y).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    attachment.close()


def _train_all(rank, size, store, runs):
    for arguments in runs:
        _train(rank, size, store, *arguments)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Directories of hashes, of runs with the same bits and of some with a mistake."""
    folder = tmp_path_factory.mktemp("runs")
    four = [[0], [1], [2], [3]]
    two = [[3, 1], [0, 2]]
    on_four = [(folder / "four", four), (folder / "dropout", four, "dropout")]
    on_two = [
        (folder / "two", two),
        (folder / "data", two, "data"),
        (folder / "any", two, "", "any"),
    ]
    values(spawn(_train_all, 4, on_four))
    values(spawn(_train_all, 2, on_two))
    return folder


def test_runs_with_other_ranks_are_the_same(runs):
    said = compare_bits(runs / "four", runs / "two")
    assert said.returncode == 0, said.stdout + said.stderr
    assert f"{runs / 'four'}: 4 rank(s), bits same, 4 contributions, 4 step(s)" in said.stdout
    assert "same: 4 of 4 steps, 16 of 16 inputs and 16 of 16 gradients are the same" in said.stdout


def test_other_inputs_are_found(runs):
    said = compare_bits(runs / "four", runs / "data")
    assert said.returncode == 1
    assert "differ: first in step 2, in inputs of microbatch(es) 3\n" in said.stdout
    assert "in that step 3 of 4 inputs and 0 of 4 gradients are the same" in said.stdout
    assert "in all: 2 of 4 steps, 15 of 16 inputs and 8 of 16 gradients are" in said.stdout
    assert "Traceback" not in said.stderr


def test_another_computation_is_found(runs):
    said = compare_bits(runs / "dropout", runs / "two")
    assert said.returncode == 1
    assert "differ: first in step 1, in the gradient of 2.bias\n" in said.stdout
    assert "in that step 4 of 4 inputs and 0 of 4 gradients are the same" in said.stdout


def test_what_runs_say_of_themselves_is_told_as_a_cause(runs):
    said = compare_bits(runs / "four", runs / "any")
    assert said.returncode == 1
    assert f"{runs / 'any'} has bits any" in said.stdout
    assert "threads" not in said.stdout
    assert f"{runs / 'any'}: 2 rank(s), bits any, 4 step(s)" in said.stdout


def test_for_machines(runs):
    said = json.loads(compare_bits(runs / "four", runs / "data", "--json").stdout)
    assert said["same"] is False
    assert said["disagreements"] == []
    assert said["difference"]["kind"] == "inputs"
    assert said["difference"]["steps"] == [2, 2]
    assert said["difference"]["microbatches"] == [3]
    assert said["gradients"] == {"compared": 16, "same": 8}
    assert said["runs"][1]["models"] == [
        {"ranks": [0, 1], "bits": "same", "contributions": 4, "steps": 4}
    ]


def _hash(tensor):
    return hashlib.blake2b(tensor.numpy().tobytes(), digest_size=HASH_BYTES).hexdigest()


def _lines_of(path):
    return [DECODER.decode(line) for line in path.read_bytes().splitlines()]


def _noted(path):
    """By step and parameter, the hash in a file."""
    gradients = [line.gradient for line in _lines_of(path) if line.gradient is not None]
    return {(each.step, each.parameter): each.hash for each in gradients}


@pytest.mark.parametrize("way", ["native", "off", "schedule off", "optireduce", "same"])
@on_ranks(2)
def test_what_is_noted_is_what_came_out(rank, size, store, way, tmp_path):
    from latecomer import synth

    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    os.environ["LATECOMER_HASHES"] = str(tmp_path)
    net = torch.nn.Sequential(torch.nn.Linear(300, 100), torch.nn.Linear(100, 30))
    model = DistributedDataParallel(net, bucket_cap_mb=0.01, gradient_as_bucket_view=True)
    if way == "optireduce":
        attachment = ddp.attach(model, algorithm="optireduce")
    elif way == "schedule off":
        attachment = ddp.attach(model, synth.generate(2))
        attachment.mode = "off"
    elif way == "same":
        attachment = ddp.attach(model, mode="native", bits="same")
    else:
        attachment = ddp.attach(model, mode=way)
    expected = {}
    for step in range(3):
        attachment.note_input(torch.zeros(0), torch.tensor(7))
        model(torch.full((2, 300), rank + step + 1.0)).sum().backward()
        for name, parameter in model.module.named_parameters():
            expected[step, name] = _hash(parameter.grad)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        model.zero_grad(set_to_none=False)
    attachment.close()
    model(torch.ones(2, 300)).sum().backward()  # natively, and it is nobody's business

    path = tmp_path / f"hashes-rank{rank}-0.jsonl"
    assert _noted(path) == expected
    lines = _lines_of(path)
    assert lines[0].head.ranks == (0, 1)
    assert [line.end.step for line in lines if line.end is not None] == [0, 1, 2]
    assert [line.input.step for line in lines if line.input is not None] == [0, 1, 2]


@on_ranks(2)
def test_without_the_variable_nothing_is_noted(rank, size, store, tmp_path):
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    os.environ.pop("LATECOMER_HASHES", None)
    os.chdir(tmp_path)
    model = DistributedDataParallel(torch.nn.Linear(2, 2))
    attachment = ddp.attach(model, mode="native")
    assert attachment.bits_log is None
    attachment.note_input(torch.ones(2), microbatch=0)
    with pytest.raises(ArgumentError, match="tensors = 'int': must be tensors"):
        attachment.note_input(3)
    model(torch.ones(1, 2)).sum().backward()
    attachment.close()
    assert list(tmp_path.iterdir()) == []


@on_ranks(1)
def test_an_earlier_run_is_kept_and_each_attachment_has_its_file(rank, size, store, tmp_path):
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    directory = tmp_path / "made"
    os.environ["LATECOMER_HASHES"] = str(directory)
    model = DistributedDataParallel(torch.nn.Linear(2, 2))
    for _ in range(2):
        attachment = ddp.attach(model, mode="native")
        model(torch.ones(1, 2)).sum().backward()
        attachment.close()
    assert len(read_run(directory).models) == 2

    (directory / "hashes-rank0-2.jsonl").touch()
    with pytest.raises(
        ArgumentError, match=r"has hashes-rank0-2\.jsonl already, of an earlier run"
    ):
        ddp.attach(model, mode="native")
    os.environ["LATECOMER_HASHES"] = str(directory / "hashes-rank0-0.jsonl")
    with pytest.raises(ArgumentError, match="must be a directory"):
        ddp.attach(model, mode="native")


@on_ranks(1)
def test_a_file_that_cannot_be_written_ends_no_training(rank, size, store, tmp_path):
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    os.environ["LATECOMER_HASHES"] = str(tmp_path / "gone")
    model = DistributedDataParallel(torch.nn.Linear(2, 2))
    attachment = ddp.attach(model, mode="native")
    shutil.rmtree(tmp_path / "gone")

    told = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())
    logging.getLogger("latecomer").addHandler(handler)
    for _ in range(3):
        model.zero_grad()
        model(torch.ones(1, 2)).sum().backward()
        assert model.module.weight.grad[0, 0] == 1.0
    attachment.close()
    assert len([text for text in told if "nothing more is written" in text]) == 1, told


@on_ranks(2)
def test_what_fails_says_why_and_leaves_no_step(rank, size, store, tmp_path):
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    os.environ["LATECOMER_HASHES"] = str(tmp_path)
    model = DistributedDataParallel(torch.nn.Linear(2, 2))
    attachment = ddp.attach(model, mode="native", bits="same", contributions=3)
    with pytest.raises(RuntimeError, match="2 contributions were summed, and 3 were agreed on"):
        model(torch.ones(1, 2)).sum().backward()
    attachment.close()
    assert list(tmp_path.iterdir()) == []


# Files.

PARAMETERS = ("c", "b", "a")
CONDITIONS = {"threads": "1"}


def write_run(directory, shares, steps=3, changed=None, bits="same", **of_run):
    """Write what ranks with these microbatches would; ``changed``: a hash by its place."""
    changed = changed or {}
    directory.mkdir()
    ranks = tuple(range(len(shares)))
    for rank, microbatches in enumerate(shares):
        head = Head(rank, ranks, bits, MICROBATCHES, of_run.get("conditions", CONDITIONS))
        lines = [Line(head=head)]
        for step in range(steps):
            begin = step + of_run.get("resumed_at", 0)
            for number in microbatches:
                text = changed.get((step, number), f"input {begin} {number}")
                shown = number if of_run.get("has_numbers", True) else None
                if of_run.get("has_inputs", True):
                    lines.append(Line(input=Input(step, text, shown)))
            for parameter in PARAMETERS:
                text = f"gradient {begin} {parameter}"
                text = changed.get((step, parameter), text)
                text = changed.get((step, parameter, rank), text)
                if text:
                    lines.append(Line(gradient=Gradient(step, parameter, text)))
            lines.append(Line(end=End(step)))
        FileName(rank, 0).within(directory).write_bytes(b"".join(map(encode, lines)))
    return directory


FOUR = [[0], [1], [2], [3]]
TWO = [[1, 3], [2, 0]]


def test_ranks_of_one_run_that_disagree_are_said_first(tmp_path):
    changed = {(1, "b", 2): "other", (2, "c", 0): "later"}
    first = write_run(tmp_path / "first", FOUR, changed=changed)
    second = write_run(tmp_path / "second", TWO, changed={(0, 1): "another input"})
    said = compare_bits(first, second)
    assert said.returncode == 1
    lines = said.stdout.splitlines()
    assert lines[2] == f"disagree: ranks of {first}, first in step 1"
    assert lines[3:6] == [
        "  gradient of b:",
        "    gradient 1 b on ranks 0, 1, 3",
        "    other on rank 2",
    ]
    assert lines[6] == "differ: first in step 0, in inputs of microbatch(es) 1"


def test_a_gradient_that_some_ranks_lack_is_a_disagreement(tmp_path):
    first = write_run(tmp_path / "first", FOUR, changed={(1, "b", 2): ""})
    second = write_run(tmp_path / "second", TWO)
    (found,) = compare(read_run(first), read_run(second)).disagreements
    assert found.ranks == {"gradient 1 b": [0, 1, 3], "nothing": [2]}


def test_causes_are_told(tmp_path):
    changed = {(1, "b"): "other"}
    first = write_run(tmp_path / "first", FOUR)
    more = {"threads": "2", "torch": "9"}
    second = write_run(tmp_path / "second", TWO, changed=changed, conditions=more)
    said = compare_bits(first, second).stdout
    assert "differ: first in step 1, in the gradient of b\n" in said
    assert f"  threads: 1 in {first}, 2 in {second}\n" in said
    assert "in that step 4 of 4 inputs and 2 of 3 gradients are the same" in said


def test_inputs_without_numbers_are_compared_without(tmp_path):
    first = write_run(tmp_path / "first", FOUR)
    second = write_run(tmp_path / "second", TWO, has_numbers=False)
    assert compare(read_run(first), read_run(second)).is_same
    changed = {(2, 3): "other"}
    third = write_run(tmp_path / "third", TWO, has_numbers=False, changed=changed)
    difference = compare(read_run(first), read_run(third)).difference
    assert difference.kind == "inputs"
    assert difference.microbatches == []
    assert difference.hashes == (["input 2 3"], ["other"])


def test_inputs_that_one_run_has_not_noted_are_not_compared(tmp_path):
    first = write_run(tmp_path / "first", FOUR)
    second = write_run(tmp_path / "second", TWO, has_inputs=False)
    said = compare_bits(first, second)
    assert said.returncode == 0
    assert "same: 3 of 3 steps, 9 of 9 gradients are the same" in said.stdout
    assert f"inputs are not compared: {second} noted none" in said.stdout


def test_a_run_that_went_on_from_a_checkpoint(tmp_path):
    whole = write_run(tmp_path / "whole", FOUR, steps=5)
    resumed = write_run(tmp_path / "resumed", TWO, steps=3, resumed_at=2)
    assert compare_bits(whole, resumed).returncode == 1
    said = compare_bits(whole, resumed, "--resumed-at", 2)
    assert said.returncode == 0
    assert "same: 3 of 3 steps" in said.stdout

    changed = {(1, "c"): "other"}
    wrong = write_run(tmp_path / "wrong", TWO, steps=9, resumed_at=2, changed=changed)
    said = compare_bits(whole, wrong, "--resumed-at", 2)
    assert f"differ: first in step 3 (1 of {wrong}), in the gradient of c" in said.stdout
    assert "in all: 2 of 3 steps" in said.stdout

    beyond = compare_bits(whole, resumed, "--resumed-at", 5)
    assert beyond.returncode == 2
    assert "--resumed-at = 5: must be a step of the first run, 0..4" in beyond.stderr


def test_a_line_that_was_cut_off_ends_the_run_before_its_step(tmp_path):
    first = write_run(tmp_path / "first", FOUR)
    second = write_run(tmp_path / "second", FOUR)
    path = second / "hashes-rank1-0.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    said = compare_bits(first, second)
    assert said.returncode == 0
    assert "2 of 2 steps" in said.stdout
    assert "rank 1 completed 2 steps, others up to 3" in said.stderr


def _broken(directory):
    """Ways in which files are unusable, and what is said then."""
    path = directory / "hashes-rank1-0.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    yield b"", "line 1: must say whose file it is"
    yield b"".join(lines[1:]), "line 1: must say whose file it is"
    yield b"".join([*lines[:3], b"{half\n", *lines[3:]]), "line 4: JSON is malformed"
    yield lines[0], "has no step that rank 1 completed"
    yield b"".join([lines[0], encode(Line(end=End(1)))]), "step 1 stands where 0 must be"
    other = (directory / "hashes-rank2-0.jsonl").read_bytes()
    yield other, "is of rank 2 by its first line"


def test_broken_files_are_refused(tmp_path):
    write_run(tmp_path / "run", FOUR)
    path = tmp_path / "run" / "hashes-rank1-0.jsonl"
    for content, problem in list(_broken(tmp_path / "run")):
        path.write_bytes(content)
        with pytest.raises((FormatError, ArgumentError), match=problem):
            read_run(tmp_path / "run")


def test_directories_that_are_no_run_are_refused(tmp_path):
    run = write_run(tmp_path / "run", FOUR)
    (tmp_path / "empty").mkdir()
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "rank0-000000.jsonl").write_text("{}\n")
    for path in ("empty", "foreign"):
        said = compare_bits(run, tmp_path / path)
        assert said.returncode == 2
        assert "has no file hashes-rank*.jsonl. Run the job with LATECOMER_HASHES" in said.stderr
    for path in ("absent", "run/hashes-rank0-0.jsonl"):
        said = compare_bits(tmp_path / path, run)
        assert said.returncode == 2
        assert "must be a directory of hashes" in said.stderr

    (run / "hashes-rank2-0.jsonl").unlink()
    said = compare_bits(run, run)
    assert said.returncode == 2
    assert "has no file of rank 2. Copy the files of all hosts" in said.stderr


def test_runs_of_other_models_are_refused(tmp_path):
    first = write_run(tmp_path / "first", FOUR)
    second = write_run(tmp_path / "second", FOUR)
    for path in second.iterdir():
        text = path.read_text()
        for parameter in PARAMETERS:
            text = text.replace(f'"parameter":"{parameter}"', f'"parameter":"x{parameter}"')
        path.write_text(text)
    with pytest.raises(ArgumentError, match="it is of another model"):
        compare(read_run(first), read_run(second))

    twice = shutil.copytree(first, tmp_path / "twice")
    for path in list(twice.iterdir()):
        shutil.copy(path, twice / path.name.replace("-0.jsonl", "-1.jsonl"))
    with pytest.raises(ArgumentError, match=r"has hashes of 2 model\(s\), not 1"):
        compare(read_run(first), read_run(twice))
    said = compare_bits(twice, twice)
    assert said.returncode == 0
    assert f"{twice}, model 1: 4 rank(s)" in said.stdout
    assert "6 of 6 steps" in said.stdout


def test_groups_of_some_ranks_are_models_of_their_own(tmp_path):
    directory = write_run(tmp_path / "run", [[0], [1]])
    for rank in (2, 3):
        source = directory / f"hashes-rank{rank - 2}-0.jsonl"
        text = source.read_text().replace(f'"rank":{rank - 2}', f'"rank":{rank}')
        text = text.replace('"ranks":[0,1]', '"ranks":[2,3]').replace("gradient 0", "other 0")
        (directory / f"hashes-rank{rank}-0.jsonl").write_text(text)
    run = read_run(directory)
    assert [model.ranks for model in run.models] == [(0, 1), (2, 3)]
    assert compare(run, run).is_same


@st.composite
def groupings(draw):
    """Microbatches on any number of ranks, in any order."""
    ranks = draw(st.integers(1, MICROBATCHES))
    dice = random.Random(draw(st.integers(0, 10**6)))
    numbers = list(range(MICROBATCHES))
    dice.shuffle(numbers)
    shares = [[number] for number in numbers[:ranks]]
    for number in numbers[ranks:]:
        dice.choice(shares).append(number)
    return shares


places = st.tuples(
    st.integers(0, 2), st.one_of(st.integers(0, MICROBATCHES - 1), st.sampled_from(PARAMETERS))
)


def _order(place):
    """Of a place: by step, inputs before gradients, these in their order."""
    step, what = place
    return (step, -1 if isinstance(what, int) else PARAMETERS.index(what))


@given(groupings(), groupings(), st.sets(places, max_size=4))
@settings(max_examples=60, deadline=None)
def test_the_first_difference_is_found_and_no_other(tmp_path_factory, first, second, changed):
    folder = tmp_path_factory.mktemp("random")
    runs = (
        read_run(write_run(folder / "first", first)),
        read_run(write_run(folder / "second", second, changed=dict.fromkeys(changed, "other"))),
    )
    comparison = compare(*runs)
    assert comparison.disagreements == []
    assert comparison.is_same == (not changed)
    if changed:
        step, what = min(changed, key=_order)
        difference = comparison.difference
        assert difference.steps == (step, step)
        is_input = isinstance(what, int)
        assert difference.kind == ("inputs" if is_input else "gradient")
        assert difference.parameter == ("" if is_input else what)
        assert not is_input or what in difference.microbatches
    steps = {step for step, _ in changed}
    inputs = [what for _, what in changed if isinstance(what, int)]
    assert comparison.steps.same == 3 - len(steps)
    assert comparison.inputs.same == 3 * MICROBATCHES - len(inputs)
    assert comparison.gradients.same == 3 * len(PARAMETERS) - len(changed) + len(inputs)


def test_the_command_needs_no_torch(tmp_path):
    run = str(write_run(tmp_path / "run", FOUR))
    said = python("-X", "importtime", "-m", "latecomer", "compare-bits", run, run)
    assert said.returncode == 0
    loaded = {line.rpartition("|")[2].strip() for line in said.stderr.splitlines()}
    assert "latecomer.runtime.samebits.comparison" in loaded
    assert "torch" not in loaded
