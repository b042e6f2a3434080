"""A training job on handwritten digits that is to have the same bits: what one rank of it does.

A step has eight microbatches, whoever has them: with four ranks each has two, with eight one. All
else that a step depends on follows from its number and from the microbatch's: data, weights at the
start, a spike of the loss. Who is late, and by which mode or schedule gradients are summed, is what
runs differ in.
"""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch._dynamo  # which every rank's first optimizer would import, in seconds
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from latecomer import ddp, synth
from latecomer.runtime.policy.cost_model import AlphaBeta, Profile

CONTRIBUTIONS = 8
MICROBATCH = 16
LATE_S = 0.005
STOPPED_S = 1.0
"""How long a rank stands still that is stopped."""
TIMEOUT_S = 60.0
SPIKE = 1e6
"""By what the loss of one microbatch is multiplied, in one step."""
SPIKED_MICROBATCH = 5
BUCKET_MB = 0.1
"""So that a step takes several all-reduces."""

Batch = tuple[torch.Tensor, torch.Tensor]
"""Images and their classes."""

PATTERNS = ("nobody", "one rank", "another", "random", "alternating")
"""Who is late: nobody; rank 1 in every step; the last rank; any for any time; rank 0 and rank 2."""


@dataclass(frozen=True)
class Run:
    """One training from the beginning to the end."""

    ranks: int
    way: str  # one of ways()
    pattern: str  # one of PATTERNS
    bits: Literal["any", "same"]
    steps: int
    has_spike: bool = False
    is_stopped: bool = False  # half way the last rank stands still for a while

    @property
    def spiked_step(self) -> int:
        """The step whose loss has a spike, if any has."""
        return self.steps * 3 // 5


@dataclass(frozen=True)
class Report:
    """What a rank has of one run."""

    number: int  # of the run
    rank: int
    digest: str  # of all parameters
    parameters: np.ndarray
    losses: list[float]  # by step, the sum over its microbatches
    repeated_in: list[int]  # the steps in which sums were done again
    repeated: int  # how many sums
    longest_step_s: float


def ways(ranks: int) -> dict[str, dict[str, Any]]:
    """Name -> what ``ddp.attach`` is given, with a profile by which small buffers are worth it."""
    profile = Profile(ranks, native=AlphaBeta(1e-2, 1e-9), schedule=AlphaBeta(1e-5, 1e-10))
    several = [1, ranks - 1]
    attached: dict[str, dict[str, Any]] = {
        "native": {"mode": "native", "profile": profile},
        "static": {"mode": "static", "late": 1, "profile": profile},
        "static, two": {"mode": "static", "late": several, "profile": profile},
        "predict": {"mode": "predict", "profile": profile},
        "eager": {"mode": "eager", "profile": profile},
        "auto": {"mode": "auto", "profile": profile},
    }
    for chunks in (1, 3, 8):
        attached[f"schedule, k = {chunks}"] = {"schedule": synth.generate(ranks, chunks=chunks)}
    return attached


def network() -> nn.Module:
    """About 50,000 parameters, the same ones at every start."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(64, 256), nn.Tanh(), nn.Linear(256, 128), nn.Tanh(), nn.Linear(128, 10)
    )


@dataclass(frozen=True)
class Digits:
    """Images of handwritten digits, and which of them a microbatch has."""

    images: np.ndarray
    classes: np.ndarray

    def microbatches(self, step: int) -> list[Batch]:
        """Those of one step."""
        dice = np.random.default_rng(step)
        chosen = dice.integers(len(self.images), size=(CONTRIBUTIONS, MICROBATCH))
        return [
            (torch.from_numpy(self.images[rows]), torch.from_numpy(self.classes[rows]))
            for rows in chosen
        ]


def loss_of(model: nn.Module, batch: Batch) -> torch.Tensor:
    """Of one microbatch."""
    images, classes = batch
    return nn.functional.cross_entropy(model(images), classes)


def update(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Turn gradients into the next parameters."""
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def parameters_of(model: nn.Module) -> np.ndarray:
    """All of them in one row."""
    return torch.cat([each.detach().flatten() for each in model.parameters()]).numpy()


