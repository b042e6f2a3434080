"""Pipeline files: what is read and refused, and what is said of a wrong schedule."""

import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from latecomer.verify.core.format import kind_of
from latecomer.verify.core.verdict import Counterexample, Verdict
from latecomer.verify.errors import FormatError
from latecomer.verify.pipeline import (
    Action,
    PipelineSchedule,
    check,
    decode,
    encode,
    read,
    uniform,
    with_waits,
    without_waits,
    write,
)
from latecomer.verify.pipeline.render import render
from tests.verify.pipeline import documents
from tests.verify.pipeline.documents import (
    all_right,
    document,
    gpipe,
    in_a_random_instance,
    one_f_one_b,
    report_of,
    schedule_of,
)

REFUSED: list[tuple[str, Any, str]] = [  # what is changed, into what, what is said
    ("kind", "pipelines", "$.kind"),
    ("kind", "allreduce", "kind allreduce, where one of kind pipeline"),
    ("colour", "red", "colour"),
    ("situation.speed", 1, "speed"),
    ("stages", 0, "stages is 0"),
    ("microbatches", 0, "microbatches is 0"),
    ("microbatches", 10**6, "microbatches is 1000000"),
    ("situation.forward", [1], "forward has 1 durations"),
    ("situation.weight.2", -1, "situation.weight[2] is -1"),
    ("situation.weight.2", 1e30, "situation.weight[2] is 1e+30"),
    ("situation.weight.2", 1e-10, "at most 9 decimals"),
    ("situation.weight.2", "5", "$.situation.weight[2]"),
    ("situation.links", [{"between": [3, 4]}], "situation.links[0].between is [3, 4]"),
    ("situation.links", [{"between": [1, 1]}], "must be two ranks"),
    ("situation.links", [{"between": [0, 1]}, {"between": [1, 0]}], "links[1] is a second link"),
    ("situation.links", [{"between": [0, 1], "latency": -3}], "links[0].latency is -3"),
    ("situation.memory", [8], "memory has 1 limits for 4 ranks"),
    ("situation.memory", [8, 8, 8, 0.3], "multiple of 0.5"),
    ("programs.1.3", "1X0", "programs[1][3]: '1X0' is no action"),
    ("programs.1.3", "1F", "programs[1][3]"),
    ("stages", 3, "the number of programs is 4"),
    ("meta", {"a": [1]}, "$[...]"),
]


@pytest.mark.parametrize(("path", "value", "problem"), REFUSED)
def test_refused(path: str, value: Any, problem: str) -> None:
    """1F1B with messages, one field changed."""
    doc = all_right()["1f1b-messages"]
    *outer, last = [int(name) if name.isdigit() else name for name in path.split(".")]
    container: Any = doc
    for name in outer:
        container = container[name]
    container[last] = value
    with pytest.raises(FormatError) as error:
        decode(json.dumps(doc).encode(), "p.json")
    assert str(error.value).startswith("p.json: ")
    assert problem in str(error.value)


@pytest.mark.parametrize(
    "text", [b"", b"[", b"nonsense", b"\xff", b'{"kind":"pipeline"}', b"[" * 9999]
)
def test_no_schedule_at_all(text: bytes) -> None:
    with pytest.raises(FormatError):
        decode(text)
    assert kind_of(text) in ("", "pipeline")


@pytest.mark.parametrize("suffix", [".json", ".json.gz", ".json.zst"])
def test_round_trip(suffix: str, tmp_path: Path) -> None:
    rng = random.Random(1)
    for doc in all_right().values():
        doc["programs"][0] += ["0UNSHARD", "0RESHARD"]
        schedule = schedule_of(in_a_random_instance(doc, rng))
        write(schedule, tmp_path / f"p{suffix}")
        assert read(tmp_path / f"p{suffix}") == schedule
    assert decode(encode(schedule)) == schedule


def test_numbers_are_taken_as_they_are_typed() -> None:
    """0.1 is a tenth: three of it end at 0.3 exactly, which no float sum does."""
    doc = all_right()["single"]
    doc["situation"] = {name: [0.1] for name in ("forward", "backward", "weight")}
    report = report_of(doc)
    assert report.measures is not None
    assert report.measures.makespan == 0.9 == report.measures.lower_bound


ONE = ((Action(0, "F", 0), Action(0, "B", 0)),)
GOOD = PipelineSchedule(stages=1, microbatches=1, instance=uniform(1), programs=ONE)


@pytest.mark.parametrize(
    "change",
    [
        {"stages": 0},
        {"microbatches": -1},
        {"programs": ()},
        {"programs": ((),)},
        {"instance": uniform(2)},
        {"instance": uniform(1, forward=-1)},
        {"instance": uniform(1, forward=float("nan"))},
        {"programs": ((Action(0, "F", 5),),)},
        {"programs": ((Action(-1, "F", 0),),)},
    ],
)
def test_a_schedule_made_in_memory_is_judged_not_trusted(change: dict[str, Any]) -> None:
    assert check(GOOD).verdict is Verdict.PROVED
    report = check(msgspec.structs.replace(GOOD, **change))
    assert report.results["well_formed"].verdict is Verdict.REFUTED
    assert report.measures is None


