"""A run's page: traces are read back as they were written, and late ranks are shown as such."""

from __future__ import annotations

import json
import math
import re
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from latecomer.command import app
from latecomer.runtime.telemetry.export import trace, write_trace
from latecomer.runtime.telemetry.origin import Origin
from latecomer.runtime.telemetry.page.command import page_of
from latecomer.runtime.telemetry.page.model import model
from latecomer.runtime.telemetry.page.read import read_trace
from latecomer.runtime.telemetry.records import NATIVE, Rank, Record, Round, Stage
from latecomer.runtime.telemetry.summary import summarize
from latecomer.verify.errors import ArgumentError, FormatError
from latecomer.verify.report.trace_events import document
from latecomer.verify.running import run
from latecomer.verify.viewer.part import parse_part

ROOT = Path(__file__).parents[3]
WAY = "one late, k = 4"
REASON = '</script><img src=x> rank 2 is "missing"'


ORIGIN = Origin(
    watch="w",
    rank=2,
    ranks=4,
    host="<node7>",
    process=1,
    job="night run",
    version="0.1.0",
    began="2026-11-25T23:16:33.051+00:00",
    began_unix_s=1795648593.051,
    clock_s=5.0,
)


def _ranks(operations=6, size=4, late=2, by_s=0.25):
    """Rank ``late`` comes late to every operation but each third, and the others begin without."""
    ranks = []
    for rank in range(size):
        records = []
        for number in range(operations):
            has_late_rank = number % 3 != 2
            begin_s = 10.0 + number
            lateness_s = by_s if has_late_rank and rank == late else 0.001 * rank
            arrived_s = begin_s + lateness_s
            record = Record(
                operation=number,
                rank=rank,
                arrived_s=arrived_s,
                decided_s=max(arrived_s, begin_s + 0.01),
                done_s=begin_s + by_s + 0.1,
                uncertainty_s=0.0001,
                bytes=2**20,
                way=NATIVE,
                late=(),
                reason="all have come",
            )
            if has_late_rank:
                record = replace(record, way=WAY, late=(late,), reason=REASON)
            records.append(record)
        rounds = (Round(0, "completion", 1, 10.3, 10.31),)
        ranks.append(Rank(rank, tuple(records), rounds))
    return ranks


def test_a_trace_is_read_back_as_it_was_written(tmp_path):
    stage = Stage(operation=1, stage=2, began_s=11.25, ended_s=11.5, end="early", due=100, lost=30)
    written = _ranks()
    written[1] = replace(written[1], stages=(stage,))
    written[2] = replace(written[2], origin=ORIGIN)
    written[3] = replace(written[3], records=written[3].records[:-1])

    write_trace(written, tmp_path / "trace.json")
    read = read_trace(tmp_path / "trace.json")

    assert [rank.rank for rank in read] == [0, 1, 2, 3]
    for written_rank, read_rank in zip(written, read, strict=True):
        for before, after in zip(written_rank.records, read_rank.records, strict=True):
            _same_record(before, after)
        assert [(r.phase, r.round) for r in read_rank.rounds] == [("completion", 1)]
    assert [rank.origin for rank in read] == [None, None, ORIGIN, None]
    (read_stage,) = read[1].stages
    assert read_stage.operation == 1
    assert read_stage.stage == 2
    assert read_stage.end == "early"
    assert read_stage.lost == 30
    assert read_stage.ended_s == pytest.approx(1.5)

    summary = summarize(written, 4)
    summary_of_read = summarize(read, 4)
    lines = [line.rank for line in summary.lines]
    assert [line.rank for line in summary_of_read.lines] == lines
    assert summary_of_read.ways == summary.ways
    assert summary_of_read.reasons == summary.reasons


def _same_record(written, read):
    """All of it but that a trace begins at time 0."""
    for name in ("operation", "rank", "bytes", "way", "late", "reason"):
        assert getattr(read, name) == getattr(written, name)
    for name in ("arrived_s", "decided_s", "done_s"):
        assert getattr(read, name) == pytest.approx(getattr(written, name) - 10, abs=2e-9)
    assert read.uncertainty_s == pytest.approx(written.uncertainty_s)


