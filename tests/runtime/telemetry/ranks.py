"""A rank whose operations a test makes up, without a network; and what its files say."""

from __future__ import annotations

import itertools
import json
import time
from unittest import mock

import torch
from torch._C._distributed_c10d import HashStore

from latecomer import runtime
from latecomer.runtime.network.clock import Alignment
from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.runtime.telemetry import session
from latecomer.runtime.telemetry.recorder import OperationRecorder
from latecomer.runtime.work import AllReduceWork


class MadeUpRank:
    """One rank of a group; ``source`` is what is watched."""

    def __init__(self, rank=0, size=1, store=None, offset_s=0.0):
        self.entered = 0
        group = StoreExchange(store or HashStore(), rank, size, timeout_s=5.0)
        self.source = OperationRecorder(
            group, lambda: Alignment(offset_s, 0.0001), lambda: self.entered
        )

    def reduce(self, way="native", late=(), arrived_s=None):
        """An operation that is done now, and arrived now or when it is said to have."""
        work = AllReduceWork(self.entered, torch.zeros(4), average=False)
        work.arrived_s = time.monotonic() if arrived_s is None else arrived_s
        self.entered += 1
        work.settle()
        done_s = work.arrived_s + 0.01
        self.source.record(work, work.number, way, "made up", late=late, done_s=done_s)


def lines_of(directory, rank):
    """All lines of a rank's files, in order."""
    paths = sorted(directory.glob(f"rank{rank}-*.jsonl"))
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


def watch_two_ranks(directory, operations=4, ranks=(0, 1)):
    """Watches of ranks of one group, rank 1 late by 2 s; not over."""
    store = HashStore()
    made = [MadeUpRank(rank, 2, store) for rank in ranks]
    watches = [runtime.watch(rank, directory=directory) for rank in made]
    with mock.patch.object(session, "_watches", itertools.repeat(0)):  # each of its own process
        for watched in watches:
            watched.__enter__()
    for number in range(operations):
        for rank in made:
            rank.reduce(arrived_s=10.0 * number + 2.0 * rank.source.group.rank)
    for watched in watches:
        watched.__exit__(ValueError, ValueError("enough"), None)
    for rank in made:
        rank.source.close()
