"""A run's page: traces are read back as they were written, and late ranks are shown as such."""

from __future__ import annotations

import json
import math
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from runtime.__main__ import app
from runtime.telemetry.export import trace, write_trace
from runtime.telemetry.origin import Origin
from runtime.telemetry.page.command import page_of
from runtime.telemetry.page.model import model
from runtime.telemetry.page.read import read_trace
from runtime.telemetry.records import NATIVE, Rank, Record, Round, Stage
from runtime.telemetry.summary import summarize
from verify.errors import ArgumentError, FormatError
from verify.report.trace_events import document
from verify.running import run
from verify.viewer.part import parse_part

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
            slow = number % 3 != 2
            begin_s = 10.0 + number
            arrived_s = begin_s + (by_s if slow and rank == late else 0.001 * rank)
            times = arrived_s, max(arrived_s, begin_s + 0.01), begin_s + by_s + 0.1
            how = (WAY, (late,), REASON) if slow else (NATIVE, (), "all have come")
            records.append(Record(number, rank, *times, 0.0001, 2**20, *how))
        rounds = (Round(0, "completion", 1, 10.3, 10.31),)
        ranks.append(Rank(rank, tuple(records), rounds))
    return ranks


def test_a_trace_is_read_back_as_it_was_written(tmp_path):
    stage = Stage(1, 2, 11.25, 11.5, "early", 100, 30)
    ranks = _ranks()
    ranks[1] = replace(ranks[1], stages=(stage,))
    ranks[3] = replace(ranks[3], records=ranks[3].records[:-1])
    ranks[2] = replace(ranks[2], origin=ORIGIN)
    write_trace(ranks, tmp_path / "trace.json")
    found = read_trace(tmp_path / "trace.json")
    assert [rank.rank for rank in found] == [0, 1, 2, 3]
    for before, after in zip(ranks, found, strict=True):
        for one, other in zip(before.records, after.records, strict=True):
            for name in ("operation", "rank", "bytes", "way", "late", "reason"):
                assert getattr(one, name) == getattr(other, name)
            for name in ("arrived_s", "decided_s", "done_s"):
                assert getattr(other, name) == pytest.approx(getattr(one, name) - 10, abs=2e-9)
            assert other.uncertainty_s == pytest.approx(one.uncertainty_s)
        assert [(r.phase, r.round) for r in after.rounds] == [("completion", 1)]
    assert [rank.origin for rank in found] == [None, None, ORIGIN, None]
    (read,) = found[1].stages
    assert (read.operation, read.stage, read.end, read.lost) == (1, 2, "early", 30)
    assert read.ended_s == pytest.approx(1.5)
    written = summarize(ranks, 4)
    again = summarize(found, 4)
    assert [line.rank for line in again.lines] == [line.rank for line in written.lines]
    assert (again.ways, again.reasons) == (written.ways, written.reasons)


times = st.lists(st.floats(0, 5), min_size=3, max_size=3)


@given(st.lists(times, min_size=1, max_size=6))
@settings(deadline=None, max_examples=40)
def test_the_model_has_every_arrival(arrivals):
    ranks = [
        Rank(
            r,
            tuple(
                Record(n, r, row[r], row[r], math.nan, 0.0, 8, NATIVE, (), "")
                for n, row in enumerate(arrivals)
            ),
        )
        for r in range(3)
    ]
    made = model("t", {"t": ranks}, None)
    assert len(made["operations"]) == len(arrivals)
    for operation, row in zip(made["operations"], arrivals, strict=True):
        assert operation["arrived"] == pytest.approx([a - min(row) for a in row], abs=1e-6)
        assert operation["done"] == [None] * 3
    json.dumps(made, allow_nan=False)


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
    made = model("run", {"a": _ranks(), "b": _ranks(3)}, None)
    assert made["headline"].startswith("9 operations of 4 ranks: rank 2 kept the others")
    assert [operation["block"] for operation in made["operations"]] == [0] * 6 + [1] * 3
    assert made["operations"][0]["late"] == [2]
    assert dict(made["tables"][0]["ways"]) == {f"{WAY}, late: 2": 4, NATIVE: 2}
    some = model("run", {"a": _ranks()}, parse_part("2-3", "--operations"))
    assert [operation["number"] for operation in some["operations"]] == [2, 3]
    assert "Shown are operations 2 to 3 of 6" in some["cut"]
    with pytest.raises(ArgumentError, match=r"'5-6': must be operations of 0 \.\. 5"):
        model("run", {"a": _ranks()}, parse_part("5-6", "--operations"))
    quiet = model("run", {"a": [Rank(0, _ranks()[0].records)]}, None)
    assert "no rank kept the others waiting" in quiet["headline"]


@pytest.mark.parametrize("text", ["", "[]", '{"traceEvents": []}', '{"traceEvents": [{"ph": 1}]}'])
def test_what_is_no_trace_is_refused(tmp_path, text):
    (tmp_path / "t.json").write_text(text)
    with pytest.raises(FormatError, match=r"t\.json: .*no trace of runtime\.watch"):
        read_trace(tmp_path / "t.json")


def test_the_command_writes_a_page(tmp_path, monkeypatch, capsys):
    (tmp_path / "trace.json").write_text(document(trace(_ranks())))
    monkeypatch.chdir(tmp_path)
    for arguments, code in [(("trace.json",), 0), (("no.json",), 2)]:
        monkeypatch.setattr(sys, "argv", ["runtime", "watch", "--html", "run.html", *arguments])
        with pytest.raises(SystemExit) as ended:
            run(app)
        assert (ended.value.code or 0) == code
    said = capsys.readouterr()
    assert said.out.startswith("run.html: 6 operations of 4 ranks: rank 2 kept the others waiting")
    assert "no.json" in said.err
    page = (tmp_path / "run.html").read_text()
    assert page.count("</script>") == 2
    assert "<img" not in page


def test_who_was_late_is_shown_in_a_browser(browser, tmp_path):
    path = tmp_path / "run.html"
    ranks = _ranks()
    ranks[1] = replace(ranks[1], origin=ORIGIN)
    path.write_text(page_of(model("run", {"a": ranks}, None)))
    seen = set()
    for theme in ("light", "dark"):
        browser.open(path, theme=theme)
        seen.add(browser.run("return getComputedStyle(document.body).backgroundColor"))
        head = browser.run("return document.querySelector('#head').innerText")
        assert "job night run, 4 ranks on <node7>, watched since 2026-11-25" in head
        browser.press("\ue011")  # home
        said = browser.run("return document.querySelector('.now').innerText")
        assert "Operation 0: rank 2 came last, by 247 ms" in said
        assert f"ran {WAY}, late: 2; {REASON}" in said
        browser.press("\ue014", "\ue014")  # right
        said = browser.run("return document.querySelector('.now').innerText")
        assert "ran native; all have come" in said
        first = browser.run("return document.querySelector('#ranks tbody tr').innerText")
        assert first.startswith("rank 2")
        browser.press("\ue010")  # end
        assert browser.run("return viewer.player.position") == 5
    assert len(seen) == 2
    browser.open(path, size=(390, 844))
    assert browser.run("return document.documentElement.scrollWidth <= innerWidth")
