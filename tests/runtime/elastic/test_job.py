"""Replicas on simulated hosts: some die, stop or come back; all end with the same parameters."""

from __future__ import annotations

import hashlib
from functools import cache

import pytest
import torch

from latecomer.runtime.elastic.job import Job
from latecomer.runtime.host import host
from latecomer.verify.errors import RankFailure
from tests.runtime.simulated import SEEDS, die, on_hosts, stop

REPLICAS = 4
STEPS = 5
MICROBATCHES = 8
SOME = SEEDS[::2]
TIMES = {"silence_s": 0.5, "timeout_s": 60.0, "join_timeout_s": 10.0}
COMPUTE_S = 0.03  # for a microbatch


def _model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


def _loss(model, step, microbatch):
    dice = torch.Generator().manual_seed(1000 * step + microbatch)
    inputs = torch.randn(4, 6, generator=dice)
    return model(inputs).square().mean()


def _hash(model):
    data = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
    return hashlib.sha256(data).hexdigest()[:16]


def _train(store, replica, *, faults=lambda step, microbatch: None, steps=STEPS, **options):
    """Train; the hash of the parameters, the replicas in the end, and the longest step."""
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    defaults = {"replicas": REPLICAS, "bits": "same", "mode": "native", **TIMES}
    job = Job(
        model,
        optimizer,
        store=store,
        replica=replica,
        microbatches=MICROBATCHES,
        **{**defaults, **options},
    )
    longest_s = 0.0
    for step in job.steps(steps):
        began_s = host.monotonic()
        for microbatch in step:
            _loss(model, step.number, microbatch).backward()
            host.sleep(COMPUTE_S)
            faults(step.number, microbatch)
        optimizer.step()
        longest_s = max(longest_s, host.monotonic() - began_s)
    replicas = job.view.replicas
    job.close()
    return _hash(model), replicas, longest_s


@cache
def _undisturbed(steps=STEPS):
    """The hash of a run on one replica."""

    def body(job):
        return lambda rank, size, store: _train(store, rank, replicas=1, steps=steps)

    bits, _, _ = on_hosts(1, body, seeds=[0])[0][0].result
    return bits


@pytest.mark.parametrize("mode", ["native", "auto"])
def test_without_a_fault_any_number_of_replicas_has_the_same_bits(mode):
    for outcomes in on_hosts(
        REPLICAS, lambda job: lambda rank, size, store: _train(store, rank, mode=mode), seeds=SOME
    ):
        for outcome in outcomes.values():
            assert outcome.result[:2] == (_undisturbed(), (0, 1, 2, 3))


@pytest.mark.parametrize("mode", ["native", "auto"])
@pytest.mark.parametrize("victim", [0, 1, 3])
def test_who_dies_in_a_step_is_replaced_in_it_and_the_bits_stay_the_same(mode, victim):
    def body(job):
        def run(rank, size, store):
            def faults(step, microbatch):
                if rank == victim and step == 2:
                    die(job, rank)

            return _train(store, rank, mode=mode, faults=faults)

        return run

    for outcomes in on_hosts(REPLICAS, body, victims=[victim], seeds=SOME):
        living = [rank for rank in range(REPLICAS) if rank != victim]
        for rank in living:
            bits, replicas, longest_s = outcomes[rank].result
            assert bits == _undisturbed()
            assert replicas == tuple(living)
            assert longest_s < 3 * TIMES["silence_s"]


def test_two_may_die_at_once_if_their_hosts_say_so():
    def body(job):
        def run(rank, size, store):
            def faults(step, microbatch):
                if rank in (1, 2) and step == 1:
                    die(job, rank)

            return _train(store, rank, faults=faults)

        return run

    for outcomes in on_hosts(REPLICAS, body, victims=[1, 2], seeds=SOME):
        for rank in (0, 3):
            assert outcomes[rank].result[:2] == (_undisturbed(), (0, 3))


def test_a_replica_that_is_late_for_long_is_waited_for():
    def body(job):
        def run(rank, size, store):
            def faults(step, microbatch):
                if rank == 2 and step == 1:
                    host.sleep(20 * TIMES["silence_s"])

            return _train(store, rank, faults=faults)

        return run

    for outcomes in on_hosts(REPLICAS, body, seeds=SOME):
        for outcome in outcomes.values():
            assert outcome.result[:2] == (_undisturbed(), (0, 1, 2, 3))


