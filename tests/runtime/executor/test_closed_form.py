"""What runs of the closed form is what was proved: its part of the whole, or nothing."""

from __future__ import annotations

import random
from dataclasses import replace

import msgspec
import pytest

from latecomer.runtime.executor import closed_form
from latecomer.runtime.executor.closed_form import ClosedFormPart, proved_whole, require_part
from latecomer.runtime.policy.candidates import CLASSES
from latecomer.synth.straggler import own
from latecomer.synth.straggler.generate import generate
from latecomer.synth.straggler.own import own_part, whole
from latecomer.verify.core.schedule import Phase, Transfer
from latecomer.verify.errors import ScheduleRefused
from tests.proofs import own_parts


@pytest.mark.parametrize(("n", "k"), [(2, 1), (2, 4), (3, 1), (6, 3), (9, 16)])
def test_the_whole_is_what_synth_ships(n, k):
    shipped = generate(n, chunks=k, owners="free")
    assert msgspec.structs.replace(shipped, meta={}) == whole(n, k)


@pytest.mark.parametrize("seed", range(6))
def test_a_part_is_the_ranks_part_of_the_whole_whoever_is_late(seed):
    """In CI for every number of ranks and chunks that there is: ``tests.proofs.own_parts``."""
    dice = random.Random(seed)
    n = dice.randint(2, own_parts.MOST_RANKS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(closed_form, "PROVED", closed_form.PROVED)  # compare changes it
        assert own_parts.compare(n, seed, False, dice.sample(own_parts.CHUNKS, 3)) == ""


def test_all_that_is_chosen_is_compared_at_run_time():
    assert max(CLASSES) * 1024 <= closed_form.PROVED


def _moved_to(part, index, transfer):
    """The part with another transfer in place of one of its completion."""
    *before, completion = part.phases
    rounds = [list(transfers) for transfers in completion.rounds]
    positions = []
    for number, transfers in enumerate(rounds):
        positions += [(number, position) for position in range(len(transfers))]

    number, position = positions[index]
    rounds[number][position] = transfer(rounds[number][position])

    changed = tuple(tuple(transfers) for transfers in rounds)
    phases = (*before, Phase(completion.name, completion.absent, changed))
    return msgspec.structs.replace(part, phases=phases)


def _another_peer(transfer):
    stranger = min({0, 1, 2} - {transfer.src, transfer.dst})
    src, dst = (3, stranger) if transfer.src == 3 else (stranger, 3)
    return Transfer(src, dst, transfer.chunk, transfer.op)


def _another_op(transfer):
    op = "copy" if transfer.op == "reduce" else "reduce"
    return Transfer(transfer.src, transfer.dst, transfer.chunk, op)


FAULTS = {
    "another chunk": lambda t: Transfer(t.src, t.dst, (t.chunk + 1) % 5, t.op),
    "another op": _another_op,
    "another peer": _another_peer,
    "of other ranks": lambda t: Transfer(0, 1, t.chunk, t.op),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("index", [0, -1])
def test_a_part_that_is_not_the_wholes_is_refused(monkeypatch, fault, index):
    def faulty(n, rank, chunks):
        part = own_part(n, rank, chunks)
        return _moved_to(part, index, FAULTS[fault]) if rank == 3 else part

    monkeypatch.setattr(own, "own_part", faulty)
    form = ClosedFormPart(7, 3, 5)
    with pytest.raises(ScheduleRefused, match="what rank 3 of 7 would do for 5 chunks is not its"):
        form.make()
    with pytest.raises(ScheduleRefused):  # not even when asked again
        form.program(3, (6,))
    ClosedFormPart(7, 1, 5).make()


def test_a_part_with_more_or_fewer_rounds_is_refused():
    part = own_part(7, 3, 5)
    proved = proved_whole(7, 5).schedule
    require_part(part, 3, proved)
    waiting, completion = part.phases
    for rounds in (completion.rounds[:-1], (*completion.rounds, ()), ((), *completion.rounds)):
        changed = Phase(completion.name, completion.absent, rounds)
        with pytest.raises(ScheduleRefused):
            require_part(msgspec.structs.replace(part, phases=(waiting, changed)), 3, proved)

    # the same rounds, one of them in the phase before
    longer = Phase("reduce_scatter", waiting.absent, (*waiting.rounds, completion.rounds[0]))
    shorter = Phase("completion", (), completion.rounds[1:])
    with pytest.raises(ScheduleRefused):
        require_part(msgspec.structs.replace(part, phases=(longer, shorter)), 3, proved)


def test_a_whole_that_is_wrong_is_refused(monkeypatch):
    def wrong(n, chunks):
        return _moved_to(whole(n, chunks), -1, FAULTS["another chunk"])

    monkeypatch.setattr(own, "whole", wrong)
    with pytest.raises(ScheduleRefused, match="is never run"):
        ClosedFormPart(7, 3, 5).make()


def test_the_comparison_of_executed_rows_notices_other_rows(monkeypatch):
    honest = ClosedFormPart.program

    def other_peer(self, rank, late):
        program = honest(self, rank, late)
        ends = list(program.ends)
        ends[-1] = replace(ends[-1], peer=(ends[-1].peer + 1) % 5)
        return replace(program, ends=tuple(ends))

    monkeypatch.setattr(closed_form, "PROVED", closed_form.PROVED)
    monkeypatch.setattr(ClosedFormPart, "program", other_peer)
    assert "another program" in own_parts.compare(5, 1, False, [2])
