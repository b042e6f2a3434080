"""The NCCL workers: their logic over a stand-in everywhere, the real thing on a GPU.

The stand-in runs the workers' own code on CPU tensors: a coalesced group collects the transfers
and moves them over Gloo, streams and events do nothing. It shows that the rounds are grouped
right; only a GPU shows that the stream order is.
"""

from __future__ import annotations

import contextlib
import itertools
from datetime import timedelta
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from runtime.executor.nccl import PhaseWorkers
from runtime.executor.program import rank_program
from runtime.network.store_exchange import StoreExchange
from runtime.selftest import conformance
from runtime.work import AllReduceWork, Observer
from tests.runtime import schedules
from tests.runtime.spawning import on_ranks, python


class _Nccl:
    """Gloo with NCCL's way of grouping transfers."""

    Options = mock.Mock

    def __init__(self, store, rank, size, options):
        self.gloo = dist.ProcessGroupGloo(store, rank, size)
        self.open = None

    def _start_coalescing(self):
        assert self.open is None
        self.open = []

    def send(self, tensors, peer, tag):
        self.open.append(lambda: self.gloo.send(tensors, peer, tag))

    def recv(self, tensors, peer, tag):
        self.open.append(lambda: self.gloo.recv(tensors, peer, tag))

    def _end_coalescing(self):
        works = [start() for start in self.open]
        self.open = None
        work = mock.Mock()
        work.wait = lambda: [w.wait() for w in works]
        return work

    def shutdown(self):
        pass


@contextlib.contextmanager
def _stand_in():
    silent = mock.Mock()
    silent.query.return_value = True
    nothing = mock.Mock(return_value=mock.Mock(record_event=lambda: silent))
    cuda = {"current_device": lambda: 0, "Stream": nothing, "current_stream": nothing}
    cuda |= dict.fromkeys(("device", "stream"), lambda *_: contextlib.nullcontext())
    with (
        mock.patch.object(dist, "ProcessGroupNCCL", _Nccl, create=True),
        mock.patch.multiple(torch.cuda, **cuda),
        mock.patch.object(torch.Tensor, "record_stream"),
    ):
        yield


RUN = [schedules.straggler(4, m=2), schedules.ring(3), schedules.direct(4), schedules.swapping()]


@pytest.mark.parametrize("schedule", RUN)
@on_ranks(None)
def test_the_rounds_over_a_stand_in(rank, size, store, schedule):
    failures = []
    program, numbers, k = rank_program(schedule, rank), itertools.count(), schedule.chunks

    def all_reduce(tensor, average):
        operation = AllReduceWork(next(numbers), tensor, average)
        operation.program = program
        operation.bounds = tuple(tensor.numel() * c // k for c in range(k + 1))
        workers.submit(operation)
        operation.wait(timedelta(seconds=30))
        assert not failures
        return tensor

    with _stand_in():
        workers = PhaseWorkers(
            StoreExchange(store, rank, size, 20.0),
            len(schedule.phases),
            Observer(),
            lambda operation: operation.settle(),
            lambda noticed, error: failures.append((noticed, error)),
        )
        place = PrefixStore("cases", store), rank, size
        assert conformance.run(all_reduce, *place, sizes=(0, 1, 7, 999)) == 68
        workers.close()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_selftest_on_cuda():
    result = python("-m", "runtime", "selftest", "--device", "cuda", "--ranks", "4")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "passed" in result.stdout
