"""Processes of a self-test: what they say, and each way of not coming to an end."""

from __future__ import annotations

import os
import re
import time

import pytest

from runtime.selftest.processes import passes


def _say(place, how):
    rank, ranks, store = place.rank, place.size, place.store
    store.set(f"{rank}", "")
    store.wait([f"{r}" for r in range(ranks)])
    place.say((rank, ranks))
    if rank == 1 and how == "raises":
        raise ValueError("planted")
    if rank == 1 and how == "dies":
        os._exit(3)
    if rank == 1 and how == "hangs":
        time.sleep(600)


def _passes(ranks, how, deadline_s=100.0):
    said = []
    limits = {"timeout_s": 60.0, "deadline_s": deadline_s}
    return passes(_say, ranks, how, report=said.append, **limits), said


def test_what_the_ranks_say():
    passed, said = _passes(3, "ends")
    assert passed
    assert sorted(said) == [(0, 3), (1, 3), (2, 3)]


@pytest.mark.parametrize(
    ("how", "deadline_s", "message"),
    [
        ("raises", 100, r"FAILED: rank 1: (.|\n)*ValueError: planted"),
        ("dies", 100, "FAILED: rank 1: died with exit code 3"),
        ("hangs", 15, r"FAILED: rank\(s\) (0, )?1: not done after 15 s"),
    ],
)
def test_the_first_failure_ends_all(how, deadline_s, message):
    passed, said = _passes(2, how, deadline_s)
    assert not passed
    assert re.match(message, said[-1])
