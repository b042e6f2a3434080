"""What we write for MSCCL does what the schedule does, in the semantics of MSCCL's executor.

``bench.corpus`` runs it: an executor that knows neither ``synth`` nor ``verify``. And ``verify``
proves it for every interleaving.
"""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.corpus.executor import Run
from bench.corpus.parse import File, parse
from latecomer.synth import standard
from latecomer.synth.export.ends import ends, with_chunks
from latecomer.synth.export.msccl_xml import encode
from latecomer.verify import Schedule, Verdict, check
from latecomer.verify.asynchronous.msccl import verify_xml
from latecomer.verify.errors import ArgumentError
from tests.synth.export.schedules import families, straggler


def exported(schedule: Schedule, folder: Path) -> File:
    path = folder / "exported.xml"
    path.write_bytes(encode(schedule))
    return parse(path)


def assert_right(file: File, seeds: int = 1) -> None:
    """Every run ends right, also with room for a single message and one chunk a message."""
    assert not file.refused
    for seed in range(seeds):
        run = Run(file, in_place=True, per_message=1, slots=1 + seed % 2, seed=seed)
        assert run.outcome().kind == "right"


@pytest.mark.parametrize("n", range(2, 17))
def test_straggler_is_right_in_msccl(n, tmp_path):
    assert_right(exported(straggler(n), tmp_path))
    report = verify_xml(encode(straggler(n)))
    assert report.verdict is Verdict.PROVED
    assert report.freedom.up_to is None
    assert report.slack == 1


@pytest.mark.long
@pytest.mark.parametrize("n", range(2, 17))
def test_every_family_is_right_in_msccl(n, tmp_path):
    for schedule in families(n):
        assert_right(exported(schedule, tmp_path), seeds=8)
        assert verify_xml(encode(schedule)).verdict is Verdict.PROVED


@pytest.mark.parametrize("n", [5, 8])
def test_helpers_do_all_that_needs_no_late_rank_without_it(n, tmp_path):
    schedule = straggler(n)
    waiting = Schedule(ranks=n, chunks=schedule.chunks, phases=schedule.phases[:1], late=(n - 1,))

    file = exported(schedule, tmp_path)
    helpers_blocks = [block for block in file.blocks if block.rank != n - 1]
    helpers_file = File(**{**vars(file), "blocks": helpers_blocks})
    run = Run(helpers_file, in_place=True, per_message=1)
    assert run.outcome().kind == "hang"
    done = {}  # transmissions, by the block's rank and peers
    for state in run.blocks:
        block = state.block
        done[block.rank, block.send, block.receive] = state.transmission

    waiting_file = exported(waiting, tmp_path)
    assert waiting_file.blocks
    for block in waiting_file.blocks:
        assert done[block.rank, block.send, block.receive] >= len(block.program)


def test_the_executor_sees_a_step_that_is_missing(tmp_path):
    file = exported(straggler(4), tmp_path)
    block = next(block for block in file.blocks if block.program[-1].kind == "s")
    block.program.pop()
    assert Run(file, in_place=True).outcome().kind == "hang"


@given(st.integers(2, 6), st.integers(1, 7), st.integers(0, 30))
@settings(max_examples=15, deadline=None)
def test_more_chunks_are_proved_and_keep_the_sizes_even(n, k, more):
    schedule = straggler(n, chunks=k)
    wider = with_chunks(schedule, k + more)
    assert check(wider).verdict is Verdict.PROVED
    assert wider.rounds <= schedule.rounds * -(-(k + more) // k)


@given(st.integers(2, 6), st.integers(1, 9))
@settings(max_examples=15, deadline=None)
def test_ends_wait_only_for_earlier_ends_of_their_rank(n, k):
    all_ends = ends(straggler(n, chunks=k))
    for number, end in enumerate(all_ends):
        for earlier in end.before:
            assert earlier < number
            assert (all_ends[earlier].rank, all_ends[earlier].chunk) == (end.rank, end.chunk)


def test_a_long_program_goes_on_in_more_channels(tmp_path):
    file = exported(straggler(2, chunks=150), tmp_path)
    assert {block.channel for block in file.blocks} == {0, 1, 2}
    assert max(len(block.program) for block in file.blocks) <= 64
    assert_right(file)


def refused(schedule: Schedule) -> str:
    with pytest.raises(ArgumentError) as error:
        encode(schedule)
    return str(error.value)


@pytest.mark.parametrize(
    ("schedule", "limit"),
    [
        (standard.direct(34), "needs 33 peers of one rank, the target has 32 blocks a channel"),
        (straggler(2, chunks=2048), "elements for one GPU, the target has room for 4095"),
        (straggler(2, chunks=2500), "needs 40 channels, the target has 32 channels"),
    ],
)
def test_limits_are_named(schedule, limit):
    with pytest.raises(ArgumentError, match=limit):
        encode(schedule)


def test_fewer_chunks_than_the_schedule_has_are_refused():
    with pytest.raises(ArgumentError, match="--chunks = 6: must be in 7"):
        with_chunks(straggler(8), 6)
