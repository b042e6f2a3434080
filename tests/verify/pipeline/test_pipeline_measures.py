"""Makespan, path, slack, growth and bound, held against the simulation of the tests; pictures."""

import copy
import itertools
import json
import random
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from fractions import Fraction

import pytest

from latecomer.verify.core.verdict import Verdict
from latecomer.verify.pipeline import Bar, Measures, check, lowered, timeline
from latecomer.verify.pipeline.bounds import lower_bound
from latecomer.verify.pipeline.costs import Costs, exact
from latecomer.verify.pipeline.picture import LEFT, WIDTH, Sheet, svg, trace
from tests.verify.builders import Document
from tests.verify.mutants import pipeline_mutant
from tests.verify.pipeline.documents import all_right, in_a_random_instance, report_of, schedule_of
from tests.verify.pipeline.simulation import Buffered, Case


def _random_right(rng: random.Random) -> Document:
    return in_a_random_instance(copy.deepcopy(rng.choice(list(all_right().values()))), rng)


def _measured(count: int, seed: int) -> Iterator[tuple[Document, Measures]]:
    """Right schedules in random instances, with buffered sends, and what they take."""
    rng = random.Random(seed)
    for _ in range(count):
        doc = _random_right(rng)
        doc["situation"]["sends"] = "buffered"
        measures = report_of(doc).measures
        assert measures is not None
        yield doc, measures


def _delayed(doc: Document, pair: tuple[int, int], extra: float) -> Document:
    """The document with ``extra`` more latency between a pair of ranks."""
    doc = copy.deepcopy(doc)
    links = doc["situation"].setdefault("links", [])
    link = next((link for link in links if set(link["between"]) == set(pair)), None)
    if link is None:
        link = {"between": list(pair), "latency": 0}
        links.append(link)
    link["latency"] += extra
    return doc


def _simulated(doc: Document) -> Fraction:
    return Buffered(Case(json.dumps(doc))).time()


def test_slack_and_growth_are_exact() -> None:
    corners = 0
    for doc, measures in _measured(25, seed=5):
        if not schedule_of(doc).has_messages:
            continue
        base = measures.makespan
        for link in measures.links:
            if link.slack is None:
                assert _simulated(_delayed(doc, link.between, 1000)) == exact(base)
                continue

            corners += len(link.growth)
            assert link.growth[0] == (link.slack, base)
            points = [(0, base), *link.growth]
            last_x, last_y = points[-1]
            points.append((last_x + 100, last_y + 100 * link.final_slope))
            for (x0, y0), (x1, y1) in itertools.pairwise(points):
                for x, y in [(x0, y0), ((x0 + x1) / 2, (y0 + y1) / 2)]:
                    makespan = float(_simulated(_delayed(doc, link.between, x)))
                    assert makespan == pytest.approx(float(y), abs=1e-6), (link, x)
            assert _simulated(_delayed(doc, link.between, link.slack + 0.5)) > exact(base)
    assert corners > 30


def test_the_critical_path_has_no_gap() -> None:
    longer_paths = 0
    for _, measures in _measured(40, seed=3):
        path = measures.critical_path
        assert path[0].start == 0
        assert path[-1].end == measures.makespan
        for earlier, later in itertools.pairwise(path):
            waits_for_data = earlier.receiver is None or later.receiver is None
            assert later.start == pytest.approx(earlier.end) or not waits_for_data
            assert later.start <= earlier.end + 1e-9
        longer_paths += len(path) > 1
    assert longer_paths > 20


def test_the_timeline_is_a_schedule() -> None:
    doc = all_right()["looped-3-slow"]
    bars = timeline(schedule_of(doc))
    computed = [bar for bar in bars if bar.receiver is None]
    assert len(computed) == 6 * 3 * 2
    for rank in range(3):
        times = sorted((bar.start, bar.end) for bar in computed if bar.rank == rank)
        for (_, end), (start_of_next, _) in itertools.pairwise(times):
            assert end <= start_of_next
    for message in bars:
        if message.receiver is not None:
            shortest = 9 if {message.rank, message.receiver} == {0, 1} else 0
            assert message.end >= message.start + shortest


