"""Nobody gets "optimal" for nothing: schedules that mark bystanders as absent, against an oracle.

The oracle is the search through all schedules (``search.py``): the fewest rounds in which right
sums can be had, if no rank takes part before it arrives. A rank arrives with the first phase that
it is not absent from. What ``verify`` calls optimal must have so few rounds, however its phases are
cut; what it calls not optimal must have more.
"""

import itertools
import json
import random
from collections import Counter
from functools import cache
from typing import Any

import pytest
from msgspec.structs import replace

from latecomer.verify import Incast, Report, Verdict
from latecomer.verify.core.bounds import somebody_leaves
from latecomer.verify.report.render import bound_in_words, reservation, to_json
from tests.verify.builders import (
    Document,
    document,
    moves,
    optimal_two,
    recursive_doubling,
    report_of,
    schedule_of,
    shuffled,
)
from tests.verify.search import Search

# -- one cheat by hand ---------------------------------------------------------------------------


def gaming() -> Document:
    """Six rounds after everybody is there, three of them idle; somebody is absent from each."""
    return document(
        3,
        1,
        [
            ("join", [2], [moves("1+0:0")]),
            ("second", [1], [moves("2+0:0")]),
            ("idle", [1], [[], [], []]),
            ("back", [2], [moves("0=1:0")]),
            ("last", [1], [moves("0=2:0")]),
        ],
        late=[1, 2],
    )


def test_rounds_that_bystanders_are_absent_from_are_not_left_out() -> None:
    report = report_of(gaming())
    assert report.verdict is Verdict.PROVED  # the sums are right
    assert report.completion_rounds == report.lower_bound == 0
    assert report.optimal == "unknown"

    reason = "rank 1 is absent again after its arrival, in second"
    assert bound_in_words(schedule_of(gaming()), report) == (
        "completion: 0 rounds, lower bound 0: optimality unknown "
        f"(optimal only given its other phases: {reason})"
    )


def test_the_claim_stays_undecided() -> None:
    doc = {**gaming(), "meta": {"optimal": True}}
    report = report_of(doc)
    assert report.verdict is report.results["claims"].verdict is Verdict.UNKNOWN
    assert "optimal = True" in report.results["claims"].note


def phases_of(*absences: list[int]) -> list[tuple[str, list[int], list[Any]]]:
    return [(f"phase {number}", absent, [[]]) for number, absent in enumerate(absences)]


@pytest.mark.parametrize(
    ("absences", "again"),
    [
        ([], ""),
        ([[]], ""),
        ([[3], []], ""),
        ([[2, 3], [3, 2], [3], [], []], ""),  # one after the other
        ([[2, 3], []], ""),  # together
        ([[3], [3]], ""),  # never arrives, and so is never right
        ([[], [3]], "rank 3 is absent again after its arrival, in phase 1"),
        ([[3], [], [3], []], "rank 3 is absent again after its arrival, in phase 2"),
        ([[3], [2], []], "rank 2 is absent again after its arrival, in phase 1"),
        ([[2, 3], [3], [2, 3], []], "rank 2 is absent again after its arrival, in phase 2"),
    ],
)
def test_who_is_absent_again(absences: list[list[int]], again: str) -> None:
    doc = document(4, 1, phases_of(*absences), late=[2, 3])
    schedule = schedule_of(doc)
    assert somebody_leaves(schedule) == bool(again)

    report = report_of(doc)
    undecided = replace(report, optimal="unknown", completion_rounds=1, lower_bound=0)
    assert reservation(schedule, undecided) == again


def test_json_says_why() -> None:
    doc = gaming()
    report = report_of(doc)
    facts = to_json(schedule_of(doc), report)
    assert facts["optimal"] == "unknown"
    assert "absent again" in facts["notes"]["optimal"]


RIGHT_AND_AT_THE_BOUND = {
    "declared late, never absent": (optimal_two(), True),
    "completion in several phases": (
        document(2, 2, [("a", [], [moves("0+1:0 1+0:0")]), ("b", [], [moves("0+1:1 1+0:1")])]),
        True,
    ),
    "idle before the arrival": (
        document(
            3,
            1,
            [
                ("idle", [2], [[], []]),
                ("wait", [2], [moves("1+0:0")]),
                ("completion", [], [moves("0+2:0 2+0:0"), moves("0=1:0")]),
            ],
            late=[2],
        ),
        True,
    ),
    "an empty phase that says the late rank is there": (
        document(
            3,
            1,
            [
                ("nothing", [], []),
                ("wait", [2], [moves("1+0:0")]),
                ("completion", [], [moves("0+2:0 2+0:0"), moves("0=1:0")]),
            ],
            late=[2],
        ),
        "unknown",
    ),
    "absent at the end, when all is done": (
        document(
            3,
            1,
            [
                ("wait", [2], [moves("1+0:0")]),
                ("completion", [], [moves("0+2:0 2+0:0")]),
                ("last", [2], [moves("0=1:0")]),
            ],
            late=[2],
        ),
        "unknown",
    ),
}


