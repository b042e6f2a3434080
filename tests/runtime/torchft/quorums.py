"""Quorums without torchft's lighthouse: replicas in threads, or processes, that a test configures.

Importing it skips the tests of a module where torchft is not installed.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

pytest.importorskip("torchft", reason="torchft is not installed: pip install 'latecomer[torchft]'")

import torch
import torchft.process_group as torchft_groups
from torch.distributed import ReduceOp, TCPStore
from torch.distributed.distributed_c10d import AllreduceOptions

from latecomer.runtime.policy.cost_model import AlphaBeta, Profile
from latecomer.runtime.torchft.process_group import ProcessGroup

PATIENCE_S = 300.0
"""Of tests, in which a machine may be busy; no claim on speed."""
COST = AlphaBeta(alpha_s=1e-4, beta_s=1e-8)
PROFILE = Profile(ranks=2, native=COST, schedule=COST)
"""Given, since most tests are not about measuring one."""


def names(count):
    return [f"replica_{number}" for number in range(count)]


def configure(group, where, quorum, rank, replicas):
    """What a Manager does when there is a new quorum, in either version of torchft."""
    address = f"{where}/quorum/{quorum}"
    if hasattr(group, "configure"):
        places = list(range(len(replicas)))
        group.configure(address, replicas[rank], rank, len(replicas), quorum, 0, 1, places)
    else:
        group.set_rank_info(replicas[rank], 0, 1, rank)
        limit = timedelta(seconds=PATIENCE_S)
        torchft_groups.reconfigure_with_store(group, address, rank, len(replicas), limit)


def announce(group, where, quorum, rank):
    """What the others wait for before they begin to connect with this one, as of the nightly."""
    if not hasattr(group, "configure"):
        limit = timedelta(seconds=PATIENCE_S)
        store = torchft_groups.create_store_client(f"{where}/quorum/{quorum}", limit)
        store.set(f"handle/{rank}", group.get_reconfigure_handle())


def total(group, tensor, operation=ReduceOp.SUM):
    """Start an all-reduce as a Manager does."""
    options = AllreduceOptions()
    options.reduceOp = operation
    return group.allreduce([tensor], options)


class Replicas:
    """Process groups by replica, each used by a thread of its own."""

    def __init__(self, count, **options):
        self.store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.where = f"127.0.0.1:{self.store.port}"
        defaults = {"join_timeout": 60.0, "profile": PROFILE}
        self.names = names(count)
        self.groups = {name: ProcessGroup(**(defaults | options)) for name in self.names}
        self._pool = ThreadPoolExecutor(count)
        self._quorums = itertools.count(1)

    def close(self):
        for group in self.groups.values():
            group.shutdown()
        self._pool.shutdown()

    def quorum(self, members):
        """Configure these replicas, by name, in this order of ranks."""
        number = next(self._quorums)

        def join(group, rank):
            configure(group, self.where, number, rank, members)

        self.together(members, join)

    def together(self, members, call):
        """By member, what ``call(group, rank)`` returns; all of them at the same time."""
        calls = [
            self._pool.submit(call, self.groups[name], rank) for rank, name in enumerate(members)
        ]
        return {name: each.result(PATIENCE_S) for name, each in zip(members, calls, strict=True)}


@contextlib.contextmanager
def replicas(count, **options):
    started = Replicas(count, **options)
    try:
        yield started
    finally:
        started.close()


def resources():
    """How many descriptors and threads this process has: of Python, and all."""
    return (
        len(os.listdir("/proc/self/fd")),
        threading.active_count(),
        len(os.listdir("/proc/self/task")),
    )


def at_rest(limit_s=30.0):
    """The same, when groups that are being closed have had the time for it."""
    give_up_s = time.monotonic() + limit_s
    while time.monotonic() < give_up_s:
        names_of_threads = {thread.name for thread in threading.enumerate()}
        if not names_of_threads & {"latecomer-closing", "latecomer-ahead"}:
            break
        time.sleep(0.01)
    before = resources()
    while time.monotonic() < give_up_s:
        time.sleep(0.1)  # threads of C++ end a moment after those who have let go of them
        now = resources()
        if now == before:
            break
        before = now
    return before


def failure_of(work):
    """With which error a future ends."""
    with pytest.raises(Exception) as caught:  # noqa: PT011  (whichever it is)
        work.get_future().value()
    return caught.value


def ones(elements=1000, dtype=torch.float32):
    return torch.ones(elements, dtype=dtype)
