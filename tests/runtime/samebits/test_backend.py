"""All-reduces through the backend have the same bits, though nobody says which tensor is which."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist

import latecomer
from latecomer import synth
from latecomer.runtime.samebits.engine import SameBitsEngine
from latecomer.verify.errors import ArgumentError
from tests.runtime.samebits.test_training import profile
from tests.runtime.spawning import on_ranks, spawn, values

RANKS = 4
SIZES = [3, 700, 700, 40]
STEPS = 4


def contribution(step, place, rank):
    """Tensors of one size have different magnitudes, which also change."""
    generator = torch.Generator().manual_seed(100 * step + place)
    numbers = torch.randn(RANKS, SIZES[place], generator=generator)
    return numbers[rank] * 10.0 ** (3 * place) * 0.7**step


def _all_ways(rank, size, store):
    options = {
        "native": {"mode": "native"},
        "auto": {"mode": "auto"},
        "eager": {"mode": "eager", "threshold_s": 0.0},
        "static 0": {"mode": "static", "late": 0},
        "static 3": {"mode": "static", "late": 3},
    }
    results = {}
    for number, name in enumerate([*options, "schedule", "without 0", "without 3"]):
        if name == "schedule":
            latecomer.configure(synth.generate(size), bits="same")
        elif name in options:
            latecomer.configure(**options[name], profile=profile(size), bits="same")
        else:
            late = int(name.split()[1])
            latecomer.configure(mode="static", late=late, profile=profile(size))
        here = dist.PrefixStore(name, store)
        dist.init_process_group("latecomer", store=here, rank=rank, world_size=size)
        bits = []
        for step in range(STEPS):
            tensors = [contribution(step, place, rank) for place in range(len(SIZES))]
            if rank == (step + number) % size:
                time.sleep(0.003)
            works = []
            for place, tensor in enumerate(tensors):
                op = dist.ReduceOp.AVG if place % 2 else dist.ReduceOp.SUM
                works.append(dist.all_reduce(tensor, op, async_op=True))
            counted = torch.tensor([step, rank])
            works.append(dist.all_reduce(counted, async_op=True))
            for work in works:
                work.wait()
            assert counted.tolist() == [size * step, sum(range(size))]
            bits += [tensor.view(torch.int32).tolist() for tensor in tensors]
            for place, tensor in enumerate(tensors):
                exact = sum(contribution(step, place, each).double() for each in range(size))
                exact = exact / size if place % 2 else exact
                error = (tensor.double() - exact).norm() / exact.norm()
                assert error < 2e-6, (name, step, place, error)
        if name not in ("without 0", "without 3"):
            assert isinstance(dist.group.WORLD.engine, SameBitsEngine)
            if name != "schedule":
                assert dist.group.WORLD.reducer.options.bits == "same"
        dist.destroy_process_group()
        results[name] = bits
    return results


def test_one_result_in_every_mode_whoever_is_late():
    for results in values(spawn(_all_ways, RANKS, timeout_s=120)):
        same = [bits for name, bits in results.items() if not name.startswith("without")]
        assert all(bits == same[0] for bits in same)
        assert results["without 0"] != results["without 3"]


@on_ranks(2)
def test_the_environment_says_it_and_optireduce_refuses(rank, size, store):
    patch = pytest.MonkeyPatch()
    with patch.context() as environment:
        environment.setenv("LATECOMER_MODE", "native")
        environment.setenv("LATECOMER_BITS", "same")
        dist.init_process_group("latecomer", store=store, rank=rank, world_size=size)
        tensor = torch.full((10,), rank + 1.0)
        dist.all_reduce(tensor)
        assert tensor.tolist() == [3.0] * 10
        assert isinstance(dist.group.WORLD.engine, SameBitsEngine)
        environment.setenv("LATECOMER_BITS", "some")
        with pytest.raises(
            ArgumentError, match="LATECOMER_BITS = 'some': must be one of any, same"
        ):
            latecomer.configure(mode="auto")
        environment.setenv("LATECOMER_BITS", "same")
        with pytest.raises(ArgumentError, match="is not for algorithm='optireduce'"):
            latecomer.configure(algorithm="optireduce")
