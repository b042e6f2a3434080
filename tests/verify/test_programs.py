"""Property 7: programs that end or not, against a simulation with no code of ``verify``."""

import random
from itertools import count, groupby

import msgspec
import numpy as np
import pytest

from tests.verify import builders
from tests.verify.builders import all_right, document, ring, schedule_of, shuffled, straggler
from tests.verify.mutants import mutant
from tests.verify.test_mutants import SEED
from verify import Counterexample, Verdict, check
from verify.core.programs import Programs, deadlock_free, programs
from verify.renaming import renamed

End = tuple[str, int, int]
"""("send" or "receive", peer, chunk)"""
Listed = list[list[list[End]]]
"""For each rank its steps, each a list of ends."""


def _listed(of: Programs, ranks: int) -> Listed:
    found: Listed = [[] for _ in range(ranks)]
    for _, rows in groupby(range(len(of.rank)), lambda row: of.step[row]):
        at = list(rows)
        verbs = ["send" if sends else "receive" for sends in of.sends[at]]
        step = list(zip(verbs, of.peer[at].tolist(), of.chunk[at].tolist(), strict=True))
        found[of.rank[at[0]]].append(step)
    return found


def _programs(listed: Listed) -> Programs:
    """The same as rows, without the rounds of a schedule."""
    numbers = count()
    rows = [
        (rank, step, peer, chunk, end == "send")
        for rank, steps in enumerate(listed)
        for step, ends in zip(numbers, steps, strict=False)
        for end, peer, chunk in ends
    ]
    rank, step, peer, chunk, sends = np.array(rows, np.int64).reshape(-1, 5).T
    none = np.zeros_like(rank)
    return Programs(rank, step, peer, chunk, sends > 0, none > 0, none, none)


def _ends(listed: Listed, rng: random.Random) -> bool:
    """Whether all is done after any transfer that can complete has completed, until none can."""
    left = [[list(step) for step in steps if step] for steps in listed]

    def first(rank: int, end: str, peer: int) -> End | None:
        """The next end towards the peer, if it is in the step that the rank is at."""
        flat = [e for step in left[rank] for e in step if e[:2] == (end, peer)]
        return flat[0] if flat and left[rank] and flat[0] in left[rank][0] else None

    def able() -> list[tuple[int, End, int, End]]:
        pairs = [(a, b) for a in range(len(left)) for b in range(len(left)) if a != b]
        both = [(a, first(a, "send", b), b, first(b, "receive", a)) for a, b in pairs]
        return [(a, s, b, r) for a, s, b, r in both if s and r and s[2] == r[2]]

    while found := able():
        a, send, b, receive = rng.choice(found)
        for rank, end in ((a, send), (b, receive)):
            left[rank][0].remove(end)
            if not left[rank][0]:
                left[rank].pop(0)
    return not any(left)


def _disturbed(listed: Listed, rng: random.Random) -> Listed:
    """Some steps swapped, split or joined, or an end of a transfer changed or left out."""
    found = []
    for program in listed:
        steps = [list(step) for step in program]
        for _ in range(rng.choice((0, 0, 1, 2))):
            if not steps:
                break
            at = rng.randrange(len(steps))
            change = rng.randrange(12)
            if change < 4:
                other = rng.randrange(max(0, at - 1), min(len(steps), at + 2))
                steps[at], steps[other] = steps[other], steps[at]
            elif change < 8 and len(steps[at]) > 1:
                rng.shuffle(steps[at])
                steps[at : at + 1] = [steps[at][:1], steps[at][1:]]
            elif change < 10 and at + 1 < len(steps):
                steps[at : at + 2] = [steps[at] + steps[at + 1]]
            elif change == 10:
                steps[at].pop()
            elif steps[at]:
                end, peer, chunk = steps[at][0]
                steps[at][0] = (end, peer, chunk + 1)
        found.append([step for step in steps if step])
    return found


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
    of = programs(schedule)
    expected: Listed = [[] for _ in range(schedule.ranks)]
    for _, _, transfers in schedule.located_rounds():
        for rank in range(schedule.ranks):
            step = [
                ("send", t.dst, t.chunk) if t.src == rank else ("receive", t.src, t.chunk)
                for t in transfers
                if rank in (t.src, t.dst)
            ]
            expected[rank] += [step] if step else []
    assert _listed(of, schedule.ranks) == expected
    assert deadlock_free(of).verdict is Verdict.PROVED
    for row, scratch in enumerate(of.scratch()):
        step = of.step == of.step[row]
        sent = of.chunk[step & of.sends]
        assert scratch == (not of.sends[row] and (of.reduce[row] or of.chunk[row] in sent))


def _refutation(of: Programs) -> Counterexample:
    found = deadlock_free(of).counterexample
    assert found is not None
    assert found.property == "deadlock_free"
    return found


@pytest.mark.parametrize("n", [2, 3, 14])
def test_sends_first_around_a_ring_is_a_wait_cycle(n: int) -> None:
    """Each round's sends, waited for, and only then its receives: the classic mistake."""
    rounds = _listed(programs(schedule_of(ring(n))), n)
    sends_first = [
        [[end] for step in steps for end in sorted(step, key=lambda end: end[0], reverse=True)]
        for steps in rounds
    ]
    found = _refutation(_programs(sends_first))
    assert found.found == "wait cycle " + " -> ".join(f"rank {r % n}" for r in range(n + 1))
    assert found.actions == tuple(
        f"rank {r}, step 0: send to rank {(r + 1) % n}, chunk {r}" for r in range(min(n, 12))
    )


def test_a_cycle_is_shown_without_the_ranks_that_wait_for_it() -> None:
    """Rank 0 waits for 1, while 1 and 2 wait for each other in their second steps."""
    listed: Listed = [
        [[("send", 1, 0)]],
        [[("send", 2, 3)], [("send", 2, 1)], [("receive", 2, 2)], [("receive", 0, 0)]],
        [[("receive", 1, 3)], [("send", 1, 2)], [("receive", 1, 1)]],
    ]
    found = _refutation(_programs(listed))
    assert found.found == "wait cycle rank 1 -> rank 2 -> rank 1"
    assert found.actions == (
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
    listed, found = WRONG[name]
    assert _refutation(_programs(listed)).found == found


def test_names_that_only_one_rank_has_changed_are_refuted() -> None:
    """Rank 0 takes the places of the late rank in its program, and nobody else knows."""
    schedule = schedule_of(straggler(5))
    file, other = (_listed(programs(s), 5) for s in (schedule, renamed(schedule, {0: 4, 4: 0})))
    assert deadlock_free(_programs(other)).verdict is Verdict.PROVED
    assert deadlock_free(_programs([other[0], *file[1:]])).verdict is Verdict.REFUTED


def test_a_clock_or_an_order_that_is_wrong_proves_nothing() -> None:
    """Rounds are believed only where they fit the steps and both ends of each transfer."""
    of = _programs(
        [[[("send", 1, 0)], [("receive", 1, 1)]], [[("send", 0, 1)], [("receive", 0, 0)]]]
    )
    for rounds in ([0, 1, 0, 1], [0, 0, 0, 0], [1, 0, 1, 0]):
        clocked = msgspec.structs.replace(of, round=np.array(rounds))
        assert _refutation(clocked).found == "wait cycle rank 0 -> rank 1 -> rank 0"
    for field, rows in {"rank": [1, 1, 0, 0], "step": [0, 1, 0, 1]}.items():
        with pytest.raises(AssertionError):
            deadlock_free(msgspec.structs.replace(of, **{field: np.array(rows)}))
