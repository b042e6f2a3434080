"""A small language model in training over pipeline processes, while a link turns slow and recovers.

Each process is a stage; all stand on this machine. The gradients of every step and stage are
compared, bit for bit, with those of a sequential run of the same training in the parent process.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from runtime.network.processes import Say, talk
from runtime.pipeline.agent import Adaptation, Event
from runtime.pipeline.pipeline import Pipeline
from runtime.pipeline.transport import Faults
from runtime.torch_versions import Store
from verify.pipeline import PipelineSchedule
from verify.pipeline.measured import StepRecord
from verify.pipeline.measured_picture import bars, makespan_ms, side_by_side, text
from verify.pipeline.picture import svg, trace

VOCABULARY = 64
LENGTH = 24
WIDTH = 48
HEADS = 4
SEQUENCES = 4
RATE = 0.05
TIMEOUT_S = 60.0
SCALE = 30
COLUMNS = 96


class Block(nn.Module):
    """A causal transformer block, with the embedding in front or the head behind it."""

    def __init__(self, first: bool, last: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH) if first else nn.Identity()
        how: Any = {"dropout": 0.0, "batch_first": True, "norm_first": True}
        self.block = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, **how)
        self.head = nn.Linear(WIDTH, VOCABULARY) if last else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Tokens (sequences, length), or activations with WIDTH more; logits at the last stage."""
        future = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        out: torch.Tensor = self.head(self.block(self.embed(x), future, is_causal=True))
        return out


