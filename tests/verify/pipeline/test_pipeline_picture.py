"""Pictures of timelines: every bar is there, where its times say, on one scale for all sheets."""

import json
import xml.etree.ElementTree as ET

from verify.pipeline import Bar
from verify.pipeline.picture import LEFT, WIDTH, Sheet, svg, trace

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
    bars = {
        title.text: (float(rect.get("x", 0)), float(rect.get("width", 0)))
        for rect in root.findall("{*}rect")
        for title in rect.findall("{*}title")
    }
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
    messages = [x for x in root.findall("{*}line") if x.find("{*}title") is not None]
    assert len(messages) == 1
    assert abs(float(messages[0].get("x2", 0)) - LEFT - 38 * scale) < 0.01
    texts = [x.text for x in root.findall("{*}text")]
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
