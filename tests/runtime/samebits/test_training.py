"""Training has the same bits: whoever is late, in every mode, and on however many ranks."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import threading
import time

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from latecomer import synth
from latecomer.runtime import ddp
from latecomer.runtime.host import host
from latecomer.runtime.policy.cost_model import AlphaBeta, Profile
from latecomer.verify.errors import ArgumentError, RankFailure
from tests.runtime.spawning import on_ranks, spawn, values

STEPS = 6
MICROBATCHES = 4
FEATURES = 40
LATE_S = 0.004


def profile(ranks):
    """By it, schedules are worth it however small the buffer."""
    return Profile(ranks, native=AlphaBeta(1e-2, 1e-9), schedule=AlphaBeta(1e-5, 1e-10))


class Net(torch.nn.Module):
    """Two layers, and one that only some microbatches use."""

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(FEATURES, 70)
        self.sometimes = torch.nn.Linear(70, 70)
        self.last = torch.nn.Linear(70, 3)

    def forward(self, x, uses_all=True):
        x = torch.tanh(self.first(x))
        if uses_all:
            x = torch.tanh(self.sometimes(x))
        return self.last(x)


def microbatch(step, number):
    """Inputs and targets of a microbatch, whoever has it; some are a hundred times as large."""
    generator = torch.Generator().manual_seed(1000 * step + number)
    x = torch.randn(5, FEATURES, generator=generator)
    if step == 3 and number == 1:
        x = x * 100
    return x, torch.randn(5, 3, generator=generator)


def train(
    rank,
    size,
    store,
    attach,
    *,
    name,
    buckets_mb=25.0,
    seed=None,
    shares=None,
    has_bits=True,
    **of_model,
):
    """The hash of all parameters after some steps; ``shares``: by rank, its microbatches."""
    if not dist.is_initialized():
        dist.init_process_group(
            "gloo", store=dist.PrefixStore("pg", store), rank=rank, world_size=size
        )
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = DistributedDataParallel(Net(), bucket_cap_mb=buckets_mb, **of_model)
    attachment = attach(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    dice = random.Random(f"{name} {seed}")
    shares = shares or [[number] for number in range(size)]
    uses_all = not of_model.get("find_unused_parameters", False)
    for step in range(STEPS):
        late = dice.randrange(size)
        if seed is not None and rank == late:
            time.sleep(LATE_S * dice.random())
        for number in shares[rank]:
            x, y = microbatch(step, number)
            with_all = uses_all or number % 2 == 0
            if number == shares[rank][-1]:
                ((model(x, with_all) - y) ** 2).mean().backward()
            else:
                with model.no_sync():
                    ((model(x, with_all) - y) ** 2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    repeated = attachment.same_bits.repeated if has_bits else 0
    attachment.close()
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()[:12], repeated


def ways(ranks):
    """Name -> what attaches."""
    modes = {
        "native": {"mode": "native"},
        "off": {"mode": "off"},
        "static": {"mode": "static", "late": 1},
        "predict": {"mode": "predict"},
        "eager": {"mode": "eager", "threshold_s": 0.0},
        "auto": {"mode": "auto"},
    }
    made = {}
    for name, options in modes.items():
        made[name] = lambda model, options=options: ddp.attach(
            model, **options, profile=profile(ranks), bits="same"
        )
    schedules = {"straggler": synth.generate(ranks), "ring": synth.ring(ranks)}
    for name, schedule in schedules.items():
        made[name] = lambda model, schedule=schedule: ddp.attach(model, schedule, bits="same")
    return made


def _all_ways(rank, size, store):
    results = {}
    for number, (name, attach) in enumerate(ways(size).items()):
        for buckets_mb in (25.0, 0.005):
            results[f"{name}, {buckets_mb} MB"] = train(
                rank, size, store, attach, name=name, buckets_mb=buckets_mb, seed=number
            )
    return results


def test_one_result_in_every_mode_whoever_is_late():
    results = values(spawn(_all_ways, 4, timeout_s=120))
    hashes = {of_way for of_rank in results for of_way, _ in of_rank.values()}
    assert len(hashes) == 1, results
    repeated = {times for of_rank in results for _, times in of_rank.values()}
    assert min(repeated) >= 1


def _without(rank, size, store):
    """As above, without the option."""
    made = {}
    for name, options in {
        "native": {"mode": "native"},
        "late 1": {"mode": "static", "late": 1},
        "late 3": {"mode": "static", "late": 3},
    }.items():

        def attach(model, options=options):
            return ddp.attach(model, **options, profile=profile(size))

        made[name], _ = train(rank, size, store, attach, name=name, has_bits=False)
    return made


def test_without_the_option_results_differ_so_these_tests_are_not_blind():
    results = values(spawn(_without, 4))
    assert len(set(results[0].values())) > 1, results[0]


def _microbatches(rank, size, store, shares, of_model, seed):
    def attach(model):
        options = {"mode": "auto", "profile": profile(size)} if size > 1 else {"mode": "auto"}
        return ddp.attach(model, **options, bits="same", contributions=MICROBATCHES)

    return train(
        rank, size, store, attach, name="microbatches", seed=seed, shares=shares, **of_model
    )


GROUPINGS = [
    [[0], [1], [2], [3]],
    [[2], [0], [3], [1]],
    [[0, 1], [2, 3]],
    [[3, 0], [1, 2]],
    [[0, 3], [1], [2]],
    [[2], [3], [1, 0]],
    [[0, 1, 2, 3]],
    [[3, 1, 2, 0]],
]


@pytest.mark.parametrize(
    "of_model",
    [{}, {"find_unused_parameters": True}, {"gradient_as_bucket_view": True}],
    ids=["all used", "some unused", "bucket views"],
)
def test_one_result_on_however_many_ranks(of_model):
    hashes = {}
    groupings = GROUPINGS[::3] if of_model else GROUPINGS
    for seed, shares in enumerate(groupings):
        of_ranks = values(spawn(_microbatches, len(shares), shares, of_model, seed))
        assert len(set(of_ranks)) == 1
        hashes[str(shares)] = of_ranks[0][0]
    assert len(set(hashes.values())) == 1, hashes


def _one_too_few(rank, size, store):
    def attach(model):
        return ddp.attach(model, mode="native", bits="same", contributions=MICROBATCHES)

    with pytest.raises(RuntimeError, match="2 contributions were summed, and 4 were agreed on"):
        train(rank, size, store, attach, name="too few", shares=[[0], [1]])


def test_a_missing_microbatch_is_noticed_by_all_ranks():
    values(spawn(_one_too_few, 2))


@on_ranks(2)
def test_senseless_options_are_refused(rank, size, store):
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    model = DistributedDataParallel(torch.nn.Linear(2, 2))
    with pytest.raises(ArgumentError, match=r"bits = 'some': must be one of any, same"):
        ddp.attach(model, mode="native", bits="some")
    with pytest.raises(ArgumentError, match=r"contributions = 3: is for bits='same' only"):
        ddp.attach(model, mode="native", contributions=3)
    with pytest.raises(ArgumentError, match=r"contributions = 5000: must be in 1..2047"):
        ddp.attach(model, mode="native", bits="same", contributions=5000)
    with pytest.raises(ArgumentError, match="whose sums lack what the network loses"):
        ddp.attach(model, algorithm="optireduce", bits="same")

    attachment = ddp.attach(model, synth.generate(2), bits="same")
    with pytest.raises(ArgumentError, match="with other bits"):
        attachment.mode = "off"
    attachment.close()
    attachment = ddp.attach(model, mode="native")
    with pytest.raises(ArgumentError, match="is there with bits='same' only"):
        _ = attachment.same_bits
    attachment.close()


@on_ranks(2)
def test_who_has_attached_and_closes_ends_nobodys_connecting(rank, size, store):
    """Rank 0 is slow to connect; rank 1 must not have attached, and so can't close, before it."""

    def slowly(*args):
        connected = gloo(*args)
        time.sleep(0.3)
        store.set("rank 0 has connected", "")
        return connected

    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    model = DistributedDataParallel(torch.nn.Linear(2, 2))
    gloo = host.gloo
    with host.replaced(gloo=slowly if rank == 0 else gloo):
        attachment = ddp.attach(model, synth.generate(2), bits="same")
    assert store.check(["rank 0 has connected"])
    attachment.close()


