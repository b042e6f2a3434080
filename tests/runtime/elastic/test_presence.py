"""A host says whether a process exists: also while it is stopped, and no longer once it is dead."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from latecomer.runtime.elastic.presence import Presence, is_gone

LIMIT_S = 5.0
LINES = """
import time
from latecomer.runtime.elastic.presence import Presence
presence = Presence("127.0.0.1")
print(presence.where, flush=True)
time.sleep(600)
"""


@pytest.fixture
def process():
    child = subprocess.Popen([sys.executable, "-c", LINES], stdout=subprocess.PIPE, text=True)
    yield child
    child.kill()
    child.wait()


def test_a_process_is_there_until_it_is_dead_and_stopped_is_not_dead(process):
    where = process.stdout.readline().strip()
    assert not is_gone(where, LIMIT_S)
    process.send_signal(signal.SIGSTOP)
    assert not is_gone(where, LIMIT_S)
    process.kill()
    process.wait()
    assert is_gone(where, LIMIT_S)


def test_who_has_closed_counts_as_gone():
    presence = Presence("127.0.0.1")
    assert not is_gone(presence.where, LIMIT_S)
    presence.close()
    assert is_gone(presence.where, LIMIT_S)
