"""Property 7: programs that end or not, against a simulation with no code of ``verify``."""

import random
from itertools import groupby, permutations

import msgspec
import numpy as np
import pytest

from latecomer.verify import Counterexample, Verdict, check
from latecomer.verify.core.programs import Programs, deadlock_free, programs
from latecomer.verify.renaming import renamed
from tests.verify import builders
from tests.verify.builders import all_right, document, ring, schedule_of, shuffled, straggler
from tests.verify.mutants import mutant
from tests.verify.test_mutants import SEED

End = tuple[str, int, int]
"""("send" or "receive", peer, chunk)"""
Listed = list[list[list[End]]]
"""For each rank its steps, each a list of ends."""


def _listed(table: Programs, ranks: int) -> Listed:
    """The programs of a table, in which each row is one end of a transfer."""
    listed: Listed = [[] for _ in range(ranks)]
    for _, rows_of_step in groupby(range(len(table.rank)), lambda row: table.step[row]):
        rows = list(rows_of_step)
        step = []
        for row in rows:
            verb = "send" if table.sends[row] else "receive"
            step.append((verb, int(table.peer[row]), int(table.chunk[row])))
        listed[table.rank[rows[0]]].append(step)
    return listed


def _programs(listed: Listed) -> Programs:
    """The same as rows, without the rounds of a schedule."""
    number = 0
    rows = []
    for rank_number, steps in enumerate(listed):
        for ends in steps:
            rows += [(rank_number, number, peer, chunk, end == "send") for end, peer, chunk in ends]
            number += 1
    rank, step, peer, chunk, sends = np.array(rows, np.int64).reshape(-1, 5).T
    none = np.zeros_like(rank)
    return Programs(rank, step, peer, chunk, sends > 0, none > 0, none, none)


def _ends(listed: Listed, rng: random.Random) -> bool:
    """Whether all is done after any transfer that can complete has completed, until none can."""
    left: Listed = []
    for steps in listed:
        left.append([list(step) for step in steps if step])

    while True:
        able = _able(left)
        if not able:
            return not any(left)
        sender, send, receiver, receive = rng.choice(able)
        for rank, end in ((sender, send), (receiver, receive)):
            left[rank][0].remove(end)
            if not left[rank][0]:
                left[rank].pop(0)


def _able(left: Listed) -> list[tuple[int, End, int, End]]:
    """The transfers that can complete: the sender and its end, the receiver and its end."""
    able = []
    for sender, receiver in permutations(range(len(left)), 2):
        send = _first(left[sender], "send", receiver)
        receive = _first(left[receiver], "receive", sender)
        if send and receive and send[2] == receive[2]:
            able.append((sender, send, receiver, receive))
    return able


def _first(steps: list[list[End]], verb: str, peer: int) -> End | None:
    """The next end towards the peer, if it is in the step that the rank is at."""
    for step in steps:
        for end in step:
            if end[:2] == (verb, peer):
                return end if end in steps[0] else None
    return None


DISTURBANCES = ("swap",) * 4 + ("split",) * 4 + ("join",) * 2 + ("drop an end", "another chunk")


def _disturbed(listed: Listed, rng: random.Random) -> Listed:
    """Some steps swapped, split or joined, or an end of a transfer changed or left out."""
    disturbed = []
    for program in listed:
        steps = [list(step) for step in program]
        for _ in range(rng.choice((0, 0, 1, 2))):
            if not steps:
                break
            index = rng.randrange(len(steps))
            change = rng.choice(DISTURBANCES)
            if change == "swap":
                neighbour = rng.randrange(max(0, index - 1), min(len(steps), index + 2))
                step = steps[index]
                steps[index] = steps[neighbour]
                steps[neighbour] = step
            elif change == "split" and len(steps[index]) > 1:
                rng.shuffle(steps[index])
                steps[index : index + 1] = [steps[index][:1], steps[index][1:]]
            elif change in {"split", "join"} and index + 1 < len(steps):
                steps[index : index + 2] = [steps[index] + steps[index + 1]]
            elif change == "drop an end":
                steps[index].pop()
            elif steps[index]:
                end, peer, chunk = steps[index][0]
                steps[index][0] = (end, peer, chunk + 1)
        disturbed.append([step for step in steps if step])
    return disturbed


def test_disturbed_programs_agree_with_the_simulation() -> None:
    print(f"LATECOMER_SEED={SEED}")
    rng = random.Random(SEED)
    outcomes = {True: 0, False: 0}
    right = [doc for doc in all_right().values() if doc["ranks"] < 7]
    for _ in range(1000):
        schedule = schedule_of(shuffled(rng.choice(right), rng))
        listed = _disturbed(_listed(programs(schedule), schedule.ranks), rng)
        expected = _ends(listed, rng)
        assert (deadlock_free(_programs(listed)).verdict is Verdict.PROVED) == expected, listed
        outcomes[expected] += 1
    print(outcomes)
    assert min(outcomes.values()) > 150


def test_programs_of_any_schedule_end_even_of_a_wrong_one() -> None:
    rng = random.Random(SEED)
    for _ in range(200):
        schedule = schedule_of(mutant(rng))
        report = check(schedule)
        if report.results["well_formed"].verdict is Verdict.PROVED:
            assert report.results["deadlock_free"].verdict is Verdict.PROVED
            listed = _listed(programs(schedule), schedule.ranks)
            assert _ends(listed, rng)
            assert deadlock_free(_programs(listed)).verdict is Verdict.PROVED


