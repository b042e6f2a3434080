"""Whole jobs of few steps, with torchft's lighthouse and Managers: one process for each replica."""

from __future__ import annotations

import hashlib
import os
import signal
from datetime import timedelta

import pytest
import torch
from torch.distributed import ReduceOp, TCPStore

from latecomer.runtime.torchft.ddp import DistributedDataParallel
from latecomer.runtime.torchft.process_group import ProcessGroup
from latecomer.verify.errors import RankFailure
from tests.runtime.spawning import on_ranks
from tests.runtime.torchft.quorums import PROFILE, names

SIZE = 3
REPLICAS = names(SIZE)
VICTIM = 1
TIMEOUT_S = 600.0  # so late may a replica be: no test that waits for that ends in time


class Job:
    """One replica of it."""

    def __init__(self, store, rank, **options):
        from torchft import Manager, Optimizer

        if rank == 0:
            store.set("lighthouse", self._serve())
        torch.manual_seed(rank)  # torchft sees to equal parameters
        self.model = torch.nn.Linear(8, 4)
        plain = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.group = ProcessGroup(timeout=TIMEOUT_S, profile=PROFILE, join_timeout=60, **options)
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.manager = Manager(
            pg=self.group,
            replica_id=REPLICAS[rank],
            min_replica_size=2,
            load_state_dict=self.model.load_state_dict,
            state_dict=lambda: {k: v.clone() for k, v in self.model.state_dict().items()},
            store_addr="127.0.0.1",
            store_port=self._store.port,
            rank=0,
            world_size=1,
            timeout=timedelta(seconds=TIMEOUT_S),
            lighthouse_addr=store.get("lighthouse").decode(),
            hostname="127.0.0.1",
        )
        self._rank = rank
        self._ddp = DistributedDataParallel(self.manager, self.model)
        self._optimizer = Optimizer(self.manager, plain)

    def _serve(self):
        from torchft.coordination import LighthouseServer

        self._lighthouse = LighthouseServer(
            bind="127.0.0.1:0",
            min_replicas=2,
            join_timeout_ms=60_000,
            heartbeat_timeout_ms=2000,
            quorum_tick_ms=20,
        )
        return self._lighthouse.address().replace(os.uname().nodename, "127.0.0.1")

    def step(self, *, before=lambda: None):
        """Whether a step was committed, by how many; the probe says exactly by whom."""
        self._optimizer.zero_grad()
        loss = self._ddp(torch.ones(2, 8)).square().mean()
        before()
        loss.backward()
        probe = torch.tensor([2**self._rank])
        self.manager.allreduce(probe, reduce_op=ReduceOp.SUM).wait()
        step = self.manager.current_step()
        self._optimizer.step()
        is_committed = self.manager.current_step() > step
        if is_committed and step > 1:  # all but one heal in the first
            assert int(probe).bit_count() == self.manager.num_participants()
        return is_committed

    def train_until(self, is_over):
        while not is_over():
            self.step()

    @property
    def hash(self):
        data = b"".join(each.detach().numpy().tobytes() for each in self.model.parameters())
        return hashlib.sha256(data).hexdigest()

    def end(self, store, rank, others):
        """End when all have; the hashes by then."""
        store.set(f"hash {rank}", self.hash)
        hashes = {store.get(f"hash {other}").decode() for other in others}
        store.set(f"done {rank}", "")
        store.wait([f"done {other}" for other in others])
        self.manager.shutdown(wait=False)
        self.group.shutdown()
        return hashes


def _together(job):
    return lambda: job.manager.current_step() > 3 and len(job.group.replicas) == SIZE


def _at(job, step):
    return lambda: job.manager.current_step() >= step


def _last_step(store, rank, job):
    """A step that none has come to yet, the same on all."""
    store.set(f"at {rank}", str(job.manager.current_step()))
    return max(int(store.get(f"at {other}")) for other in range(SIZE)) + 3


@on_ranks(SIZE)
def test_an_error_of_one_replica_costs_all_one_step(rank, size, store):
    job = Job(store, rank)
    job.train_until(_together(job))
    last = _last_step(store, rank, job)
    job.train_until(_at(job, last))

    def report():
        if rank == VICTIM:
            job.manager.report_error(ValueError("a bad batch"))

    assert not job.step(before=report)
    error = job.manager.errored().original_exception
    if rank != VICTIM:
        assert isinstance(error, RankFailure)
        assert "a bad batch" in str(error)
        assert f"is replica {REPLICAS[VICTIM]}" in str(error)
    job.train_until(_at(job, last + 3))
    assert len(job.end(store, rank, range(size))) == 1


@pytest.mark.parametrize("victim", [VICTIM])
@on_ranks(SIZE)
def test_the_others_go_on_when_one_is_killed(rank, size, store, victim):
    job = Job(store, rank, late={REPLICAS[0]})
    job.train_until(_together(job))
    last = _last_step(store, rank, job)
    job.train_until(_at(job, last))
    if rank == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    job.train_until(_at(job, last + 4))
    left = [0, 2]
    assert job.group.replicas == tuple(REPLICAS[other] for other in left)
    assert len(job.end(store, rank, left)) == 1
