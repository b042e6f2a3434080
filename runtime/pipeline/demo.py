"""A small language model in training over pipeline processes, while a link turns slow and recovers.

Each process is a stage; all stand on this machine. The gradients of every step and stage are
compared, bit for bit, with those of a sequential run of the same training in the parent process.
"""

from __future__ import annotations

import functools
import hashlib
import math
import multiprocessing as mp
import queue
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from runtime.pipeline.agent import Event
from runtime.pipeline.faults import Faults
from runtime.pipeline.pipeline import Pipeline
from runtime.pipeline.replan import Adaptation
from runtime.pipeline.timing import StepRecord
from runtime.torch_versions import TCPStore
from verify.errors import RankFailure
from verify.pipeline import PipelineSchedule

VOCABULARY, LENGTH, WIDTH, HEADS, SEQUENCES = 64, 24, 48, 4, 4
RATE = 0.05
TIMEOUT_S = 60.0


class Block(nn.Module):
    """A causal transformer block, with the embedding in front or the head behind it."""

    def __init__(self, first: bool, last: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH) if first else None
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.mix, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY) if last else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Tokens (sequences, length), or activations with WIDTH more; logits at the last stage."""
        if self.embed is not None:
            x = self.embed(x)
        rows, length, _ = x.shape
        heads = self.mix(self.norms[0](x)).view(rows, length, 3, HEADS, WIDTH // HEADS)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        scores = (q @ k.transpose(-1, -2)) / math.sqrt(WIDTH // HEADS)
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(rows, length, WIDTH))
        x = x + self.down(torch.relu(self.up(self.norms[1](x))))
        return x if self.head is None else self.head(x)


@dataclass(frozen=True)
class Setting:
    """What is run."""

    schedule: PipelineSchedule
    steps: int
    faults: Faults
    adaptation: Adaptation | None

    @property
    def stages(self) -> int:
        """One per process."""
        return self.schedule.stages

    def blocks(self) -> list[Block]:
        """The model, the same in every process."""
        torch.manual_seed(0)
        return [Block(s == 0, s == self.stages - 1) for s in range(self.stages)]

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens and the tokens that follow them: counting, in steps of 1 to 5."""
        generator = torch.Generator().manual_seed(step)
        rows = SEQUENCES * self.schedule.microbatches
        start = torch.randint(VOCABULARY, (rows, 1), generator=generator)
        stride = torch.randint(1, 6, (rows, 1), generator=generator)
        tokens = (start + stride * torch.arange(LENGTH + 1)) % VOCABULARY
        return tokens[:, :-1], tokens[:, 1:]


@dataclass(frozen=True)
class Line:
    """A step on one rank; ``error`` is set, and all else meaningless, where it failed."""

    rank: int
    step: int
    record: StepRecord
    gradients: str
    loss: float | None
    schedule: PipelineSchedule
    events: list[Event]
    error: str = ""


def loss_fn(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy of the next token."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def sequential(setting: Setting) -> Iterator[tuple[list[str], float]]:
    """Per step: a fingerprint of the gradients of each stage, and the loss; without a pipeline."""
    blocks, n = setting.blocks(), setting.schedule.microbatches
    for step in range(setting.steps):
        tokens, target = setting.batch(step)
        losses = []
        for x, y in zip(tokens.chunk(n), target.chunk(n), strict=True):
            loss = loss_fn(functools.reduce(lambda out, block: block(out), blocks, x), y)
            loss.backward()  # type: ignore[no-untyped-call]
            losses.append(loss.item())
        for block in blocks:
            for parameter in block.parameters():
                assert parameter.grad is not None
                parameter.grad.div_(n)
        yield [_fingerprint(block) for block in blocks], sum(losses) / n
        for block in blocks:
            _descend(block)


def run(setting: Setting, show: Callable[[list[Line]], None]) -> None:
    """Train on ``setting.stages`` processes; ``show`` gets the lines of all ranks of each step.

    Raises:
        RankFailure: a process failed or fell silent.
    """
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["runtime.pipeline"])
    limit = timedelta(seconds=TIMEOUT_S)
    store = TCPStore("127.0.0.1", 0, None, True, limit, wait_for_workers=False)
    lines: Any = context.Queue()
    processes = [
        context.Process(target=_rank, args=(r, setting, store.port, lines), daemon=True)
        for r in range(setting.stages)
    ]
    for process in processes:
        process.start()
    waiting: dict[int, list[Line]] = {}
    try:
        for _ in range(setting.stages * setting.steps):
            try:
                line: Line = lines.get(timeout=2 * TIMEOUT_S)
            except queue.Empty:
                raise RankFailure([], f"no step ended within {2 * TIMEOUT_S:g} s") from None
            if line.error:
                raise RankFailure([line.rank], f"rank {line.rank} failed", [line.error])
            waiting.setdefault(line.step, []).append(line)
            if len(waiting[line.step]) == setting.stages:
                show(sorted(waiting.pop(line.step), key=lambda line: line.rank))
        for process in processes:
            process.join(timeout=TIMEOUT_S)
    finally:
        for process in processes:
            process.kill()


def _rank(rank: int, setting: Setting, port: int, lines: Any) -> None:
    torch.set_num_threads(1)
    nothing = StepRecord(-1, "", 0.0)
    try:
        store = TCPStore("127.0.0.1", port, None, False, timedelta(seconds=TIMEOUT_S))
        dist.init_process_group("gloo", store=store, rank=rank, world_size=setting.stages)
        block = setting.blocks()[rank]
        pipeline = Pipeline(
            block,
            setting.schedule,
            loss_fn,
            timeout_s=TIMEOUT_S,
            faults=setting.faults,
            adaptation=setting.adaptation,
        )
        told = 0
        for step in range(setting.steps):
            tokens, target = setting.batch(step)
            losses: list[torch.Tensor] = []
            inputs = (tokens,) if rank == 0 else ()
            last = rank == setting.stages - 1
            pipeline.step(*inputs, target=target if last else None, losses=losses)
            events = pipeline.events
            loss = sum(loss.item() for loss in losses) / len(losses) if losses else None
            lines.put(
                Line(
                    rank,
                    step,
                    pipeline.record,
                    _fingerprint(block),
                    loss,
                    pipeline.verified.schedule,
                    events[told:],
                )
            )
            told = len(events)
            _descend(block)
        pipeline.close()
        dist.destroy_process_group()
    except Exception:
        error = traceback.format_exc()
        lines.put(Line(rank, -1, nothing, "", None, setting.schedule, [], error))
        time.sleep(1.0)  # the queue's thread needs a moment before the process is killed


def _fingerprint(block: nn.Module) -> str:
    found = hashlib.sha256()
    for parameter in block.parameters():
        assert parameter.grad is not None
        found.update(parameter.grad.numpy().tobytes())
    return found.hexdigest()


def _descend(block: nn.Module) -> None:
    with torch.no_grad():
        for parameter in block.parameters():
            assert parameter.grad is not None
            parameter.sub_(parameter.grad, alpha=RATE)
            parameter.grad = None
