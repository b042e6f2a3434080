"""What is said of a wrong schedule: the property, the place, and words that help."""

import pytest

from tests.verify.pipeline import documents
from tests.verify.pipeline.documents import document, gpipe, one_f_one_b, report_of, schedule_of
from verify.core.verdict import Counterexample, Verdict
from verify.pipeline import check
from verify.pipeline.render import render

Rows = list[list[str]]


def _messages() -> Rows:
    return documents.with_messages(documents.zero_bubble(3, 3), 3, 3)


def _swapped(rows: Rows, rank: int, one: str, other: str) -> Rows:
    i, j = rows[rank].index(one), rows[rank].index(other)
    rows[rank][i], rows[rank][j] = rows[rank][j], rows[rank][i]
    return rows


def _without(action: str) -> Rows:
    return [[a for a in row if a != action] for row in _messages()]


def _with(rank: int, position: int, action: str, rows: Rows | None = None) -> Rows:
    rows = rows or _messages()
    rows[rank].insert(position, action)
    return rows


def _moved(rank: int, position: int, action: str) -> Rows:
    return _with(rank, position, action, _without(action))


WRONG: list[tuple[Rows, str, str, str]] = [
    # rows, the property, the action, what is found
    (_with(0, 0, "3F0"), "well_formed", "3F0", "stage 3"),
    (_with(1, 9, "0F1"), "well_formed", "0F1", "on rank 0"),
    (_with(0, 1, "0F0"), "exactly_once", "0F0", "it runs a second time"),
    (_with(2, 99, "2B1"), "exactly_once", "2B1", "2I1 runs, too"),
    (_without("1W2"), "exactly_once", "1W2", "it never runs"),
    (_swapped(_messages(), 2, "2I0", "2W0"), "dependencies", "2W0", "2I0 comes later"),
    (_swapped(gpipe(3, 3), 2, "2F0", "2F1"), "loss_order", "2F1", "F1"),
    (_without("0SEND_F1"), "communication", "0SEND_F1", "it is not there"),
    (_moved(0, 0, "0SEND_F1"), "communication", "0SEND_F1", "it is not computed yet"),
    (_with(2, 99, "2SEND_F1"), "communication", "2SEND_F1", "no rank needs it"),
    (_moved(1, 99, "1RECV_F1"), "communication", "1RECV_F1", "that has run already"),
    (_moved(1, 0, "1RECV_F1"), "message_order", "1RECV_F1", "1RECV_F1 takes the data of 0SEND_F0"),
    (_without("1REDUCE_GRAD"), "reduce_grad", "1REDUCE_GRAD", "not divided"),
    (_moved(1, 6, "1REDUCE_GRAD"), "reduce_grad", "", "comes after it"),
    (_with(1, 3, "1UNSHARD"), "sharding", "1F0", "its weights are not gathered"),
]


def _fault(rows: Rows, **instance: object) -> tuple[Counterexample, str]:
    schedule = schedule_of(document(rows, 3, 3, **instance))
    report = check(schedule)
    assert report.verdict is Verdict.REFUTED
    assert report.counterexample is not None
    assert report.to_json()["counterexample"]["property"] == report.counterexample.property
    return report.counterexample, render("p.json", schedule, report)


@pytest.mark.parametrize(("rows", "prop", "action", "found"), WRONG)
def test_named(rows: Rows, prop: str, action: str, found: str) -> None:
    fault, text = _fault(rows)
    assert fault.property == prop
    assert action in (fault.action or "")
    assert found in fault.found
    if fault.position is not None:
        assert fault.rank is not None
        assert rows[fault.rank][fault.position] == fault.action
    for part in ("p.json: REFUTED", f"{prop} fails at", "expected: ", f"found:    {fault.found}"):
        assert part in text


def test_memory_names_the_limit_and_the_peak() -> None:
    fault, _ = _fault(_messages(), memory=[2, 2, 2])
    assert (fault.property, fault.rank, fault.action) == ("memory", 0, "0F2")
    assert "at most 2 activations" in fault.expected
    assert fault.found == "3 are held here, 3 at the most"


def test_a_wait_cycle_is_printed_as_short_as_it_is() -> None:
    """Both want the other's message first; with buffered sends both would get it."""
    rows = _without("1RECV_B0")
    rows[1].insert(rows[1].index("1SEND_F0"), "1RECV_B0")
    fault, text = _fault(rows)
    assert fault.property == "deadlock_free"
    assert "wait for each other in a cycle (sends are rendezvous" in fault.found
    last, first = fault.actions[-1].split(" waits for ")[1], fault.actions[0]
    assert last.split(" (")[0] == first.split(" waits for ")[0]
    assert len(fault.actions) <= 5
    assert any("earlier on the stream of rank 1" in line for line in fault.actions)
    assert "actions that matter:" in text
    report = report_of(document(rows, 3, 3, sends="buffered"))
    assert report.verdict is Verdict.PROVED
    assert report.measures is not None
    assert report.measures.makespan_in_order is None
    assert "only because sends are buffered" in report.results["deadlock_free"].note


def test_a_cycle_of_computations_stops_any_transport() -> None:
    rows = one_f_one_b(3, 3)
    rows[0] = ["0F0", "0B0", "0F1", "0B1", "0F2", "0B2"]
    rows[1] = ["1F0", "1F1", "1B0", "1F2", "1B1", "1B2"]
    fault, _ = _fault(rows, sends="buffered")
    assert fault.property == "deadlock_free"
    assert "even if sends are buffered" in fault.found


@pytest.mark.parametrize(
    ("meta", "verdict"),
    [
        ({"makespan": 1}, Verdict.REFUTED),
        ({"lower_bound": 1}, Verdict.REFUTED),
        ({"makespan": "92"}, Verdict.REFUTED),
        ({"optimal": True}, Verdict.UNKNOWN),
        ({"optimal": False, "method": "anything"}, Verdict.PROVED),
    ],
)
def test_claims(meta: dict[str, object], verdict: Verdict) -> None:
    doc = {**document(one_f_one_b(3, 3), 3), "meta": meta}
    assert report_of(doc).results["claims"].verdict is verdict
