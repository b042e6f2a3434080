"""Pages in a real browser: they load in silence, step to the right end, and show what is wrong."""

import json

import numpy as np
import pytest
from msgspec.structs import replace

from latecomer.synth import standard
from latecomer.synth.export.msccl_xml import encode
from latecomer.verify.asynchronous.msccl import verify_xml
from latecomer.verify.core.interpreter import run
from latecomer.verify.core.semantics import Counts
from latecomer.verify.core.verdict import Verdict
from tests.verify import builders
from tests.verify.asynchronous import planted
from tests.verify.asynchronous.test_mscclpp import packets
from tests.verify.asynchronous.test_teccl import RING, solution
from tests.verify.pipeline import documents as pipelines
from tests.verify.viewer.pages import model_of_document, model_of_text

pytestmark = pytest.mark.browser

LEFT = "\ue012"
RIGHT = "\ue014"
HOME = "\ue011"
END = "\ue010"
SPACE = " "
STRAGGLER = builders.straggler(8)
DOUBLE = builders.document(
    2, 1, [("all", [], [builders.moves("0+1:0 1+0:0"), builders.moves("0+1:0")])]
)
COUNTS = """
const { holdings, model } = window.viewer, [low, high] = model.shown, all = [];
holdings.go(arguments[0]);
for (let rank = 0; rank < model.ranks; rank++)
  for (let chunk = low; chunk < high; chunk++)
    for (let of = 0; of < model.ranks; of++) all.push(holdings.count(rank, chunk, of));
return all.join("");
"""
DRAWN = """
const canvas = document.querySelectorAll(".surface canvas")[arguments[0]];
const copy = Object.assign(document.createElement("canvas"), { width: canvas.width });
copy.height = canvas.height;
const ctx = copy.getContext("2d", { willReadFrequently: true });
ctx.drawImage(canvas, 0, 0);
const { data } = ctx.getImageData(0, 0, canvas.width, canvas.height);
const style = getComputedStyle(document.documentElement);
const wanted = style.getPropertyValue("--" + arguments[1]).trim();
const [r, g, b] = [1, 3, 5].map((i) => parseInt(wanted.slice(i, i + 2), 16));
let count = 0;
for (let i = 0; i < data.length; i += 4) {
  const apart = [r, g, b].reduce((sum, part, at) => sum + Math.abs(data[i + at] - part), 0);
  count += data[i + 3] > 200 && apart < 24;
}
return count;
"""
"""Pixels of a canvas that have (nearly) a tone of the style."""


def deadlocked():
    for fault in planted.faults("direct", encode(standard.direct(4))):
        result = verify_xml(fault.data).results["deadlock_free"]
        if result.verdict is Verdict.REFUTED:
            return fault.data
    raise AssertionError


def now(browser):
    return browser.run("return document.querySelector('.now').innerText")


def held_by_verify(document, rounds):
    """The counts of verify's own interpreter after so many rounds, rank, chunk, contribution."""
    schedule = builders.schedule_of(document)
    phases = []
    rounds_left = rounds
    for phase in schedule.phases:
        phases.append(replace(phase, rounds=phase.rounds[: max(0, rounds_left)]))
        rounds_left -= len(phase.rounds)
    cut = replace(schedule, phases=tuple(phases))
    state = run(cut, Counts(), 0, schedule.chunks)
    bits = np.unpackbits(state, axis=3, count=schedule.ranks)
    return "".join(map(str, bits.sum(2).ravel().tolist()))


@pytest.mark.parametrize(
    "document",
    [
        STRAGGLER,
        builders.two_late(6),
        builders.direct(5, 4),
        builders.broken(builders.straggler(5)),
        DOUBLE,
    ],
    ids=["straggler", "two late", "incast", "missing", "double"],
)
def test_the_page_holds_what_verify_says_at_every_moment(browser, page, document):
    browser.open(page(model_of_document(document)))
    rounds = len(browser.run("return viewer.model.rounds"))
    forwards = [browser.run(COUNTS, position) for position in range(rounds + 1)]
    assert forwards == [held_by_verify(document, position) for position in range(rounds + 1)]
    backwards = [browser.run(COUNTS, position) for position in range(rounds, -1, -1)]
    assert backwards == forwards[::-1]


