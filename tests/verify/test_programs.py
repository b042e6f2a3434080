"""Property 7: deadlock or not, against a simulation that shares no code with ``verify``."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence

import pytest

from tests.verify.builders import all_right, document, ring, shuffled, straggler
from tests.verify.mutants import mutant
from tests.verify.test_mutants import SEED
from verify import Schedule, Verdict, check, decode
from verify.core.programs import Program, by_round, deadlock_free, sends_first


def _simulate(schedule: Schedule, programs: Sequence[Program], rng: random.Random) -> bool:
    """Let any transfer complete whose two ends both stand at a step with it, until none can."""
    ends = [(t.src, t.dst) for _, _, moves in schedule.located_rounds() for t in moves]
    left = [[set(step) for step in program if step] for program in programs]
    while True:
        current = [steps[0] if steps else set() for steps in left]
        able = [i for i, (src, dst) in enumerate(ends) if i in current[src] and i in current[dst]]
        if not able:
            return not any(left)
        done = rng.choice(able)
        for rank in ends[done]:
            left[rank][0].discard(done)
            if not left[rank][0]:
                left[rank].pop(0)


def _random_programs(schedule: Schedule, rng: random.Random) -> list[Program]:
    """``by_round``, disturbed: some neighbouring steps swapped, split or joined."""
    programs = []
    for program in by_round(schedule):
        steps = [list(step) for step in program]
        for _ in range(rng.choice((0, 1, 1, 2))):
            if not steps:
                break
            at = rng.randrange(len(steps))
            change = rng.randrange(3)
            if change == 0:
                other = rng.randrange(max(0, at - 1), min(len(steps), at + 2))
                steps[at], steps[other] = steps[other], steps[at]
            elif change == 1 and len(steps[at]) > 1:
                rng.shuffle(steps[at])
                steps[at : at + 1] = [steps[at][:1], steps[at][1:]]
            elif at + 1 < len(steps):
                steps[at : at + 2] = [steps[at] + steps[at + 1]]
        programs.append([tuple(step) for step in steps])
    return programs


def test_random_programs_agree_with_the_simulation() -> None:
    print(f"LATECOMER_SEED={SEED}")
    rng = random.Random(SEED)
    outcomes = {True: 0, False: 0}
    right = list(all_right().values())
    for _ in range(1500):
        doc = shuffled(rng.choice(right), rng)
        schedule = decode(json.dumps(doc).encode())
        programs = _random_programs(schedule, rng)
        expected = _simulate(schedule, programs, rng)
        result = deadlock_free(schedule, lambda _, programs=programs: programs)  # type: ignore[misc]
        assert (result.verdict is Verdict.PROVED) == expected, (doc, programs)
        outcomes[expected] += 1
    print(outcomes)
    assert min(outcomes.values()) > 200


def test_by_round_never_deadlocks_even_for_wrong_schedules() -> None:
    rng = random.Random(SEED)
    for _ in range(300):
        schedule = decode(json.dumps(mutant(rng)).encode())
        report = check(schedule)
        if report.results["well_formed"].verdict is Verdict.PROVED:
            assert report.results["deadlock_free"].verdict is Verdict.PROVED
            assert _simulate(schedule, by_round(schedule), rng)


def test_by_round_posts_every_transfer_once_at_each_end() -> None:
    schedule = decode(json.dumps(straggler(6)).encode())
    table = schedule.table
    for rank, program in enumerate(by_round(schedule)):
        posted = [i for step in program for i in step]
        mine = [i for i in range(len(table)) if rank in (table.src[i], table.dst[i])]
        assert posted == mine
        assert all(len({int(table.round[i]) for i in step}) == 1 for step in program)


@pytest.mark.parametrize("n", [2, 3, 8])
def test_sends_first_around_a_ring_is_a_wait_cycle(n: int) -> None:
    result = deadlock_free(decode(json.dumps(ring(n)).encode()), sends_first)
    assert result.verdict is Verdict.REFUTED
    found = result.counterexample
    assert found is not None
    assert found.found == "wait cycle " + " -> ".join(f"rank {r % n}" for r in range(n + 1))
    assert (found.phase, found.round, found.rank) == ("reduce_scatter", 0, 0)
    assert [(t.src, t.dst, t.round) for t in found.transfers] == [
        (r, (r + 1) % n, 0) for r in range(n)
    ]


def test_sends_first_down_a_chain_is_fine() -> None:
    chain = document(3, 1, [("chain", [], [[[0, 1, 0, "copy"]], [[1, 2, 0, "copy"]]])])
    assert deadlock_free(decode(json.dumps(chain).encode()), sends_first).verdict is Verdict.PROVED


def test_a_cycle_is_shown_without_the_ranks_that_wait_for_it() -> None:
    """Rank 0 waits for 1, while 1 and 2 wait for each other."""
    moves = [[0, 1, 0, "reduce"], [1, 2, 0, "reduce"], [2, 1, 0, "reduce"]]
    schedule = decode(json.dumps(document(3, 1, [("p", [], [moves])])).encode())
    programs: list[Program] = [[(0,)], [(1,), (2,), (0,)], [(2,), (1,)]]
    found = deadlock_free(schedule, lambda _: programs).counterexample
    assert found is not None
    assert found.found == "wait cycle rank 1 -> rank 2 -> rank 1"
    assert [(t.src, t.dst) for t in found.transfers] == [(1, 2), (2, 1)]


def test_waiting_for_a_rank_that_has_finished() -> None:
    schedule = decode(json.dumps(document(2, 1, [("p", [], [[[0, 1, 0, "copy"]]])])).encode())
    found = deadlock_free(schedule, lambda _: [[(0,)], []]).counterexample
    assert found is not None
    assert found.found == "rank 0 waits for rank 1, which has finished"


def test_empty_steps_and_empty_programs() -> None:
    schedule = decode(json.dumps(document(2, 1, [("p", [], [[[0, 1, 0, "copy"]]])])).encode())
    assert deadlock_free(schedule, lambda _: [[(), (0,), ()], [(0,)]]).verdict is Verdict.PROVED
    nothing = decode(json.dumps(document(2, 1, [])).encode())
    assert by_round(nothing) == [[], []]
    assert deadlock_free(nothing).verdict is Verdict.PROVED
