"""One rank of the training measurements: trains models one after the other, tells what came of it.

    python -m bench.optireduce.trainer JSON      the environment says which rank it is

A run is a way (Gloo's all-reduce under plain DDP, or OptiReduce), the share of the datagrams that
every rank throws away on arrival (credits among them), and a seed. The seed draws the model's
start, the order of the batches and what is thrown away, so that ways of one seed start alike and
see the same batches. The learning rate is constant for half of the steps, then falls to zero in a
straight line: at the end accuracy depends little on the last few batches.

All runs of a job share processes and data, as the start of four processes costs as much as a short
run. Each has its own model, engine and connections.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bench.optireduce.models import TASKS, Task
from bench.optireduce.places import TIMEOUT_S, Place
from runtime import ddp
from runtime.optireduce.options import Options
from runtime.optireduce.udp.compiled.choice import choose
from runtime.optireduce.udp.socket import UdpSocket

GLOO = "Gloo"
OURS = "OptiReduce"
BATCH = 32
MARKS = 3
"""Times that a whole run's accuracy is looked at."""
LOOK_EVERY = 5
SLOW_S = 1.0
"""Steps between two looks at whether the time is up; one where a step takes longer than that."""


@dataclass(frozen=True)
class Run:
    """One training.

    Attributes:
        way: GLOO or OURS.
        share: of the datagrams, thrown away.
    """

    way: str
    share: float
    seed: int


@dataclass(frozen=True)
class Job:
    """What a rank has to do.

    Attributes:
        task: of ``TASKS``.
        steps: of each run; 0: as many as the task says.
        warm_up: first steps, which are not timed (but in a run that stops within them).
        cap_s: a run whose steps have taken so long stops; OptiReduce always ends its warm-up.
        datagram_bytes: of OptiReduce.
    """

    task: str
    runs: list[Run]
    steps: int
    warm_up: int
    cap_s: float
    datagram_bytes: int = Options.datagram_bytes

    def argv(self) -> list[str]:
        """The module and its argument."""
        return ["bench.optireduce.trainer", json.dumps(asdict(self))]

    @classmethod
    def read(cls, text: str) -> Job:
        """The inverse."""
        told = json.loads(text)
        return cls(**{**told, "runs": [Run(**one) for one in told["runs"]]})


class Thrown:
    """Datagrams that this process throws away on arrival: none, until told."""

    def __init__(self) -> None:
        self.draw(0.0, 0)
        receive = UdpSocket.receive

        def lossy(channel: UdpSocket) -> Any:
            rows = receive(channel)
            if rows is None or not self._share:
                return rows
            return rows[self._dice.random(len(rows)) >= self._share]

        UdpSocket.receive = lossy  # type: ignore[method-assign]

    def draw(self, share: float, seed: int) -> None:
        """From now on so large a share."""
        self._share = share
        self._dice = np.random.default_rng(seed)


def train(place: Place, job: Job, task: Task, run: Run, name: str) -> dict[str, Any]:
    """One run; its name is the same on all ranks, and nobody else's.

    Returns:
        seconds: of each step after the warm-up (:class:`Job`).
        right: test images of this rank's part told rightly, after 1/4 and 3/4 of the steps and at
            the end (after a last re-synchronization); fewer for a run that stopped.
        tested: how many images this rank's part has.
        lost, skipped, bound_s, drift (the largest before a re-synchronization): of OptiReduce.
    """
    model = DistributedDataParallel(task.model(run.seed), bucket_cap_mb=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=task.rate, momentum=0.9)
    attachment = None
    if run.way == OURS:
        options = Options(warmup_steps=job.warm_up, datagram_bytes=job.datagram_bytes)
        attachment = ddp.attach(
            model, algorithm="optireduce", options=options, optimizer=optimizer, timeout_s=TIMEOUT_S
        )
    steps = job.steps or task.steps
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda at: min(1.0, 2 - 2 * at / steps))
    inputs, classes = task.train
    tests = [part[place.rank :: place.size] for part in task.test]
    dice = torch.Generator().manual_seed(100 * run.seed + place.rank)
    look = 1
    drift = 0.0
    marks: list[int] = []
    times: list[float] = []

    def right() -> int:
        with torch.no_grad():
            return int((model.module(tests[0]).argmax(1) == tests[1]).sum())

    for step in range(steps):
        if step == look:
            capped = times if run.way == GLOO else times[job.warm_up :]
            following = _next_look(place, f"{name}/{step}", times[-1], sum(capped) < job.cap_s)
            if not following:
                break
            look += following
        mine = torch.randint(0, len(inputs), (BATCH,), generator=dice)
        began = time.monotonic()
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[mine]), classes[mine]).backward()
        optimizer.step()
        times.append(time.monotonic() - began)
        rate.step()
        if attachment is not None:
            drift = max(drift, attachment.replicas.drift)
        if step + 1 in (steps // 4, 3 * steps // 4):
            marks.append(right())
    told = {"seconds": times[job.warm_up :] or times, "right": marks, "tested": len(tests[0])}
    whole = len(times) == steps
    if attachment is not None:
        totals = attachment.ledger.totals
        told |= {"lost": totals["lost"] / max(1, totals["due"]), "skipped": totals["skipped"]}
        told["bound_s"] = attachment.engine.sync_point.bound_s
        told["drift"] = max(drift, attachment.resync() if whole else 0.0)
    if whole:
        marks.append(right())
    place.meet(f"{name}/over")
    if attachment is not None:
        attachment.close()
    return told


def _next_look(place: Place, key: str, last_s: float, more: bool) -> int:
    """After how many steps to look again, by rank 0's clock; 0: time is up."""
    if place.rank == 0:
        place.store.set(key, str((1 if last_s > SLOW_S else LOOK_EVERY) if more else 0))
    return int(place.store.get(key))


def main() -> None:
    """All runs of the job."""
    choose("auto")  # tries the data path on itself: before anything is thrown away
    job = Job.read(sys.argv[1])
    place = Place.find()
    thrown = Thrown()
    task = TASKS[job.task]()
    found = []
    for number, run in enumerate(job.runs):
        thrown.draw(run.share, 100 * run.seed + place.rank)
        found.append(train(place, job, task, run, str(number)))
    place.leave({"runs": found})


if __name__ == "__main__":
    main()