@pytest.mark.parametrize("name", RIGHT_AND_AT_THE_BOUND)
def test_what_is_no_cheat(name: str) -> None:
    doc, optimal = RIGHT_AND_AT_THE_BOUND[name]
    report = report_of(doc)
    assert report.verdict is Verdict.PROVED
    assert report.optimal == optimal


# -- a search for cheats -------------------------------------------------------------------------


Arrivals = tuple[int, ...]

LONGEST_WAIT = 3
"""In rounds; the oracle's work grows with it."""


@cache
def fewest_rounds_in_all(chunks: int, ports: str, arrivals: Arrivals) -> int:
    """The least number of rounds after which some schedule has right sums everywhere."""
    decoded = Incast(json.loads(ports)["incast"]) if ports.startswith("{") else ports
    search = Search(len(arrivals), chunks, decoded)  # type: ignore[arg-type]
    for number in itertools.count(1):
        absent = tuple(rank for rank, rounds in enumerate(arrivals) if rounds >= number)
        if search.advance(absent):
            return number
    raise AssertionError


def arrivals_of(doc: Document) -> Arrivals:
    """For each rank the rounds before the first phase that it is not absent from."""
    arrivals = []
    for rank in range(doc["ranks"]):
        waiting = itertools.takewhile(lambda phase, r=rank: r in phase["absent"], doc["phases"])
        arrivals.append(sum(len(phase["rounds"]) for phase in waiting))
    return tuple(arrivals)


def shortest() -> list[Document]:
    """Right schedules for which the oracle is quick, some of them with the fewest rounds."""

    def one_phase(n: int, k: int, *rounds: str, **options: Any) -> Document:
        return document(n, k, [("all", [], [moves(text) for text in rounds])], **options)

    return [
        one_phase(3, 1, "1+0:0", "0+2:0 2+0:0", "0=1:0", late=[2]),
        one_phase(2, 2, "0+1:0 1+0:1", "1=0:0 0=1:1"),
        one_phase(2, 2, "0+1:0 1+0:0", "0+1:1 1+0:1"),
        one_phase(4, 1, "0+1:0 2+3:0", "1+3:0 3+1:0", "1=0:0 3=2:0"),
        optimal_two(),
        recursive_doubling(2),
        recursive_doubling(4, 1, "duplex"),
        one_phase(3, 1, "1+0:0 2+0:0", "0=1:0 0=2:0", ports={"incast": 2}),
    ]


def cheat(rng: random.Random) -> Document:
    """A right schedule with rounds that do nothing, cut into phases with bystanders absent."""
    doc = shuffled(rng.choice(shortest()), rng)
    rounds = [transfers for phase in doc["phases"] for transfers in phase["rounds"]]
    for _ in range(rng.choice((0, 0, 1, 2, 3))):
        rounds.insert(rng.randint(0, len(rounds)), [])

    ranks = range(doc["ranks"])
    eager = rng.choice((0.1, 0.5, 0.9, 1.0))
    wait = rng.randint(0, len(rounds))  # from here on nobody is absent, in some
    keeps_still = rng.random() < 0.5
    doc["phases"] = []
    waiting = set(ranks)
    for number, transfers in enumerate(rounds):
        busy = {rank for transfer in transfers for rank in transfer[:2]}
        waiting -= busy
        bystanders = waiting if keeps_still else set(ranks) - busy
        absent = [rank for rank in bystanders if rng.random() < eager]
        if keeps_still:
            absent = [] if number >= wait else sorted(bystanders)
        phase = {"name": f"phase {number}", "absent": absent, "rounds": [transfers]}
        doc["phases"].append(phase)
        if rng.random() < 0.1:
            absent = rng.sample(ranks, rng.randint(0, len(ranks)))
            doc["phases"].append({"name": f"nothing {number}", "absent": absent, "rounds": []})
    doc["late"] = list(ranks)
    return doc


def would_be_cheap(report: Report) -> bool:
    """What "optimal" was once: at a bound that takes all rounds with somebody absent as given."""
    return report.completion_rounds == report.lower_bound


@pytest.mark.parametrize("seed", range(4))
def test_no_cheat_is_found(seed: int) -> None:
    rng = random.Random(seed)
    outcomes: Counter[str] = Counter()
    for _ in range(500):
        doc = cheat(rng)
        arrivals = arrivals_of(doc)
        if max(arrivals) > LONGEST_WAIT:
            continue
        report = report_of(doc)
        assert report.verdict is Verdict.PROVED, doc
        rounds = report.rounds

        fewest = fewest_rounds_in_all(doc["chunks"], ports_of(doc), arrivals)
        outcomes["optimal" if rounds == fewest else "not optimal"] += 1
        outcomes[f"said {report.optimal}"] += 1
        if report.optimal is True:
            assert rounds == fewest, doc
        if report.optimal is False:
            assert rounds > fewest, doc
        outcomes["cheap without the rule"] += would_be_cheap(report) and rounds > fewest

    assert outcomes["cheap without the rule"] > 0, outcomes  # the search is able to find them
    assert outcomes["said True"] > 10, outcomes
    assert outcomes["said False"] > 10, outcomes


def ports_of(doc: Document) -> str:
    return doc["ports"] if isinstance(doc["ports"], str) else json.dumps(doc["ports"])
