"""What a watch does where there is nothing to watch, and where it is not clear what."""

from __future__ import annotations

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