Rows = list[list[str]]


def _messages() -> Rows:
    return documents.with_messages(documents.zero_bubble(3, 3), 3, 3)


def _swapped(rows: Rows, rank: int, first: str, second: str) -> Rows:
    i = rows[rank].index(first)
    j = rows[rank].index(second)
    rows[rank][i] = second
    rows[rank][j] = first
    return rows


def _without(action: str) -> Rows:
    rows = _messages()
    for row in rows:
        if action in row:
            row.remove(action)
    return rows


def _with(rank: int, position: int, action: str, rows: Rows | None = None) -> Rows:
    rows = rows or _messages()
    rows[rank].insert(position, action)
    return rows


def _moved(rank: int, position: int, action: str) -> Rows:
    return _with(rank, position, action, _without(action))


def _waiting(without: str = "") -> Rows:
    rows = documents.with_waits(_messages())
    return [[action for action in row if action != without] for row in rows]


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
    (_waiting(without="0WAIT_SEND_F1"), "waits", "0WAIT_SEND_F1", "it is not there"),
    (_waiting(without="1WAIT_REDUCE_GRAD"), "waits", "1WAIT_REDUCE_GRAD", "it is not there"),
    (_with(0, 0, "0WAIT_SEND_F1", _waiting()), "waits", "0WAIT_SEND_F1", "nothing to wait for"),
    (_with(0, 99, "0WAIT_SEND_F1", _waiting()), "waits", "0WAIT_SEND_F1", "nothing to wait for"),
    (_with(0, 1, "0WAIT_SEND_F0"), "waits", "0WAIT_SEND_F0", "nothing to wait for"),
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
    last = fault.actions[-1].split(" waits for ")[1]
    first = fault.actions[0]
    assert last.split(" (")[0] == first.split(" waits for ")[0]
    assert len(fault.actions) <= 5
    assert any("earlier on the stream of rank 1" in line for line in fault.actions)
    assert "actions that matter:" in text
    report = report_of(document(rows, 3, 3, sends="buffered"))
    assert report.verdict is Verdict.PROVED
    assert report.measures is not None
    assert report.measures.makespan_in_order is None
    assert "only because sends are buffered" in report.results["deadlock_free"].note


def test_a_rank_reduces_one_stage_at_a_time() -> None:
    """Waits of two stages on a rank, in turn and at the end."""
    rows = documents.with_waits(documents.with_messages(documents.looped(2, 2, 2), 4, 2))
    assert report_of(document(rows, 2, 4)).verdict is Verdict.PROVED
    waits = [action for action in rows[0] if "WAIT_REDUCE" in action]
    assert len(waits) == 2
    rows[0] = [action for action in rows[0] if action not in waits] + waits
    report = report_of(document(rows, 2, 4))
    assert report.counterexample is not None
    assert report.counterexample.property == "waits"
    assert report.counterexample.action == waits[1].replace("WAIT_", "")
    assert "one stage at a time" in report.counterexample.expected


def test_a_wait_holds_up_what_comes_after_it_if_sends_are_rendezvous() -> None:
    """Rank 0 stands still until its message is there, and then computes the next one."""
    rows = documents.with_waits(documents.with_messages(documents.gpipe(2, 2), 2, 2))
    slow: dict[str, Any] = {"forward": [20, 8], "links": [{"between": [0, 1], "latency": 100}]}
    at_the_end = report_of(document(rows, 2, **slow))
    rows[0].remove("0WAIT_SEND_F0")
    rows[0].insert(rows[0].index("0SEND_F0") + 1, "0WAIT_SEND_F0")
    at_once = report_of(document(rows, 2, **slow))
    for report in (at_the_end, at_once):
        assert report.verdict is Verdict.PROVED
    assert at_the_end.measures is not None
    assert at_once.measures is not None
    assert at_the_end.measures.makespan == at_once.measures.makespan
    in_order = at_the_end.measures.makespan_in_order
    assert in_order is not None
    # 0F1 follows the first message, not 0F0; the second one had to wait for 1F0, which took 8.
    assert at_once.measures.makespan_in_order == in_order + 20 - 8


@pytest.mark.parametrize("name", [name for name in all_right() if name.endswith("-waits")])
def test_waits_are_added_where_pytorch_adds_them_and_left_out(name: str) -> None:
    schedule = schedule_of(all_right()[name])
    without = schedule_of(all_right()[name.replace("-waits", "-messages")])
    assert without_waits(schedule).programs == without.programs
    assert with_waits(without).programs == schedule.programs
    assert with_waits(schedule) is schedule
    assert without_waits(without) is without


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