def test_stepping_to_the_end_shows_every_rank_complete(browser, page):
    browser.open(page(model_of_document(STRAGGLER)))
    rounds = len(browser.run("return viewer.model.rounds"))
    assert "0 of 8 ranks complete" in now(browser)
    for _ in range(rounds):
        browser.press(RIGHT)
    assert "all 8 ranks complete" in now(browser)
    assert browser.run("return location.hash") == f"#{rounds}"
    browser.press(LEFT)
    assert "all 8 ranks complete" not in now(browser)
    browser.press(HOME)
    assert "Start" in now(browser)
    browser.press(END)
    assert "all 8 ranks complete" in now(browser)
    assert browser.run("return document.querySelector('input[type=range]').ariaValueText")


def test_space_plays_and_pauses(browser, page):
    browser.open(page(model_of_document(STRAGGLER)), still=False)
    browser.run("viewer.player.speed.value = 60")
    browser.press(SPACE)
    browser.wait_for("viewer.player.position === viewer.player.length && !viewer.player.playing")
    assert "all 8 ranks complete" in now(browser)
    browser.run("viewer.player.speed.value = 1")
    browser.press(SPACE)
    browser.wait_for("viewer.player.position > 0")
    browser.press(SPACE)
    assert browser.run("return viewer.player.playing") is False


def test_a_refuted_file_opens_at_the_faulty_transfer(browser, page):
    browser.open(page(model_of_document(DOUBLE)))
    assert "all round 1" in now(browser).lower()
    assert "exactly_once fails" in browser.run("return document.getElementById('head').innerText")
    assert browser.run("return document.querySelector('.badge').innerText").lower() == "refuted"
    shown = browser.run("return document.querySelector('#transfers li').innerText")
    assert "0 → 1" in shown
    assert "fault" in browser.run("return document.querySelector('#transfers li i').style.cssText")
    for canvas in range(3):  # the ring, the rounds, the holdings
        assert browser.run(DRAWN, canvas, "fault") > 50
    browser.press(HOME)
    assert browser.run(DRAWN, 0, "fault") == 0
    browser.press("f")
    assert browser.run(DRAWN, 0, "fault") > 50
    browser.press(HOME)
    browser.run("document.querySelector('.jump').click()")
    browser.settle()
    assert browser.run("return [viewer.player.position, viewer.view.followed]") == [2, 0]


def test_what_never_arrives_is_shown_at_the_end(browser, page):
    doc = builders.straggler(4)
    for phase in doc["phases"]:
        for moves in phase["rounds"]:
            moves[:] = [move for move in moves if (move[1], move[2]) != (0, 2)]
    model = model_of_document(doc)
    assert [fault["faulty"] for fault in model["faults"]] == [[]] * len(model["faults"])
    browser.open(page(model))
    assert "3 of 4 ranks complete" in now(browser)
    assert browser.run(DRAWN, 2, "fault") > 50  # around rank 0's chunk 2
    browser.press(HOME)
    assert browser.run(DRAWN, 2, "fault") == 0
    browser.run("document.querySelector('.jump').click()")
    assert browser.run("return viewer.view.followed") == 2


def test_a_chunk_can_be_followed(browser, page):
    browser.open(page(model_of_document(STRAGGLER)))
    transfers_of_chunk = 0
    for phase in STRAGGLER["phases"]:
        for moves in phase["rounds"]:
            transfers_of_chunk += sum(move[2] == 3 for move in moves)
    browser.run(
        "const field = document.getElementById('follow');"
        "field.value = 3; field.dispatchEvent(new Event('input'))"
    )
    listed = browser.run("return document.querySelectorAll('#transfers li').length")
    assert listed == transfers_of_chunk
    browser.run("document.querySelectorAll('#transfers li button')[5].click()")
    assert browser.run("return viewer.player.position") > 0
    browser.run("document.activeElement.blur()")
    browser.press("\ue00c")  # escape
    assert browser.run("return viewer.view.followed") is None