def share(rank: int, ranks: int) -> range:
    """The microbatches that a rank has."""
    return range(CONTRIBUTIONS * rank // ranks, CONTRIBUTIONS * (rank + 1) // ranks)


def late_s(run: Run, step: int, rank: int) -> float:
    """How long a rank sleeps in a step."""
    if run.pattern == "random":
        dice = random.Random(f"{run.way} {step}")
        late_rank = dice.randrange(run.ranks)
        return 2 * LATE_S * dice.random() if rank == late_rank else 0.0
    late = {
        "nobody": None,
        "one rank": 1,
        "another": run.ranks - 1,
        "alternating": 0 if step % 2 else 2,
    }
    return LATE_S if rank == late[run.pattern] else 0.0


def stop_this_process() -> subprocess.Popen[bytes]:
    """All threads stand still for a while, wherever they are, from some moment soon on."""
    pid = os.getpid()
    commands = f"kill -STOP {pid}; sleep {STOPPED_S:g}; kill -CONT {pid}"
    return subprocess.Popen(["sh", "-c", commands])


def rank_side(
    store: Any,
    rank: int,
    ranks: int,
    say: Callable[[Any], None],
    digits: Digits,
    runs: list[Run],
) -> None:
    """One rank, which says a Report after each run."""
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    attached = ways(ranks)
    trainer = None
    for number, run in enumerate(runs):
        if trainer is None or not trainer.serves(run):
            if trainer is not None:
                trainer.attachment.close()
            trainer = Trainer(run, attached[run.way], rank)
        say(trainer.train(number, run, digits))
    if trainer is not None:
        trainer.attachment.close()
    dist.destroy_process_group()


class Trainer:
    """A model with what reduces its gradients, for one run after the other.

    To attach takes longer than a short run does. Each run begins with the same weights and, as a
    new job would, without exponents.
    """

    def __init__(self, run: Run, attached: dict[str, Any], rank: int) -> None:
        self._way = run.way
        self._bits = run.bits
        self._rank = rank
        self._model = DistributedDataParallel(network(), bucket_cap_mb=BUCKET_MB)
        contributions = CONTRIBUTIONS if run.bits == "same" else None
        self.attachment = ddp.attach(
            self._model,
            **attached,
            bits=run.bits,
            contributions=contributions,
            timeout_s=TIMEOUT_S,
        )
        self._without_exponents = self._state()

    def serves(self, run: Run) -> bool:
        """Whether a run goes by what is attached."""
        return (run.way, run.bits) == (self._way, self._bits)

    def train(self, number: int, run: Run, digits: Digits) -> Report:
        """This rank's part of one run."""
        model = self._model
        model.module.load_state_dict(network().state_dict())
        if self._bits == "same":
            self.attachment.same_bits.load_state_dict(self._without_exponents)
        optimizer = optimizer_of(model)
        *first_ones, last = share(self._rank, run.ranks)

        is_stopped = run.is_stopped and self._rank == run.ranks - 1
        losses = []
        repeated_in = []
        repeated_before = self._repeated()
        longest_step_s = 0.0
        for step in range(run.steps):
            began_s = time.monotonic()
            began_repeated = self._repeated()
            if is_stopped and step == run.steps // 2:
                stopping = stop_this_process()
            if is_stopped and step == run.steps - 1:
                stopping.wait()
            batches = digits.microbatches(step)
            total = 0.0
            for microbatch in first_ones:
                with model.no_sync():
                    total += self._backward(batches, microbatch, run, step)
            time.sleep(late_s(run, step, self._rank))
            total += self._backward(batches, last, run, step)
            update(model, optimizer)

            losses.append(total)
            if self._repeated() > began_repeated:
                repeated_in.append(step)
            longest_step_s = max(longest_step_s, time.monotonic() - began_s)
        parameters = parameters_of(model)
        return Report(
            number=number,
            rank=self._rank,
            digest=hashlib.sha256(parameters.tobytes()).hexdigest()[:16],
            parameters=parameters,
            losses=losses,
            repeated_in=repeated_in,
            repeated=self._repeated() - repeated_before,
            longest_step_s=longest_step_s,
        )

    def _backward(self, batches: list[Batch], microbatch: int, run: Run, step: int) -> float:
        """The loss of a microbatch, whose gradient is added to what is there."""
        loss = loss_of(self._model, batches[microbatch])
        # Without the option DDP averages over ranks, each of which has a sum over microbatches.
        factor = 1.0 if self._bits == "same" else run.ranks / CONTRIBUTIONS
        if run.has_spike and step == run.spiked_step and microbatch == SPIKED_MICROBATCH:
            factor *= SPIKE
        (loss * factor).backward()
        return loss.item()

    def _repeated(self) -> int:
        return self.attachment.same_bits.repeated if self._bits == "same" else 0

    def _state(self) -> dict[str, Any]:
        return self.attachment.same_bits.state_dict() if self._bits == "same" else {}


def in_float64(digits: Digits, steps: int) -> tuple[np.ndarray, list[float]]:
    """The same training in one process and in float64: parameters, and the loss by step."""
    model = network().double()
    optimizer = optimizer_of(model)
    losses = []
    for step in range(steps):
        batches = digits.microbatches(step)
        of_microbatches = [loss_of(model, (images.double(), y)) for images, y in batches]
        loss = torch.stack(of_microbatches).mean()
        loss.backward()
        update(model, optimizer)
        losses.append(loss.item())
    return parameters_of(model), losses