times = st.lists(st.floats(0, 5), min_size=3, max_size=3)


@given(st.lists(times, min_size=1, max_size=6))
@settings(deadline=None, max_examples=40)
def test_the_model_has_every_arrival(arrivals):
    ranks = []
    for rank in range(3):
        records = []
        for number, row in enumerate(arrivals):
            record = Record(
                operation=number,
                rank=rank,
                arrived_s=row[rank],
                decided_s=row[rank],
                done_s=math.nan,
                uncertainty_s=0.0,
                bytes=8,
                way=NATIVE,
                late=(),
                reason="",
            )
            records.append(record)
        ranks.append(Rank(rank, tuple(records)))

    page_model = model("t", {"t": ranks}, None)

    assert len(page_model["operations"]) == len(arrivals)
    for operation, row in zip(page_model["operations"], arrivals, strict=True):
        latenesses_s = [arrived_s - min(row) for arrived_s in row]
        assert operation["arrived"] == pytest.approx(latenesses_s, abs=1e-6)
        assert operation["done"] == [None] * 3
    json.dumps(page_model, allow_nan=False)


def test_the_page_says_which_job_where_and_when():
    ranks = _ranks()
    ranks[1] = replace(ranks[1], origin=ORIGIN)
    ranks[2] = replace(ranks[2], origin=replace(ORIGIN, host="node8", began_unix_s=1795648600.0))
    made = model("run", {"a": ranks, "old": _ranks()}, None, reload_s=2.0)
    first, second = made["about"]
    assert first == (
        "a: job night run, 4 ranks on <node7>, node8, watched since 2026-11-25 23:16:33 UTC, "
        "latecomer 0.1.0"
    )
    assert second.startswith("old: date, hosts and job are not in it")
    assert made["reload"] == 2.0
    unnamed = [replace(ranks[1], origin=replace(ORIGIN, job=""))]
    assert "a job without a name, 4 ranks" in model("run", {"a": unnamed}, None)["about"][0]


def test_the_rank_that_keeps_others_waiting_is_named_and_long_runs_are_cut():
    page_model = model("run", {"a": _ranks(), "b": _ranks(3)}, None)
    assert page_model["headline"].startswith("9 operations of 4 ranks: rank 2 wasted most, ")
    assert [operation["block"] for operation in page_model["operations"]] == [0] * 6 + [1] * 3
    assert page_model["operations"][0]["late"] == [2]
    assert dict(page_model["tables"][0]["ways"]) == {f"{WAY}, late: 2": 4, NATIVE: 2}

    part = model("run", {"a": _ranks()}, parse_part("2-3", "--operations"))
    assert [operation["number"] for operation in part["operations"]] == [2, 3]
    assert "Shown are operations 2 to 3 of 6" in part["cut"]
    with pytest.raises(ArgumentError, match=r"'5-6': must be operations of 0 \.\. 5"):
        model("run", {"a": _ranks()}, parse_part("5-6", "--operations"))
    quiet = model("run", {"a": [Rank(0, _ranks()[0].records)]}, None)
    assert "no rank wasted anything" in quiet["headline"]


@pytest.mark.parametrize("text", ["", "[]", '{"traceEvents": []}', '{"traceEvents": [{"ph": 1}]}'])
def test_what_is_no_trace_is_refused(tmp_path, text):
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(FormatError, match=r"t\.json: .*no trace of latecomer\.watch"):
        read_trace(tmp_path / "t.json")