@pytest.mark.parametrize("for_s", [0.1, 3.0])
def test_who_is_stopped_for_longer_than_silence_may_last_is_left_behind_and_comes_back(for_s):
    """The others wait for nobody then; it goes on with their parameters, as soon as it can."""

    def body(job):
        def run(rank, size, store):
            def faults(step, microbatch):
                if rank == 2 and step == 1 and microbatch == 4:
                    stop(job, rank, for_s)

            return _train(store, rank, faults=faults, steps=100)

        return run

    for outcomes in on_hosts(REPLICAS, body, seeds=SOME):
        for outcome in outcomes.values():
            bits, replicas, _ = outcome.result
            assert bits == _undisturbed(100)
            assert sorted(replicas) == [0, 1, 2, 3]
            assert (replicas == (0, 1, 2, 3)) == (for_s < TIMES["silence_s"])


@pytest.mark.parametrize("dies_after_s", [None, 0.1, 0.2, 0.3, 0.4])
def test_a_process_that_takes_a_dead_ones_place_goes_on_with_the_others_parameters(dies_after_s):
    """Its host is one more. The first of the others may die while it is taken in."""
    steps = 100
    giver_dies = dies_after_s is not None

    def body(job):
        def run(rank, size, store):
            def faults(step, microbatch):
                if rank == 1 and step == 2:
                    die(job, rank)

            replica = rank
            if rank == REPLICAS:
                replica = 1
                while 1 not in job.killed_s:
                    host.sleep(0.1)
                host.sleep(1.0)
                if giver_dies:
                    job.world.after(dies_after_s, job.kill, 0)
            return _train(store, replica, faults=faults, steps=steps)

        return run

    victims = [0, 1] if giver_dies else [1]
    for outcomes in on_hosts(REPLICAS + 1, body, victims=victims, seeds=SOME):
        for rank in set(range(REPLICAS + 1)) - set(victims):
            bits, replicas, _ = outcomes[rank].result
            assert bits == _undisturbed(steps)
            assert sorted(replicas) == ([1, 2, 3] if giver_dies else [0, 1, 2, 3])


def test_one_of_two_goes_on_alone_until_the_other_comes_back():
    steps = 60

    def body(job):
        def run(rank, size, store):
            def faults(step, microbatch):
                if rank == 0 and step == 2:
                    die(job, rank)

            if rank == 2:
                while 0 not in job.killed_s:
                    host.sleep(0.1)
                host.sleep(1.0)
            return _train(store, rank % 2, replicas=2, faults=faults, steps=steps)

        return run

    for outcomes in on_hosts(3, body, victims=[0], seeds=SOME):
        for rank in (1, 2):
            assert outcomes[rank].result[:2] == (_undisturbed(steps), (1, 0))


def test_a_group_that_has_lost_its_store_goes_on():
    def body(job):
        def run(rank, size, store):
            def faults(step, microbatch):
                if rank == 0 and step == 1:
                    job.store.shared.is_gone = True
                    job.store.shared.waiters.wake()
                if rank == 1 and step == 3:
                    die(job, rank)

            return _train(store, rank, faults=faults)

        return run

    for outcomes in on_hosts(REPLICAS, body, victims=[1], seeds=SOME):
        for rank in (0, 2, 3):
            assert outcomes[rank].result[:2] == (_undisturbed(), (0, 2, 3))


def test_half_of_a_group_that_is_cut_in_two_does_not_go_on():
    """No host says that the others have died: it may be the network."""

    def body(job):
        def run(rank, size, store):
            def faults(step, microbatch):
                if rank == 0 and step == 1:
                    for here in (0, 1):
                        for there in (2, 3):
                            job.network.cut(here, there, job.world.now_s + 1000.0)
                            job.network.cut(there, here, job.world.now_s + 1000.0)
                    host.sleep(2.0)  # the others wait, and hear nothing of those beyond the cut

            with pytest.raises(RankFailure, match="silent, and not proved dead"):
                _train(store, rank, faults=faults)

        return run

    on_hosts(REPLICAS, body, seeds=SOME)
