"""A rank whose operations a test makes up, without a network; and what its files say."""

from __future__ import annotations

import json
import time

import torch
from torch._C._distributed_c10d import HashStore

from runtime.network.clock import Alignment
from runtime.network.store_exchange import StoreExchange
from runtime.telemetry.recorder import Recorder
from runtime.work import AllReduceWork


class MadeUpRank:
    """One rank of a group; ``source`` is what is watched."""

    def __init__(self, rank=0, size=1, store=None, offset_s=0.0):
        self.entered = 0
        group = StoreExchange(store or HashStore(), rank, size, timeout_s=5.0)
        self.source = Recorder(group, lambda: Alignment(offset_s, 0.0001), lambda: self.entered)

    def reduce(self, way="native", late=(), after_s=0.0):
        """An operation that is done at once, and arrived ``after_s`` from now."""
        work = AllReduceWork(self.entered, torch.zeros(4), average=False)
        work.arrived_s = time.monotonic() + after_s
        self.entered += 1
        work.settle()
        done_s = work.arrived_s + 0.01
        self.source.record(work, work.number, way, "made up", late=late, done_s=done_s)


def lines_of(directory, rank):
    """All lines of a rank's files, in order."""
    paths = sorted(directory.glob(f"rank{rank}-*.jsonl"))
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]