NEIGHBOURS = """
const { ring } = viewer.view, geometry = ring.layout();
return [...Array(viewer.model.ranks).keys()].map((rank) => {
  const other = (rank + 1) % viewer.model.ranks;
  const there = ring.curve(rank, other, geometry), back = ring.curve(other, rank, geometry);
  const points = (curve) => [...Array(21).keys()].map((step) =>
    curve.at(curve.from + (curve.to - curve.from) * step / 20));
  const far = (points, [x, y]) => Math.min(...points.map(([a, b]) => Math.hypot(a - x, b - y)));
  return Math.min(...points(there).map((point) => far(points(back), point)));
});
"""
"""For each rank how near its arrow to the next rank comes to the arrow back."""
NAMES_APART = """
const { packets } = viewer.view.ring;
return packets.flatMap((one, i) => packets.slice(i + 1).map((other) =>
  Math.hypot(one.where[0] - other.where[0], one.where[1] - other.where[1])
    - one.size - other.size));
"""
"""Room between each two names of chunks on the arrows of the round shown."""


@pytest.mark.parametrize("ranks", [4, 8, 16])
def test_arrows_of_neighbours_do_not_touch(browser, page, ranks):
    browser.open(page(model_of_document(builders.straggler(ranks))), size=(1280, 900))
    assert min(browser.run(NEIGHBOURS)) >= 11  # pixels


@pytest.mark.parametrize("ranks", [8, 16])
def test_the_late_rank_and_its_neighbour_exchange_in_sight(browser, page, ranks):
    model = model_of_document(builders.straggler(ranks))
    late = ranks - 1
    exchanges = []
    for number, flat in enumerate(model["rounds"]):
        ways = {tuple(flat[i : i + 2]) for i in range(0, len(flat), 4)}
        if {(0, late), (late, 0)} <= ways:
            exchanges.append(number)
    assert exchanges
    for size in ((1280, 900), (800, 900)):
        browser.open(page(model), size=size)
        for number in exchanges:
            browser.run("viewer.player.go(arguments[0])", number + 1)
            browser.settle()
            assert min(browser.run(NAMES_APART)) >= 0


PAGES = {
    "straggler": lambda: model_of_document(STRAGGLER),
    "incast": lambda: model_of_document(builders.direct(6, 3)),
    "not well formed": lambda: model_of_document(
        builders.document(4, 3, [("p", [], [[[0, 9, 0, "copy"]]])])
    ),
    "no rounds": lambda: model_of_document(builders.document(3, 2, [])),
    "pipeline": lambda: model_of_document(
        pipelines.document(
            pipelines.zero_bubble(4, 6), 6, links=[{"between": [1, 2], "latency": 9}]
        )
    ),
    "wrong pipeline": lambda: model_of_document(
        pipelines.document([["0F0", "0B0", "0F1", "0B1"], ["1F1", "1B1", "1F0", "1B0"]], 2)
    ),
    "blocks": lambda: model_of_text("a.xml", planted.bases()["straggler 5"]),
    "deadlock": lambda: model_of_text("a.xml", deadlocked()),
    "plan": lambda: model_of_text("plan.json", json.dumps(packets(3)).encode()),
    "flows": lambda: model_of_text("solution.json", solution(*RING)),
    "early flow": lambda: model_of_text("solution.json", solution(*RING[1:])),
}
LUMINANCE = """
const channel = (c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
const style = getComputedStyle(document.documentElement);
const part = (name, i) => parseInt(style.getPropertyValue("--" + name).trim().substr(i, 2), 16);
const bright = (name) => 0.2126 * channel(part(name, 1)) + 0.7152 * channel(part(name, 3))
  + 0.0722 * channel(part(name, 5));
const contrast = (...names) => {
  const [low, high] = names.map(bright).sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
};
return [...["ink", "soft", "faint", "fault"].map((name) => [name, contrast(name, "panel"), 4.5]),
  ...["helper", "late", "whole", "accent"].map((name) => [name, contrast(name, "panel"), 3])]
  .filter(([, found, least]) => found < least);
"""
UNNAMED = """
return [...document.querySelectorAll("button, input, select, canvas, [tabindex='0']")]
  .filter((e) => !(e.ariaLabel || e.textContent.trim() || e.labels?.[0]?.textContent.trim()))
  .map((e) => e.outerHTML.slice(0, 90));
"""


