"""Traces of torch's profiler: arrivals are found whatever the ranks' clocks were."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latecomer.runtime.whatif.inputs import read_recorded
from latecomer.runtime.whatif.kineto import read_trace, read_traces, recording_of
from latecomer.runtime.whatif.operations import ALL_REDUCE
from latecomer.verify.errors import ArgumentError, FormatError
from tests.runtime.whatif.traces import job, trace, write


@pytest.mark.parametrize("library", ["nccl", "gloo"])
@pytest.mark.parametrize("ranks_told", [True, False])
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), ranks=st.integers(2, 9))
def test_arrivals_are_those_of_the_job(tmp_path_factory, library, ranks_told, seed, ranks):
    recorded = job(seed, ranks)
    dice = random.Random(seed)
    ahead_s = [dice.uniform(-3.0, 3.0) for _ in range(ranks)]
    traces = [
        trace(recorded, rank, clock_s=ahead_s[rank], library=library, ranks_told=ranks_told)
        for rank in range(ranks)
    ]
    folder = tmp_path_factory.mktemp("traces")
    recording = read_recorded(write(folder, traces, packed=bool(seed % 2))).collectives

    assert recording.steps == len(recorded.arrivals_s) == len(recording.operations)
    assert recording.step_s == pytest.approx(recorded.step_s)
    # Each pair of clocks is known as well as the shortest collective in which one of them is last.
    uncertainty_s = 1e-3 * float(recording.clocks.split("within ")[1].removesuffix(" ms"))
    for operation, arrivals_s in zip(recording.operations, recorded.arrivals_s, strict=True):
        true_s = [arrived_s - arrivals_s[0] for arrived_s in arrivals_s]
        found_s = [arrived_s - operation.arrivals_s[0] for arrived_s in operation.arrivals_s]
        assert found_s == pytest.approx(true_s, abs=1.1 * uncertainty_s + 1e-6)
        assert operation.kind == ALL_REDUCE
        assert operation.nbytes == (2_000_000 if library == "nccl" else 0)


def test_clocks_are_known_as_well_as_the_last_ranks_take(tmp_path):
    recorded = job(seed=3, ranks=2, steps=40)  # each rank is last at some time
    traces = [trace(recorded, rank, clock_s=0.7 * rank) for rank in range(2)]
    recording = recording_of(read_traces(write(tmp_path, traces)))
    assert recording.clocks == "differed by up to 700 ms, aligned within 3 ms"


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_ranks_of_a_host_have_one_clock(tmp_path_factory, seed):
    """So the arrivals of ranks of which none is ever last are known, too."""
    recorded = job(seed, ranks=6)
    for arrivals_s in recorded.arrivals_s:
        arrivals_s[5] = 0.3
    dice = random.Random(seed)
    ahead_s = [dice.uniform(-1, 1)] * 3 + [dice.uniform(-1, 1)] * 3
    traces = [
        trace(recorded, rank, clock_s=ahead_s[rank], host=f"node{rank // 3}") for rank in range(6)
    ]
    recording = recording_of(read_traces(write(tmp_path_factory.mktemp("traces"), traces)))
    for operation, arrivals_s in zip(recording.operations, recorded.arrivals_s, strict=True):
        for host in (slice(0, 3), slice(3, 6)):
            first_s, *others_s = operation.arrivals_s[host]
            true_first_s, *true_others_s = arrivals_s[host]
            found_s = [other_s - first_s for other_s in others_s]
            true_s = [other_s - true_first_s for other_s in true_others_s]
            assert found_s == pytest.approx(true_s, abs=1e-6)

    alone = [trace(recorded, rank, host="node0") for rank in range(6)]
    assert recording_of(read_traces(write(tmp_path_factory.mktemp("traces"), alone))).clocks == (
        "one host's"
    )


def test_a_directory_is_as_good_as_its_files(tmp_path):
    recorded = job(seed=1, ranks=3)
    write(tmp_path, [trace(recorded, rank) for rank in range(3)])
    (tmp_path / "notes.txt").write_text("of a run\n")
    assert len(read_recorded([tmp_path]).collectives.operations) == 5


def test_operations_without_a_group_have_to_be_the_same_on_all_ranks(tmp_path):
    recorded = job(seed=1, ranks=3)
    traces = [trace(recorded, rank, library="gloo") for rank in range(3)]
    del traces[1]["traceEvents"][0]
    with pytest.raises(ArgumentError, match="must be the same on all ranks; they have 4, 5"):
        recording_of(read_traces(write(tmp_path, traces)))


def test_what_cannot_be_matched_is_refused(tmp_path):
    recorded = job(seed=1, ranks=3)
    paths = write(tmp_path, [trace(recorded, rank) for rank in range(3)])
    with pytest.raises(ArgumentError, match="must be the traces of two ranks or more"):
        read_traces(paths[:1])
    with pytest.raises(ArgumentError, match="no collective that all ranks of a group"):
        recording_of(read_traces(paths[:2]))  # the group has three
    with pytest.raises(FormatError, match="is a second trace of rank 0"):
        read_traces([paths[0], paths[0]])


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is no trace of torch's profiler"),
        (b'{"traceEvents": 3}', "is no trace of torch's profiler"),
        (b'{"traceEvents": []}', "tells no rank"),
        (b"\x1f\x8b\x08 cut", "cannot be read"),
        (b'{"traceEvents": [', "is no trace of torch's profiler"),
    ],
)
def test_what_is_no_trace_gets_one_line(data, message, tmp_path):
    path = tmp_path / "trace.json"
    path.write_bytes(data)
    with pytest.raises(FormatError, match=message) as refused:
        read_trace(path)
    assert "\n" not in str(refused.value)


def test_events_of_other_kinds_are_passed_over(tmp_path):
    recorded = job(seed=2, ranks=2)
    content = trace(recorded, 0)
    content["traceEvents"] += [
        {"ph": "M", "name": "process_name", "args": {"name": "python"}},
        {"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1, "dur": 2, "args": {"stream": 7}},
        {"ph": "f", "id": 3, "name": "ac2g", "cat": "ac2g", "ts": 5},
        {"ph": "X", "cat": "Trace", "name": 12, "ts": "7", "dur": 1},
    ]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps(content))
    assert len(read_trace(path).spans) == 5
