"""A program that does not destroy its process group ends as it would otherwise, and in time."""

from __future__ import annotations

import hashlib
import json
import queue
import threading
import time
from pathlib import Path

import pytest

from latecomer.runtime import at_exit
from tests.runtime.spawning import python

ROOT = Path(__file__).parents[2]
EXIT_CODES = {"falls off its end": 0, "calls sys.exit": 3, "raises": 1}


@pytest.mark.slow_first
def test_short_programs_end_with_their_exit_code_and_no_more_to_say(tmp_path):
    result = python("-m", "tests.runtime.short_programs", tmp_path, cwd=ROOT)

    assert result.returncode == 0, result.stderr
    for end in json.loads(result.stdout):
        ending = end["program"]["ending"]
        assert end["exit_code"] == EXIT_CODES[ending], end
        assert "terminate called" not in end["stderr"], end
        if ending != "raises":
            assert not end["stderr"], end


class Recorder:
    """Notes when it is closed, and how."""

    def __init__(self, name, closed, made_of=None):
        self.name = name
        self.closed = closed
        self.made_of = made_of
        at_exit.close_at_exit(self)

    def close(self, *, at_once=False):
        at_exit.has_closed(self)
        self.closed.append((self.name, at_once))
        if self.made_of is not None:
            self.made_of.close(at_once=at_once)


@pytest.fixture
def nothing_open(monkeypatch):
    monkeypatch.setattr(at_exit, "_open", {})
    monkeypatch.delattr("sys.last_value", raising=False)


def test_the_last_is_closed_first_and_each_once(nothing_open):
    closed = []
    first = Recorder("first", closed)
    Recorder("second", closed, made_of=first)
    Recorder("closed by the program", closed).close()
    closed.clear()

    at_exit._close_all()

    assert closed == [("second", False), ("first", False)]


def test_what_is_under_way_is_given_up_after_an_uncaught_exception(nothing_open, monkeypatch):
    closed = []
    Recorder("only", closed)
    monkeypatch.setattr("sys.last_value", ValueError(), raising=False)

    at_exit._close_all()

    assert closed == [("only", True)]


def test_what_is_still_open_when_patience_ends_is_closed_at_once(nothing_open, monkeypatch):
    closed = []
    monkeypatch.setattr(at_exit, "PATIENCE_S", -1.0)
    Recorder("only", closed)

    at_exit._close_all()

    assert closed == [("only", True)]


def test_one_that_can_not_be_closed_keeps_no_other_open(nothing_open, caplog):
    closed = []
    Recorder("first", closed)
    broken = Recorder("broken", closed)
    broken.close = lambda at_once: 1 / 0

    at_exit._close_all()

    assert closed == [("first", False)]
    assert "could not be closed" in caplog.text


@pytest.fixture
def gloo_thread():
    """Has a thread that is Gloo's by its name compute so many rounds, and returns when it does.

    It computes without the interpreter's lock. Returns a list that has the number when it is done.
    """
    told = queue.Queue()
    done = []

    def run():
        Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(at_exit.GLOO_THREAD)
        while (rounds := told.get()) is not None:
            for _ in range(rounds):
                hashlib.sha256(bytes(50_000_000))  # without the interpreter's lock
            done.append(rounds)

    thread = threading.Thread(target=run)
    thread.start()

    def compute(rounds):
        told.put(rounds)
        while not at_exit._gloo_runs():
            time.sleep(0.001)
        return done

    yield compute
    told.put(None)
    thread.join()


@pytest.mark.skipif(not at_exit.TASKS.exists(), reason="threads are looked at on Linux alone")
def test_the_end_waits_until_threads_of_gloo_rest(gloo_thread, monkeypatch):
    monkeypatch.setattr(at_exit, "REST_S", 60.0)
    done = gloo_thread(4)
    assert not done
    at_exit.wait_until_gloo_rests()
    assert done == [4]


@pytest.mark.skipif(not at_exit.TASKS.exists(), reason="threads are looked at on Linux alone")
def test_a_thread_of_gloo_that_never_rests_is_not_waited_for(gloo_thread, monkeypatch):
    monkeypatch.setattr(at_exit, "REST_S", 0.01)
    done = gloo_thread(40)
    at_exit.wait_until_gloo_rests()
    assert not done