@pytest.mark.parametrize("name", PAGES)
def test_every_page_is_drawn_in_both_themes_and_narrow(browser, page, name):
    path = page(PAGES[name]())
    grounds = set()
    for theme in ("light", "dark"):
        browser.open(path, theme=theme)
        grounds.add(browser.run("return getComputedStyle(document.body).backgroundColor"))
        assert browser.run(LUMINANCE) == []
        assert browser.run(DRAWN, 0, "ink") + browser.run(DRAWN, 0, "soft") > 0
        browser.press(HOME, RIGHT, END)
        assert browser.complaints() == []
    assert len(grounds) == 2
    assert browser.run(UNNAMED) == []
    browser.run("document.getElementById('theme').click()")
    assert browser.run("return document.documentElement.dataset.theme") == "light"
    browser.run("localStorage.clear()")
    browser.open(path, size=(390, 844))
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth")


def test_64_ranks_step_through_all_rounds_in_few_frames(browser, page):
    model = model_of_document(builders.straggler(64))
    browser.open(page(model), still=False)
    browser.run("viewer.player.speed.value = 60; window.before = viewer.frames()")
    browser.press(SPACE)
    browser.wait_for("viewer.player.position === viewer.player.length && !viewer.player.playing")
    assert "all 64 ranks complete" in now(browser)
    frames = browser.run("return viewer.frames() - before")
    assert len(model["rounds"]) < frames < 12 * len(model["rounds"])  # 3 surfaces, and motion


def test_1024_ranks_are_cut_and_answer(browser, page):
    model = model_of_document(builders.recursive_doubling(1024, 64))
    assert model["shown"] == [0, 5]
    browser.open(page(model))
    assert "Shown are chunks 0 to 4 of 64" in browser.run("return document.body.innerText")
    browser.press(END)
    assert "all 1024 ranks complete in these chunks" in now(browser)


TEXTS = "return [...document.querySelectorAll(arguments[0])].map((e) => e.innerText)"
LEGEND = """
const entry = [...document.querySelectorAll("#timeline .legend li")]
  .find((li) => li.innerText.includes(arguments[0]));
return getComputedStyle(entry.querySelector("i")).borderTopStyle;
"""
LABELS = """
const { timeline } = viewer.view;
return timeline.bars.filter(({ tone }) => tone === arguments[0])
  .map((bar) => timeline.labelOf(bar)?.words ?? null);
"""
WORST_CONTRAST = """
return Math.min(...["forward", "input", "weight", "fused"].flatMap((tone) =>
  [1, OTHERS_OPACITY, 0.3].map((opacity) =>
    contrast(partsOf(readableOn(tone, opacity)), painted(tone, opacity)))));
"""


def eight_stages():
    """24 microbatches, which is as many as a page 1280 pixels wide has to have numbers for."""
    links = [{"between": [6, 7], "latency": 30}]
    doc = pipelines.document(pipelines.zero_bubble(8, 24), 24, links=links)
    return model_of_document(doc)