@pytest.mark.parametrize(
    "doc", [document(2, 1, []), straggler(6), builders.optimal_two(), builders.halving_doubling(16)]
)
def test_a_step_is_what_a_rank_does_in_a_round(doc: builders.Document) -> None:
    schedule = schedule_of(doc)
    table = programs(schedule)
    expected: Listed = [[] for _ in range(schedule.ranks)]
    for _, _, transfers in schedule.located_rounds():
        for rank in range(schedule.ranks):
            step: list[End] = []
            for transfer in transfers:
                if transfer.src == rank:
                    step.append(("send", transfer.dst, transfer.chunk))
                elif transfer.dst == rank:
                    step.append(("receive", transfer.src, transfer.chunk))
            if step:
                expected[rank].append(step)
    assert _listed(table, schedule.ranks) == expected
    assert deadlock_free(table).verdict is Verdict.PROVED
    for row, scratch in enumerate(table.scratch()):
        in_same_step = table.step == table.step[row]
        sent = table.chunk[in_same_step & table.sends]
        assert scratch == (not table.sends[row] and (table.reduce[row] or table.chunk[row] in sent))


def _refutation(table: Programs) -> Counterexample:
    counterexample = deadlock_free(table).counterexample
    assert counterexample is not None
    assert counterexample.property == "deadlock_free"
    return counterexample


@pytest.mark.parametrize("n", [2, 3, 14])
def test_sends_first_around_a_ring_is_a_wait_cycle(n: int) -> None:
    """Each round's sends, waited for, and only then its receives: the classic mistake."""
    sends_first: Listed = []
    for steps in _listed(programs(schedule_of(ring(n))), n):
        ends = []
        for step in steps:
            ends += sorted(step, key=lambda end: end[0], reverse=True)
        sends_first.append([[end] for end in ends])
    refuted = _refutation(_programs(sends_first))
    assert refuted.found == "wait cycle " + " -> ".join(f"rank {r % n}" for r in range(n + 1))
    assert refuted.actions == tuple(
        f"rank {r}, step 0: send to rank {(r + 1) % n}, chunk {r}" for r in range(min(n, 12))
    )


def test_a_cycle_is_shown_without_the_ranks_that_wait_for_it() -> None:
    """Rank 0 waits for 1, while 1 and 2 wait for each other in their second steps."""
    listed: Listed = [
        [[("send", 1, 0)]],
        [[("send", 2, 3)], [("send", 2, 1)], [("receive", 2, 2)], [("receive", 0, 0)]],
        [[("receive", 1, 3)], [("send", 1, 2)], [("receive", 1, 1)]],
    ]
    refuted = _refutation(_programs(listed))
    assert refuted.found == "wait cycle rank 1 -> rank 2 -> rank 1"
    assert refuted.actions == (
        "rank 1, step 1: send to rank 2, chunk 1",
        "rank 2, step 1: send to rank 1, chunk 2",
    )


EXCHANGE: Listed = [
    [[("send", 1, 0), ("receive", 1, 0)], [("send", 1, 1)], [("send", 1, 2)]],
    [[("receive", 0, 0), ("send", 0, 0)], [("receive", 0, 1)], [("receive", 0, 2)]],
]
WRONG: dict[str, tuple[Listed, str]] = {
    "a receive is missing": ([EXCHANGE[0], EXCHANGE[1][:2]], "rank 1 does not do its part"),
    "a send is missing": ([EXCHANGE[0][:1], EXCHANGE[1]], "rank 0 does not do its part"),
    "another chunk": ([[*EXCHANGE[0][:2], [("send", 1, 3)]], EXCHANGE[1]], "the chunks differ"),
    "another order": ([[EXCHANGE[0][i] for i in (0, 2, 1)], EXCHANGE[1]], "the chunks differ"),
}


@pytest.mark.parametrize("name", WRONG)
def test_two_ranks_that_do_not_agree(name: str) -> None:
    assert deadlock_free(_programs(EXCHANGE)).verdict is Verdict.PROVED
    listed, problem = WRONG[name]
    assert _refutation(_programs(listed)).found == problem


def test_names_that_only_one_rank_has_changed_are_refuted() -> None:
    """Rank 0 takes the places of the late rank in its program, and nobody else knows."""
    schedule = schedule_of(straggler(5))
    as_in_file = _listed(programs(schedule), 5)
    swapped = _listed(programs(renamed(schedule, {0: 4, 4: 0})), 5)
    assert deadlock_free(_programs(swapped)).verdict is Verdict.PROVED
    assert deadlock_free(_programs([swapped[0], *as_in_file[1:]])).verdict is Verdict.REFUTED


def test_a_clock_or_an_order_that_is_wrong_proves_nothing() -> None:
    """Rounds are believed only where they fit the steps and both ends of each transfer."""
    table = _programs(
        [[[("send", 1, 0)], [("receive", 1, 1)]], [[("send", 0, 1)], [("receive", 0, 0)]]]
    )
    for rounds in ([0, 1, 0, 1], [0, 0, 0, 0], [1, 0, 1, 0]):
        clocked = msgspec.structs.replace(table, round=np.array(rounds))
        assert _refutation(clocked).found == "wait cycle rank 0 -> rank 1 -> rank 0"
    for field, rows in {"rank": [1, 1, 0, 0], "step": [0, 1, 0, 1]}.items():
        with pytest.raises(AssertionError):
            deadlock_free(msgspec.structs.replace(table, **{field: np.array(rows)}))