def test_the_command_writes_a_page(tmp_path, monkeypatch, capsys):
    (tmp_path / "trace.json").write_text(document(trace(_ranks())))
    monkeypatch.chdir(tmp_path)
    for arguments, code in [(("trace.json",), 0), (("no.json",), 2)]:
        monkeypatch.setattr(sys, "argv", ["latecomer", "watch", "--html", "run.html", *arguments])
        with pytest.raises(SystemExit) as ended:
            run(app)
        assert (ended.value.code or 0) == code

    printed = capsys.readouterr()
    headline = "run.html: 6 operations of 4 ranks: rank 2 wasted most, "
    assert printed.out.startswith(headline)
    assert "no.json" in printed.err

    page = (tmp_path / "run.html").read_text()
    assert page.count("</script>") == 2
    assert "<img" not in page


def test_wasted_means_the_same_on_the_page_and_in_the_docs(browser, tmp_path):
    path = tmp_path / "run.html"
    path.write_text(page_of(model("run", {"a": _ranks()}, None)))
    browser.open(path)
    texts = {"page": browser.run("return document.getElementById('ranks').innerText")}
    for name in ("howto/read-a-report.md", "reference/watch.md", "glossary.md"):
        texts[name] = (ROOT / "docs" / name).read_text()
    for name, text in texts.items():
        words = " ".join(text.lower().split())
        assert re.search(r"all other(s| ranks) together would have waited for", words), name
        assert "had every operation waited for all ranks" in words, name


DARK_AT = """
const { timeline } = viewer.view, canvas = timeline.element.querySelector("canvas");
const x = Math.round(timeline.x(timeline.marks[0].at));
const copy = Object.assign(document.createElement("canvas"), { width: canvas.width });
copy.height = canvas.height;
const ctx = copy.getContext("2d", { willReadFrequently: true });
ctx.drawImage(canvas, 0, 0);
const dark = [];
for (let y = Math.round(timeline.y(0)); y < timeline.y(0) + timeline.height; y++) {
  const { data } = ctx.getImageData(x - 1, y, 3, 1);
  dark.push([0, 4, 8].some((at) => data[at] + data[at + 1] + data[at + 2] < 3 * 40));
}
return dark;
"""
"""Whether the line of the last arrival is dark, for each pixel within the first rank's row."""


def test_the_last_arrival_is_dashed_in_the_legend_and_over_the_bars(browser, tmp_path):
    path = tmp_path / "run.html"
    path.write_text(page_of(model("run", {"a": _ranks()}, None)))
    browser.open(path)
    style = browser.run(
        "const entry = [...document.querySelectorAll('.legend li')]"
        ".find((li) => li.innerText.includes('the last arrival'));"
        "return getComputedStyle(entry.querySelector('i')).borderTopStyle"
    )
    assert style == "dashed"
    assert browser.run("return viewer.view.timeline.marks[0].at") == pytest.approx(250.0)

    dark = browser.run(DARK_AT)
    switches = sum(one != other for one, other in pairwise(dark))
    assert switches >= 4  # dashes, not one line and not nothing


def test_who_was_late_is_shown_in_a_browser(browser, tmp_path):
    path = tmp_path / "run.html"
    ranks = _ranks()
    ranks[1] = replace(ranks[1], origin=ORIGIN)
    path.write_text(page_of(model("run", {"a": ranks}, None)))

    def text_of(selector):
        return browser.run(f"return document.querySelector('{selector}').innerText")

    backgrounds = set()
    for theme in ("light", "dark"):
        browser.open(path, theme=theme)
        backgrounds.add(browser.run("return getComputedStyle(document.body).backgroundColor"))
        assert "job night run, 4 ranks on <node7>, watched since 2026-11-25" in text_of("#head")
        browser.press("\ue011")  # home
        assert "Operation 0: rank 2 came last, by 247 ms" in text_of(".now")
        assert f"ran {WAY}, late: 2; {REASON}" in text_of(".now")

        browser.press("\ue014", "\ue014")  # right
        assert "ran native; all have come" in text_of(".now")
        assert text_of("#ranks tbody tr").startswith("rank 2")

        browser.press("\ue010")  # end
        assert browser.run("return viewer.player.position") == 5
    assert len(backgrounds) == 2

    browser.open(path, size=(390, 844))
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
