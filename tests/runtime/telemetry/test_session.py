"""What a watch does where there is nothing to watch, and where it is not clear what."""

from __future__ import annotations

import gc
import json

import pytest

from latecomer import runtime
from latecomer.runtime.telemetry import session
from latecomer.verify.errors import ArgumentError


def test_a_watch_of_nothing_warns_and_the_block_runs(caplog, tmp_path):
    """As under a schedule file, which has no recorder."""
    with runtime.watch() as watched:
        pass
    assert "there is nothing to watch" in caplog.text
    assert str(watched.summary()) == "nothing was watched"
    watched.write_prometheus(tmp_path / "latecomer.prom")
    watched.write_trace(tmp_path / "trace.json")
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"] == []


def test_a_watch_of_two_is_refused(monkeypatch):
    monkeypatch.setattr(session, "LIVE", [object(), object()])
    with pytest.raises(ArgumentError, match=r"= 2: is one at a time.*Name one"), runtime.watch():
        pass


def test_a_watch_that_never_begins_warns_where_it_was_made(caplog):
    runtime.watch()
    gc.collect()
    (record,) = caplog.records
    assert "test_session.py, line" in record.message
    assert "has watched nothing: it begins with a block" in record.message
    assert ".start()" in record.message


@pytest.mark.parametrize("begin", [session.Watch.start, session.Watch.__enter__])
def test_a_watch_that_has_begun_does_not(caplog, begin):
    begin(runtime.watch())
    gc.collect()
    assert "has watched nothing" not in caplog.text


def test_a_watch_that_is_under_way_does_not_begin_again_and_stops_only_what_was_started():
    watched = runtime.watch()
    with pytest.raises(ArgumentError, match="has to be, by start"):
        watched.stop()
    watched.start()
    with pytest.raises(ArgumentError, match="begins again only when it is over"):
        watched.start()
    with pytest.raises(ArgumentError, match="begins again only when it is over"), watched:
        pass
    watched.stop()
    assert str(watched.summary()) == "nothing was watched"
    with watched:
        pass