@dataclass(frozen=True)
class Setting:
    """What is run."""

    schedule: PipelineSchedule
    steps: int
    faults: Faults
    adaptation: Adaptation | None

    def blocks(self) -> list[Block]:
        """The model, the same in every process, each of which has a stage."""
        torch.manual_seed(0)
        last = self.schedule.stages - 1
        return [Block(s == 0, s == last) for s in range(last + 1)]

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens and the tokens that follow them: counting, in steps of 1 to 5."""
        generator = torch.Generator().manual_seed(step)
        rows = SEQUENCES * self.schedule.microbatches
        start = torch.randint(VOCABULARY, (rows, 1), generator=generator)
        stride = torch.randint(1, 6, (rows, 1), generator=generator)
        tokens = (start + stride * torch.arange(LENGTH + 1)) % VOCABULARY
        return tokens[:, :-1], tokens[:, 1:]


@dataclass(frozen=True)
class StepOnRank:
    """A step on one rank."""

    rank: int
    record: StepRecord
    gradients: str
    loss: float | None
    schedule: PipelineSchedule
    events: list[Event]


def loss_fn(logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy of the next token."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())


def sequential(setting: Setting) -> Iterator[tuple[list[str], float]]:
    """Per step: a fingerprint of the gradients of each stage, and the loss; without a pipeline."""
    blocks = setting.blocks()
    n = setting.schedule.microbatches
    for step in range(setting.steps):
        tokens, target = setting.batch(step)
        losses = []
        for x, y in zip(tokens.chunk(n), target.chunk(n), strict=True):
            loss = loss_fn(functools.reduce(lambda out, block: block(out), blocks, x), y)
            loss.backward()  # type: ignore[no-untyped-call]
            losses.append(loss.item())
        for gradient in (g for block in blocks for g in _gradients(block)):
            gradient.div_(n)
        yield [_fingerprint(block) for block in blocks], sum(losses) / n
        for block in blocks:
            _descend(block)


def run(setting: Setting) -> Iterator[list[StepOnRank]]:
    """Train on a process per stage; per step the lines of all ranks. RanksFailed if one fails."""
    lines: dict[int, list[StepOnRank]] = defaultdict(list)
    stages = setting.schedule.stages
    deadline_s = (2 + setting.steps) * TIMEOUT_S
    for line in talk(_rank, stages, setting, timeout_s=TIMEOUT_S, deadline_s=deadline_s):
        of_step = lines[line.record.step]
        of_step.append(line)
        if len(of_step) == stages:
            yield sorted(of_step, key=lambda line: line.rank)


def _rank(store: Store, rank: int, ranks: int, say: Say, setting: Setting) -> None:
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    block = setting.blocks()[rank]
    last = rank == ranks - 1
    seen = 0
    how: Any = {"faults": setting.faults, "adaptation": setting.adaptation}
    pipeline = Pipeline(block, setting.schedule, loss_fn, timeout_s=TIMEOUT_S, **how)
    for step in range(setting.steps):
        tokens, target = setting.batch(step)
        losses: list[torch.Tensor] = []
        inputs = () if rank else (tokens,)
        pipeline.step(*inputs, target=target if last else None, losses=losses)
        loss = sum(loss.item() for loss in losses) / len(losses) if losses else None
        plan = pipeline.verified.schedule
        events = pipeline.events
        say(StepOnRank(rank, pipeline.record, _fingerprint(block), loss, plan, events[seen:]))
        seen = len(events)
        _descend(block)
    pipeline.close()
    dist.destroy_process_group()


def _gradients(block: nn.Module) -> list[torch.Tensor]:
    return [p.grad for p in block.parameters() if p.grad is not None]


def _fingerprint(block: nn.Module) -> str:
    return hashlib.sha256(b"".join(g.numpy().tobytes() for g in _gradients(block))).hexdigest()


def _descend(block: nn.Module) -> None:
    with torch.no_grad():
        for parameter, gradient in zip(block.parameters(), _gradients(block), strict=True):
            parameter.sub_(gradient, alpha=RATE)
            parameter.grad = None


def show(setting: Setting, out: Path | None) -> bool:
    """Print the run; whether all gradients were right."""
    torch.set_num_threads(1)
    plan = setting.schedule
    what = f"{plan.stages} stages, {plan.microbatches} microbatches, {setting.steps} steps"
    print(f"{what}, {os.cpu_count()} cores; the delay is injected", flush=True)
    right = []
    chosen: dict[str, list[StepOnRank]] = {}  # the last step of each circumstance, by what it says
    for lines, (fingerprints, loss) in zip(run(setting), list(sequential(setting)), strict=True):
        first = lines[0]
        step = lines[0].record.step
        right.append([line.gradients for line in lines] == fingerprints and lines[-1].loss == loss)
        for event in first.events:
            print(f"         {event.kind}: {event.text}")
        slow = any(setting.faults.delay_s(r, r + 1, step)[0] for r in range(plan.stages - 1))
        seconds = max(line.record.ended_s - line.record.began_s for line in lines)
        link = "slow link" if slow else ""
        found = "equal the sequential run"
        print(
            f"step {step:3d} {link:9} {seconds * 1e3:7.1f} ms  schedule {first.record.digest[:6]}  "
            f"loss {loss:.4f}  gradients {found if right[-1] else 'ARE WRONG'}  "
            f"{'#' * round(seconds * SCALE)}",
            flush=True,
        )
        if step:
            chosen[f"{link or 'no delay'}, schedule {first.record.digest[:6]}"] = lines
    _timelines(chosen, out)
    print(f"gradients of {sum(right)} of {len(right)} steps equal the sequential run bit for bit")
    return all(right)


def _timelines(chosen: dict[str, list[StepOnRank]], out: Path | None) -> None:
    records = {about: {line.rank: line.record for line in of} for about, of in chosen.items()}
    drawn = {about: bars(of) for about, of in records.items()}
    end_ms = max(map(makespan_ms, drawn.values()), default=1.0)
    sheets = []
    for about, of in drawn.items():
        first = chosen[about][0]
        title = f"step {first.record.step}, {about}"
        print(f"\n{title}: {makespan_ms(of):.1f} ms")
        for rank, row in enumerate(text(of, COLUMNS, end_ms)):
            print(f"  rank {rank} {row}")
        sheets += side_by_side(title, first.schedule, records[about])
    print()
    if out is not None and sheets:
        out.mkdir(parents=True, exist_ok=True)
        (out / "timeline.svg").write_text(svg(sheets, "ms"))
        (out / "trace.json").write_text(trace(sheets, microseconds=1e3))
        print(f"planned and measured: {out / 'timeline.svg'}, {out / 'trace.json'}")
