"""Train a small convolutional network on handwritten digits, plain DDP beside a schedule.

    torchrun --standalone --nproc-per-node 8 examples/digits.py --schedule schedule.json

One rank sleeps before every backward pass. Two equal models are trained on the same batches, epoch
by epoch in turn: one by DDP's own all_reduce, one by the schedule. Everything claimed at the end
is checked: parameters are equal on all ranks bit for bit, and agree with plain DDP to rounding.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import statistics
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from rounds_picture import Timeline, draw_rounds
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from latecomer import ddp, load

BATCH = 16
TOLERANCE = 1e-3


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--schedule", required=True, help="made with: synth generate")
    parser.add_argument("--late", type=int, default=5, help="the rank that is late (default 5)")
    parser.add_argument("--delay-ms", type=float, default=60.0, help="by how much, in every step")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--picture", help="draw one step's rounds here (.svg, .png)")
    return parser.parse_args()


def digits() -> tuple[torch.Tensor, torch.Tensor]:
    """1797 images [1, 8, 8] in 0..1 and their classes; loaded by rank 0, sent to all."""
    box: list[Any] = [None]
    if dist.get_rank() == 0:
        from sklearn.datasets import load_digits

        data = load_digits()
        box = [(data.images / 16.0, data.target)]
    dist.broadcast_object_list(box)
    images, classes = box[0]
    return torch.tensor(images, dtype=torch.float32).unsqueeze(1), torch.tensor(classes)


def network(seed: int) -> nn.Module:
    """About 76,000 parameters.

    Smooth throughout: where a ReLU or a maximum may flip, two right orders of the same additions
    can train to different parameters, and there would be nothing to compare.
    """
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.Tanh(),
        nn.Conv2d(16, 32, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(512, 128), nn.Tanh(), nn.Linear(128, 10),
    )  # fmt: skip


@dataclass
class Contestant:
    """A model with its way of reducing gradients, and what was measured of it."""

    name: str
    model: DistributedDataParallel
    timeline: Timeline
    losses: list[float] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    def epoch(self, batches: list[Any], delay_s: float) -> None:
        """Train on ``batches``, sleeping before every backward pass."""
        total = 0.0
        for images, classes in batches:
            dist.barrier()
            began = time.monotonic()
            self.optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self.model(images), classes)
            time.sleep(delay_s)
            loss.backward()
            self.optimizer.step()
            self.step_s.append(time.monotonic() - began)
            total += loss.item()
        mean = torch.tensor([total / len(batches)])
        dist.all_reduce(mean)
        self.losses.append(mean.item() / dist.get_world_size())

    def parameters(self) -> torch.Tensor:
        """All parameters in one row."""
        return torch.cat([p.detach().flatten() for p in self.model.parameters()])


def stamped_all_reduce(timeline: Timeline, bucket: Any) -> torch.futures.Future[torch.Tensor]:
    """What DDP does without a hook (divide, then all_reduce), with the times noted."""
    number = len(timeline.arrived_s)
    timeline.arrived_s[number] = time.monotonic()
    tensor = bucket.buffer().div_(dist.get_world_size())
    work = dist.all_reduce(tensor, async_op=True)

    def stamp(future: torch.futures.Future[Any]) -> torch.Tensor:
        timeline.done_s[number] = time.monotonic()
        return future.value()[0]

    return work.get_future().then(stamp)


# torch compares a hook's annotation with the type itself, and the future import made it a string
stamped_all_reduce.__annotations__.clear()


def gather(value: Any) -> list[Any]:
    everything: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everything, value)
    return everything


@dataclass(frozen=True)
class Arrivals:
    """Per rank: how long it waited for the last, how often it was the last; per operation:
    how long after the last arrival everybody had the result."""

    waited_ms: list[float]
    last_share: list[float]
    after_ms: float


def arrivals(timeline: Timeline, warm_up: int) -> Arrivals:
    """Gather the arrivals of all ranks (one machine, one clock) and compare them."""
    tables = gather((timeline.arrived_s, timeline.done_s))
    numbers = sorted(tables[0][0])[warm_up:]
    waited: list[list[float]] = [[] for _ in tables]
    last = [0] * len(tables)
    after = []
    for number in numbers:
        came = [arrived[number] for arrived, _ in tables]
        for rank, moment in enumerate(came):
            waited[rank].append((max(came) - moment) * 1e3)
        last[came.index(max(came))] += 1
        after.append((max(done[number] for _, done in tables) - max(came)) * 1e3)
    return Arrivals(
        [statistics.median(times) for times in waited],
        [count / len(numbers) for count in last],
        statistics.median(after),
    )


def check(plain: Contestant, scheduled: Contestant) -> float:
    """Same bits on all ranks; within rounding of plain DDP; returns the largest difference."""
    for contestant in (plain, scheduled):
        bits = hashlib.sha256(contestant.parameters().numpy().tobytes()).hexdigest()
        if len(set(gather(bits))) != 1:
            raise SystemExit(f"{contestant.name}: the ranks' parameters differ")
    difference = (plain.parameters() - scheduled.parameters()).abs().max().item()
    if not difference <= TOLERANCE:
        raise SystemExit(f"the schedule's parameters are off plain DDP's by {difference}")
    return difference


def accuracy(model: nn.Module, images: torch.Tensor, classes: torch.Tensor) -> float:
    with torch.no_grad():
        return (model(images).argmax(1) == classes).float().mean().item()


def main() -> None:
    options = parse()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    size = dist.get_world_size()
    images, classes = digits()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(options.seed))
    train = order[: len(order) * 4 // 5]
    test = order[len(order) * 4 // 5 :]

    verified = load(options.schedule)
    plain_times = Timeline()
    times = Timeline(watched=range(6, 10**9))
    plain = Contestant(
        "plain DDP",
        DistributedDataParallel(network(options.seed)),
        plain_times,
    )
    plain.model.register_comm_hook(plain_times, stamped_all_reduce)
    scheduled = Contestant(
        "schedule",
        DistributedDataParallel(network(options.seed)),
        times,
    )
    attachment = ddp.attach(
        scheduled.model, verified, late=options.late, timeout_s=60, observer=times
    )
    if rank == 0:
        report = verified.report
        print(
            f"running {verified.name}: {report.verdict.value}, {report.rounds} rounds, of them "
            f"{report.completion_rounds} after rank {options.late} is there "
            f"(lower bound {report.lower_bound})",
            flush=True,
        )
    delay_s = options.delay_ms / 1e3 if rank == options.late else 0.0
    for epoch in range(options.epochs):
        shuffled = train[torch.randperm(len(train), generator=torch.Generator().manual_seed(epoch))]
        mine = shuffled[: len(shuffled) // (BATCH * size) * BATCH * size].view(-1, size, BATCH)
        batches = [(images[part[rank]], classes[part[rank]]) for part in mine]
        for contestant in (plain, scheduled):
            contestant.epoch(batches, delay_s)
        if rank == 0:
            print(
                f"epoch {epoch + 1}: loss {plain.losses[-1]:.4f} plain DDP, "
                f"{scheduled.losses[-1]:.4f} schedule",
                flush=True,
            )
    difference = check(plain, scheduled)
    warm_up = 8
    found = [arrivals(c.timeline, warm_up) for c in (plain, scheduled)]
    watched = max(times.arrived_s) - 1
    spans = gather([round for round in times.ended if round.operation == watched])
    moments = gather((times.arrived_s[watched], times.done_s[watched]))
    if rank == 0:
        summary(options, (plain, scheduled), found, (images[test], classes[test]))
        print("parameters: equal bit for bit on all ranks, in both")
        print(f"            largest difference between the two: {difference:.1e}")
        if options.picture:
            os.makedirs(os.path.dirname(options.picture) or ".", exist_ok=True)
            title = f"The gradients of one step, {size} ranks, rank {options.late} late"
            draw_rounds(spans, *zip(*moments, strict=True), options.picture, title)
            print(f"picture of one step's rounds: {options.picture}")
    attachment.close()
    dist.destroy_process_group()


def summary(
    options: argparse.Namespace,
    contestants: tuple[Contestant, Contestant],
    found: list[Arrivals],
    test: tuple[torch.Tensor, torch.Tensor],
) -> None:
    rows = [
        ("test accuracy", [f"{accuracy(c.model.module, *test):.3f}" for c in contestants]),
        (
            "time per step, median",
            [f"{statistics.median(c.step_s) * 1e3:.1f} ms" for c in contestants],
        ),
        ("from last arrival to result", [f"{a.after_ms:.2f} ms" for a in found]),
    ]
    for rank in range(len(found[0].waited_ms)):
        cells = [f"{a.waited_ms[rank]:5.1f} ms, last {a.last_share[rank]:4.0%}" for a in found]
        rows.append((f"rank {rank} waited ", cells))
    print(f"\n{'':<30}{contestants[0].name:>24}{contestants[1].name:>24}")
    for name, cells in rows:
        print(f"{name:<30}{cells[0]:>24}{cells[1]:>24}")
    late = max(range(len(found[1].last_share)), key=lambda r: found[1].last_share[r])
    print(f"\nlate: rank {late} (delayed by {options.delay_ms:g} ms per step: rank {options.late})")


if __name__ == "__main__":
    sys.exit(main())
