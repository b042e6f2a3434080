"""The training tables: runs are compared seed by seed, and only whole ones have an accuracy."""

from __future__ import annotations

import json

import numpy as np
import pytest

from bench.optireduce import training
from bench.optireduce.trainer import GLOO, OURS, Job, Run, Thrown
from latecomer.runtime.optireduce.udp.socket import UdpSocket

RIGHT = {
    Run(GLOO, 0.0, 0): (50, 90, 96),
    Run(OURS, 0.1, 0): (40, 80, 95),
    Run(GLOO, 0.0, 1): (50, 70, 80),
    Run(OURS, 0.1, 1): (40, 60, 83),
}
"""Of 2 x 100 test images, by each of two ranks, at 1/4 and 3/4 of the steps and at the end."""


def _ranks(argv, ranks, network, limit_s):
    """What two ranks would print."""
    job = Job.read(argv[1])
    assert argv == job.argv()
    of_rank = [
        {"right": RIGHT[run], "tested": 100, "lost": run.share, "skipped": 1, "drift": 0.5}
        for run in job.runs
    ]
    return json.loads(json.dumps([{"runs": of_rank}] * ranks))


def test_the_loopback_table_takes_differences_by_seed(monkeypatch, capsys):
    monkeypatch.setattr(training, "run", _ranks)
    command = "x --loopback --hosts 2 --tasks digits --seeds 2 --shares 0.1"
    monkeypatch.setattr("sys.argv", command.split())
    training.main()

    native, ours = capsys.readouterr().out.splitlines()[4:6]
    cells = [cell.strip() for cell in ours.strip("|").split("|")]
    assert cells[3:] == [
        *["40.00 ± 0.00", "70.00 ± 14.14", "89.00 ± 8.49"],
        *["-1.00 +3.00", "+1.00 ± 2.83"],  # by seed; the spread of the ways is larger
        *["10.00%", "5.0e-01", "4"],
    ]
    assert "| 88.00 ± 11.31 | - | - |" in native


def test_a_run_that_stopped_has_no_accuracy(monkeypatch, capsys):
    stopped = {"right": [], "tested": 100, "seconds": [0.1, 0.3], "lost": 0.0, "bound_s": 0.2}
    monkeypatch.setattr(training, "run", lambda *_, **__: [{"runs": [stopped] * 2}] * 4)
    monkeypatch.setattr("sys.argv", ["x", "--tasks", "digits", "--networks", "clean"])
    training.main()

    table = capsys.readouterr().out
    assert "| digits | clean | Gloo | 2 | 200 | 200 | 100 | 1.00 | - | - | - |" in table
    assert "| digits | clean | OptiReduce | 2 | 200 | 200 | 100 | 1.00 | - | 0.00% | 200 |" in table


def test_so_large_a_share_is_thrown_away_and_none_before(monkeypatch):
    monkeypatch.setattr(UdpSocket, "receive", lambda _: np.zeros((1000, 8), np.uint8))
    thrown = Thrown()
    channel = UdpSocket.__new__(UdpSocket)
    assert len(channel.receive()) == 1000

    thrown.draw(0.1, seed=1)
    received = sum(len(channel.receive()) for _ in range(20))
    assert received == pytest.approx(18_000, abs=300)
