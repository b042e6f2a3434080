"""The benchmark on loopback ends when a rank does, and says which and why."""

from __future__ import annotations

import os
import sys

import pytest

from bench.optireduce import loopback


def _rank_1_fails(store, rank, ranks, say, sizes, repeats):
    if rank == 1:
        raise ImportError("numba is not installed")
    store.wait(["what rank 1 would have set"])


def _rank_1_dies(store, rank, ranks, say, sizes, repeats):
    if rank == 1:
        os._exit(7)
    store.wait(["what rank 1 would have set"])


def _both_measure(store, rank, ranks, say, sizes, repeats):
    if rank == 0:
        say((sizes[0], "Gloo", 0.002, 1.0))


@pytest.mark.parametrize(
    ("body", "reason"),
    [(_rank_1_fails, "numba is not installed"), (_rank_1_dies, "died with exit code 7")],
)
def test_a_rank_that_ends_ends_the_run_and_is_named(monkeypatch, body, reason):
    monkeypatch.setattr(loopback, "measure", body)
    monkeypatch.setattr(sys, "argv", ["loopback", "--mib", "1"])

    with pytest.raises(SystemExit, match=f"(?s)rank 1: .*{reason}"):
        loopback.main()


def test_a_run_that_goes_well_prints_its_rows(monkeypatch, capsys):
    monkeypatch.setattr(loopback, "measure", _both_measure)
    monkeypatch.setattr(sys, "argv", ["loopback", "--mib", "1"])

    loopback.main()

    assert "| 1 | Gloo | 2.0 | 1.00 | 1.00 |" in capsys.readouterr().out