def test_a_pipelines_numbers_are_there_and_readable(browser, page):
    path = page(eight_stages())
    for theme in ("light", "dark"):
        browser.open(path, theme=theme, size=(1280, 900))
        assert browser.run(WORST_CONTRAST) >= 4.5

    numbers = browser.run(LABELS, "forward")
    while None in numbers:
        browser.press("+")
        assert browser.run("return viewer.view.timeline.zoom") < 5
        numbers = browser.run(LABELS, "forward")
    assert set(numbers) == {str(number) for number in range(24)}
    tip = browser.run("return viewer.view.tell(viewer.view.timeline.bars[0])")
    assert tip.startswith("0F0: forward\nstage 0, microbatch 0, rank 0")


def test_a_pipelines_lines_differ_and_its_links_are_named(browser, page):
    browser.open(page(eight_stages()), size=(1280, 900))
    assert browser.run(LEGEND, "slack") == "dashed"
    assert browser.run(LEGEND, "activations held") == "solid"
    heads = browser.run(TEXTS, "#links th")
    assert [head.split("\n")[0] for head in heads] == [
        "link",
        "messages",
        "slack",
        "makespan at +extra latency",
    ]
    assert all("unit of time" in head for head in heads[2:])
    row = browser.run("return document.querySelector('#links tbody tr:last-child').innerText")
    assert row.startswith("6-7\t48\t")
    assert " at +" in row
    assert "for each +1" in row


def test_blocks_are_grouped_by_rank_and_fold(browser, page):
    model = PAGES["blocks"]()
    browser.open(page(model))
    ranks = sorted({row["rank"] for row in model["rows"]})
    headings = "viewer.view.timeline.rows.filter((row) => row.heading)"
    assert browser.run(f"return {headings}.map((row) => row.rank)") == ranks
    rows = "return viewer.view.timeline.rows.length"
    assert browser.run(rows) == len(model["rows"]) + len(ranks)
    assert f"of {len(model['steps'])} steps shown done" in now(browser)

    browser.run("viewer.view.timeline.click(20, viewer.view.timeline.y(0) + 1)")
    of_first = sum(row["rank"] == ranks[0] for row in model["rows"])
    assert browser.run(rows) == len(model["rows"]) + len(ranks) - of_first
    browser.run("document.getElementById('fold').click()")
    assert browser.run(rows) == len(model["rows"]) + len(ranks)
    browser.run("document.getElementById('fold').click()")
    assert browser.run(rows) == len(ranks)
    browser.press(HOME, END)
    assert f"of {len(model['steps'])} steps shown done" in now(browser)


@pytest.mark.parametrize("name", ["blocks", "deadlock", "plan"])
def test_the_words_of_steps_are_on_the_page(browser, page, name):
    model = PAGES[name]()
    browser.open(page(model))
    terms = browser.run(TEXTS, "#words dt")
    notation = [term for term, _ in model["words"]["notation"]]
    assert terms == [*model["words"]["operations"], *notation]


def test_a_fault_in_a_folded_rank_is_opened(browser, page):
    browser.open(page(PAGES["deadlock"]()))
    browser.run("document.getElementById('fold').click()")
    browser.run("document.querySelector('.jump').click()")
    browser.settle()
    assert browser.run("return viewer.view.timeline.bars.some((bar) => bar.fault && !bar.isFolded)")


def test_a_pipelines_critical_path_and_a_deadlocks_cycle_are_drawn(browser, page):
    browser.open(page(PAGES["pipeline"]()))
    assert "passes done" in now(browser)
    assert browser.run(DRAWN, 0, "forward") > 500
    assert browser.run("return document.querySelectorAll('#links tbody tr').length") == 3
    browser.press(HOME)
    assert "Time 0 of" in now(browser)
    browser.open(page(PAGES["deadlock"]()))
    assert browser.run(DRAWN, 0, "fault") > 100
    assert "never happen" in now(browser)
    browser.run("document.querySelector('.jump').click()")
    browser.settle()
    assert "waits for" in browser.run("return document.getElementById('step').innerText")
