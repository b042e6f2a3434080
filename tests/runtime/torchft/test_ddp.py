"""The hook averages over participants, holds nobody up, and tells the Manager what goes wrong."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.futures import Future

from latecomer.runtime.torchft.ddp import DistributedDataParallel, ddp_hook
from latecomer.runtime.torchft.future_work import FutureWork
from latecomer.runtime.torchft.versions import tell_of_errors
from latecomer.verify.errors import RankFailure
from tests.runtime.torchft.quorums import ones


class Bucket:
    """What DDP hands to a hook."""

    def __init__(self, values):
        self.values = values

    def buffer(self):
        return self.values


class Manager:
    """As far as the hook knows it; ``works`` are what its process group has started."""

    def __init__(self, participants=2, *, takes_part=True, refuses=None):
        self.works = []
        self.errors = []
        self.participants = participants
        self._takes_part = takes_part
        self._refuses = refuses
        self._pg = SimpleNamespace(allreduce=self._allreduce)

    def _allreduce(self, tensors, options):
        if self._refuses is not None:
            raise self._refuses
        work = FutureWork(tensors[0], lambda error: error)
        self.works.append((tensors[0], work))
        return work

    def errored(self):
        return self.errors[0] if self.errors else None

    def report_error(self, error):
        self.errors.append(error)

    def num_participants(self):
        return self.participants

    def is_participating(self):
        return self._takes_part

    def wrap_future(self, future, default):
        """As torchft's, without its time-out."""

        def swallow(complete):
            try:
                return complete.value()
            except Exception as error:
                self.report_error(error)
                return default

        return future.then(swallow)


@given(
    values=st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=20),
    participants=st.integers(1, 9),
)
def test_a_contribution_is_divided_by_the_participants_and_then_summed(values, participants):
    manager = Manager(participants)
    gradients = torch.tensor(values)
    future = ddp_hook(manager, Bucket(gradients))
    [(handed_over, work)] = manager.works
    assert not future.done()  # and backward has gone on
    assert torch.equal(handed_over, torch.tensor(values) / participants)
    handed_over.add_(1.0)  # what the others bring
    work.settle(None)
    assert future.value() is gradients
    assert torch.equal(gradients, torch.tensor(values) / participants + 1.0)
    assert not manager.errors


def test_who_heals_contributes_zeros_and_gets_the_average():
    manager = Manager(takes_part=False)
    gradients = ones(4)
    future = ddp_hook(manager, Bucket(gradients))
    [(handed_over, work)] = manager.works
    assert not handed_over.any()
    handed_over.fill_(7.0)
    work.settle(None)
    assert torch.equal(future.value(), torch.full((4,), 7.0))


def test_buckets_are_under_way_together():
    manager = Manager()
    futures = [ddp_hook(manager, Bucket(ones(4))) for _ in range(3)]
    assert len(manager.works) == 3
    for _, work in reversed(manager.works):
        work.settle(None)
    assert all(future.done() for future in futures)


def test_a_failure_goes_to_the_manager_with_its_type():
    manager = Manager()
    first = ddp_hook(manager, Bucket(ones(4)))
    manager.works[0][1].settle(RankFailure([1], "rank 1: dead"))
    assert first.done()  # backward ends, and the step is not committed
    assert [type(error) for error in manager.errors] == [RankFailure]
    second = ddp_hook(manager, Bucket(ones(4)))
    assert second.done()
    assert len(manager.works) == 1  # nothing is started any more


def test_what_the_process_group_refuses_goes_to_the_manager():
    manager = Manager(refuses=ValueError("not now"))
    assert ddp_hook(manager, Bucket(ones(4))).done()
    assert [str(error) for error in manager.errors] == ["not now"]


class QuorumFails(Manager):
    """Its replicas have failed to connect, which is known when the quorum is there."""

    def num_participants(self):
        self.report_error(RankFailure([0], "rank 0: did not join"))
        return 2


def test_nothing_is_started_in_a_quorum_that_has_failed():
    manager = QuorumFails()
    assert ddp_hook(manager, Bucket(ones(4))).done()
    assert not manager.works


@pytest.mark.parametrize("fails", [False, True])
def test_a_model_is_reduced_bucket_by_bucket(fails):
    """Through DDP itself; the process group is ours, played by a thread."""
    manager = Manager(participants=2)
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(40, 400), torch.nn.Linear(400, 400))
    alone = [parameter.grad for parameter in _backward(net)]
    model = DistributedDataParallel(manager, net, bucket_cap_mb=0.1)
    for parameter in net.parameters():
        parameter.grad = None

    is_over = threading.Event()
    played = threading.Thread(target=_play, args=(manager, fails, is_over), daemon=True)
    played.start()
    averages = [parameter.grad for parameter in _backward(model)]
    is_over.set()
    played.join()
    assert len(manager.works) > (0 if fails else 1)
    if fails:
        assert isinstance(manager.errors[0], RankFailure)
    else:
        for average, own in zip(averages, alone, strict=True):
            assert torch.allclose(average, 1.5 * own)


def _backward(model):
    model(torch.ones(2, 40)).square().sum().backward()
    return list(model.parameters())


def _play(manager, fails, is_over):
    """Another replica that brings twice as much to every bucket, or fails in each."""
    played = 0
    while not is_over.is_set():
        if len(manager.works) == played:
            is_over.wait(0.001)
            continue
        tensor, work = manager.works[played]
        played += 1
        if not fails:
            tensor.mul_(3.0)
        work.settle(RankFailure([1], "rank 1: dead") if fails else None)


def test_wait_waits_for_the_future_and_what_is_bound_to_it_may_raise():
    work = FutureWork(ones(), lambda error: error)
    with pytest.raises(TimeoutError):
        work.wait(_ms(1))
    assert not work.is_completed()

    bound = work.get_future().then(lambda complete: complete.value())
    threading.Timer(0.05, work.settle, args=[RankFailure([2], "rank 2: dead")]).start()
    assert work.wait() is False
    assert work.get_future().done()
    assert isinstance(work.exception(), RankFailure)
    with pytest.raises(RankFailure):
        work.get_future().value()
    with pytest.raises(RankFailure):
        work.result()
    with pytest.raises(RuntimeError, match="rank 2: dead"):
        bound.wait()


def _ms(count):
    from datetime import timedelta

    return timedelta(milliseconds=count)


def test_a_manager_tells_its_process_group_of_errors_and_no_other():
    import torchft

    told = []
    tell_of_errors()
    replaced = torchft.Manager.report_error
    tell_of_errors()
    assert torchft.Manager.report_error is replaced

    group = SimpleNamespace(error_reported=told.append)
    error = ValueError("one")
    ours = SimpleNamespace(_pg=group, _errored=None)
    torchft.Manager.report_error(ours, error)
    torchft.Manager.report_error(SimpleNamespace(_pg=object(), _errored=None), ValueError("two"))
    assert told == [error]
    assert ours._errored.original_exception is error


def test_a_future_of_torchs_own_keeps_the_type_on_its_way():
    """What the hook relies on: ``set_exception`` and ``value``, not ``then``."""
    future = Future()
    future.set_exception(RankFailure([1], "dead"))
    with pytest.raises(RankFailure):
        future.value()