def test_no_right_schedule_beats_the_lower_bound() -> None:
    rng = random.Random(11)
    tight = 0
    for _ in range(300):
        doc = pipeline_mutant(rng)
        doc["situation"]["sends"] = "buffered"
        report = report_of(doc)
        if report.measures is not None and report.results["memory"].verdict is Verdict.PROVED:
            assert report.measures.makespan >= report.measures.lower_bound, json.dumps(doc)
            tight += report.measures.makespan == report.measures.lower_bound
    assert tight > 10


def test_the_lower_bound_in_numbers() -> None:
    """Where ranks can hold nine activations, which is no limit to speak of, and two."""
    for name, bound_with_nine, bound_with_two in (
        ("gpipe", 113, 133),
        ("1f1b-slow", 185, 300),
        ("vee", 146, 146),
    ):
        for memory, bound in ((9, bound_with_nine), (2, bound_with_two)):
            doc = all_right()[name]
            doc["situation"]["memory"] = [memory] * len(doc["programs"])
            schedule = schedule_of(doc)
            assert lower_bound(schedule, Costs.of(schedule.instance)) == bound


def test_lowering_keeps_the_times_and_is_safe_in_order() -> None:
    rng = random.Random(2)
    for _ in range(60):
        doc = _random_right(rng)
        doc["situation"]["sends"] = "rendezvous"
        schedule = schedule_of(doc)
        if schedule.has_messages:
            continue
        complete = lowered(schedule, Costs.of(schedule.instance))
        report = check(complete)
        assert report.measures == check(schedule).measures
        verdicts = {result.verdict for name, result in report.results.items() if name != "memory"}
        assert verdicts == {Verdict.PROVED}
        assert lowered(complete, Costs.of(schedule.instance)) == complete


PLANNED = [
    Bar("0F0", 0, 0, 8),
    Bar("0SEND_F0", 0, 8, 38, 1),
    Bar("1F0", 1, 38, 46),
    Bar("1I0", 1, 46, 46),
]
MEASURED = [Bar("0F0", 0, 0.5, 8.5), Bar("1F0", 1, 40, 92)]
SHEETS = [Sheet("planned", PLANNED), Sheet("measured <now>", MEASURED)]


def test_bars_and_messages_lie_where_their_times_say() -> None:
    root = ET.fromstring(svg(SHEETS, "ms"))
    scale = WIDTH / 92
    bars = {}
    for rect in root.findall("{*}rect"):
        for title in rect.findall("{*}title"):
            bars[title.text] = (float(rect.get("x", 0)), float(rect.get("width", 0)))
    assert list(bars) == [
        "0F0, rank 0: 0 to 8",
        "1F0, rank 1: 38 to 46",
        "0F0, rank 0: 0.5 to 8.5",
        "1F0, rank 1: 40 to 92",
    ]  # what takes no time is not drawn
    for text, (x, width) in bars.items():
        begin, end = map(float, str(text).split(": ")[1].split(" to "))
        assert abs(x - LEFT - begin * scale) < 0.01
        assert abs(width - (end - begin) * scale) < 0.01
    messages = [line for line in root.findall("{*}line") if line.find("{*}title") is not None]
    assert len(messages) == 1
    assert abs(float(messages[0].get("x2", 0)) - LEFT - 38 * scale) < 0.01
    texts = [element.text for element in root.findall("{*}text")]
    for text in ("planned", "measured <now>", "rank 1", "46", "92", "time (ms)"):
        assert text in texts


def test_a_sheet_without_bars() -> None:
    assert "empty" in svg([Sheet("empty", [])])


def test_trace() -> None:
    events = json.loads(trace(SHEETS, microseconds=1000))["traceEvents"]
    computed = [
        (e["pid"], e["tid"], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"
    ]
    assert (0, 1, "1F0", 38000, 8000) in computed
    assert (1, 1, "1F0", 40000, 52000) in computed
    arrows = {e["ph"]: (e["tid"], e["ts"]) for e in events if e.get("cat") == "SEND_F"}
    assert arrows["s"] == (0, 8000)
    assert arrows["f"] == (1, 38000)
    names = {e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {"planned", "measured <now>"}
