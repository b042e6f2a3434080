"""The fuzz target for a moment: by hypothesis always, by atheris where it is installed."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latecomer.runtime.optireduce.udp.placement import Placer
from tests.fuzz.datagrams import attack, plant
from tests.runtime.spawning import python


@settings(max_examples=400, deadline=None)
@given(st.binary(min_size=20, max_size=600))
def test_nothing_that_arrives_breaks_a_node(program):
    attack(program)


@pytest.mark.long
@settings(max_examples=20_000, deadline=None)
@given(st.binary(min_size=20, max_size=3000))
def test_nothing_that_arrives_breaks_a_node_at_length(program):
    attack(program)


def test_a_planted_fault_is_found(monkeypatch):
    monkeypatch.setattr(Placer, "place", Placer.place)
    plant()
    dice = random.Random(1)

    def fuzz():
        for _ in range(5000):
            attack(dice.randbytes(300))

    with pytest.raises(AssertionError):
        fuzz()


def test_a_moment_with_atheris(tmp_path):
    pytest.importorskip("atheris", reason="atheris is not installed (pip install -e '.[fuzz]')")
    fuzzed = python("-m", "tests.fuzz.datagrams", "--runs", "300", "--out", str(tmp_path))
    assert fuzzed.returncode == 0, fuzzed.stderr[-2000:]
    assert "Done 300 runs" in fuzzed.stderr
