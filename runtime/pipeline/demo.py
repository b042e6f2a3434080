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

import torch
import torch.distributed as dist
from torch import nn

from latecomer.runtime.network.processes import Say, talk
from latecomer.runtime.pipeline.agent import Adaptation, Event
from latecomer.runtime.pipeline.pipeline import Pipeline
from latecomer.runtime.pipeline.transport import Faults
from latecomer.runtime.torch_versions import Store
from latecomer.verify.pipeline import PipelineSchedule
from latecomer.verify.pipeline.measured import StepRecord
from latecomer.verify.pipeline.measured_picture import bars, makespan_ms, side_by_side, text
from latecomer.verify.pipeline.picture import svg, trace

VOCABULARY = 64
LENGTH = 24  # of a sequence
WIDTH = 48
HEADS = 4
SEQUENCES = 4  # of a microbatch
RATE = 0.05
TIMEOUT_S = 60.0
SCALE = 30  # characters for each second of a step
COLUMNS = 96  # of a drawn timeline


class Block(nn.Module):
    """A causal transformer block, with the embedding in front or the head behind it."""

    def __init__(self, first: bool, last: bool) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH) if first else nn.Identity()
        self.block = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
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
    """Train on a process per stage; each step on all ranks. RanksFailed if one fails."""
    steps: dict[int, list[StepOnRank]] = defaultdict(list)
    stages = setting.schedule.stages
    deadline_s = (2 + setting.steps) * TIMEOUT_S
    for step_on_rank in talk(_rank, stages, setting, timeout_s=TIMEOUT_S, deadline_s=deadline_s):
        on_ranks = steps[step_on_rank.record.step]
        on_ranks.append(step_on_rank)
        if len(on_ranks) == stages:
            yield sorted(on_ranks, key=lambda step_on_rank: step_on_rank.rank)


def _rank(store: Store, rank: int, ranks: int, say: Say, setting: Setting) -> None:
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
    block = setting.blocks()[rank]
    last = rank == ranks - 1
    told_events = 0
    pipeline = Pipeline(
        block,
        setting.schedule,
        loss_fn,
        timeout_s=TIMEOUT_S,
        faults=setting.faults,
        adaptation=setting.adaptation,
    )
    for step in range(setting.steps):
        tokens, target = setting.batch(step)
        losses: list[torch.Tensor] = []
        inputs = () if rank else (tokens,)
        pipeline.step(*inputs, target=target if last else None, losses=losses)
        loss = sum(loss.item() for loss in losses) / len(losses) if losses else None
        events = pipeline.events
        say(
            StepOnRank(
                rank=rank,
                record=pipeline.record,
                gradients=_fingerprint(block),
                loss=loss,
                schedule=pipeline.verified.schedule,
                events=events[told_events:],
            )
        )
        told_events = len(events)
        _descend(block)
    pipeline.close()
    dist.destroy_process_group()


def _gradients(block: nn.Module) -> list[torch.Tensor]:
    return [parameter.grad for parameter in block.parameters() if parameter.grad is not None]


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
    job = f"{plan.stages} stages, {plan.microbatches} microbatches, {setting.steps} steps"
    print(f"{job}, {os.cpu_count()} cores; the delay is injected", flush=True)

    right = []
    chosen: dict[str, list[StepOnRank]] = {}  # the last step of each circumstance, by its title
    expected = list(sequential(setting))
    for on_ranks, (fingerprints, loss) in zip(run(setting), expected, strict=True):
        first = on_ranks[0]
        step = first.record.step
        gradients = [step_on_rank.gradients for step_on_rank in on_ranks]
        right.append(gradients == fingerprints and on_ranks[-1].loss == loss)
        for event in first.events:
            print(f"         {event.kind}: {event.text}")

        slow = any(setting.faults.delay_s(r, r + 1, step)[0] for r in range(plan.stages - 1))
        records = [step_on_rank.record for step_on_rank in on_ranks]
        seconds = max(record.ended_s - record.began_s for record in records)
        link = "slow link" if slow else ""
        verdict = "equal the sequential run" if right[-1] else "ARE WRONG"
        print(
            f"step {step:3d} {link:9} {seconds * 1e3:7.1f} ms  schedule {first.record.digest[:6]}  "
            f"loss {loss:.4f}  gradients {verdict}  {'#' * round(seconds * SCALE)}",
            flush=True,
        )
        if step:  # the first one has allocations and first kernels in it
            chosen[f"{link or 'no delay'}, schedule {first.record.digest[:6]}"] = on_ranks

    _timelines(chosen, out)
    print(f"gradients of {sum(right)} of {len(right)} steps equal the sequential run bit for bit")
    return all(right)


def _timelines(chosen: dict[str, list[StepOnRank]], out: Path | None) -> None:
    records = {}
    for circumstance, on_ranks in chosen.items():
        by_rank = {step_on_rank.rank: step_on_rank.record for step_on_rank in on_ranks}
        records[circumstance] = by_rank
    drawn = {circumstance: bars(by_rank) for circumstance, by_rank in records.items()}

    end_ms = max(map(makespan_ms, drawn.values()), default=1.0)  # one scale for all
    sheets = []
    for circumstance, drawn_bars in drawn.items():
        first = chosen[circumstance][0]
        title = f"step {first.record.step}, {circumstance}"
        print(f"\n{title}: {makespan_ms(drawn_bars):.1f} ms")
        for rank, row in enumerate(text(drawn_bars, COLUMNS, end_ms)):
            print(f"  rank {rank} {row}")
        sheets += side_by_side(title, first.schedule, records[circumstance])
    print()
    if out is not None and sheets:
        out.mkdir(parents=True, exist_ok=True)
        (out / "timeline.svg").write_text(svg(sheets, "ms"))
        (out / "trace.json").write_text(trace(sheets, microseconds=1e3))
        print(f"planned and measured: {out / 'timeline.svg'}, {out / 'trace.json'}")