@on_ranks(3, victims=[2])
def test_a_rank_that_dies_as_the_others_attach_is_named_and_all_is_closed(rank, size, store):
    def die(*args):
        os.kill(os.getpid(), signal.SIGKILL)

    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    model = DistributedDataParallel(torch.nn.Linear(2, 2))
    threads_before = set(threading.enumerate())
    with (
        host.replaced(gloo=die if rank == 2 else host.gloo),
        pytest.raises(RankFailure) as caught,
    ):
        ddp.attach(model, synth.generate(3), bits="same", timeout_s=8.0)
    assert caught.value.ranks == (2,)
    assert set(threading.enumerate()) <= threads_before


def _resumed(rank, size, store, stop_at):
    """The hash of the weights after eight steps, with a restart from a checkpoint or without."""
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    torch.manual_seed(0)
    model = DistributedDataParallel(Net())
    attachment = ddp.attach(model, mode="auto", profile=profile(size), bits="same")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(8):
        if step == stop_at:
            state = attachment.same_bits.state_dict()
            weights = {name: each.clone() for name, each in model.module.state_dict().items()}
            attachment.close()
            model = DistributedDataParallel(Net())
            model.module.load_state_dict(weights)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
            attachment = ddp.attach(model, mode="eager", bits="same", profile=profile(size))
            attachment.same_bits.load_state_dict(state)
        if step == 6:
            attachment.mode = "native"
        x, y = microbatch(step, rank)
        ((model(x) - y) ** 2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    repeated = attachment.same_bits.repeated
    bad = {"contributions": 7, "exponents": {}}
    with pytest.raises(ArgumentError, match="contributions = 7: must be 2"):
        attachment.same_bits.load_state_dict(bad)
    attachment.close()
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest(), repeated


def test_a_run_that_goes_on_from_a_checkpoint_has_the_same_bits():
    whole = values(spawn(_resumed, 2, None))
    again = values(spawn(_resumed, 2, 4))
    assert {bits for bits, _ in whole} == {bits for bits, _ in again}
    assert whole[0][1] >= 1
    assert again[0][1] < whole[0][1] + 1


def _spikes(rank, size, store):
    """What a spike, inf and nan do to the gradients of the step and of those after it."""
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    model = DistributedDataParallel(torch.nn.Linear(3, 2000, bias=False))
    attachment = ddp.attach(model, mode="native", bits="same")
    seen = []
    for scale in (1.0, 1.0, 1e12, 1.0, float("inf"), 1.0, float("nan"), 1.0):
        mine = scale if rank == 0 else 1.0
        model.zero_grad()
        (model(torch.ones(1, 3)) * mine).sum().backward()
        gradient = model.module.weight.grad
        seen.append((gradient[0, 0].item(), bool(gradient.isfinite().all())))
    repeated = attachment.same_bits.repeated
    attachment.close()
    return seen, repeated


def test_spikes_are_summed_again_and_inf_and_nan_stay_visible():
    for seen, repeated in values(spawn(_spikes, 2)):
        finite = [value for value, is_finite in seen if is_finite]
        assert finite == pytest.approx([1.0, 1.0, 5e11, 1.0, 1.0, 1.0])
        assert [is_finite for _, is_finite in seen] == [
            True, True, True, True, False, True, False, True,
        ]  # fmt: skip
        assert repeated <= 6


def _killed(rank, size, store):
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    model = DistributedDataParallel(torch.nn.Linear(300, 1000))
    attachment = ddp.attach(model, mode="auto", profile=profile(size), bits="same", timeout_s=20.0)
    for step in range(50):
        model.zero_grad()
        try:
            model(torch.ones(1, 300)).sum().backward()
        except RuntimeError:
            failure = attachment.reducer.failure
            attachment.close()
            return tuple(failure.ranks)
        if rank == 2 and step == 3:  # DDP's own group has nothing to do any more
            os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("nothing was noticed")


def test_a_dead_rank_is_named():
    outcomes = spawn(_killed, 3, victims=(2,))
    assert [outcome.value for outcome in outcomes[:2]] == [(2,), (2,)], outcomes
