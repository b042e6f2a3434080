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
from bench.optireduce.places import TIMEOUT_S, RankProcess
from latecomer.runtime import ddp
from latecomer.runtime.optireduce.options import Options
from latecomer.runtime.optireduce.udp.compiled.choice import choose
from latecomer.runtime.optireduce.udp.socket import UdpSocket

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
        fields = json.loads(text)
        fields["runs"] = [Run(**run) for run in fields["runs"]]
        return cls(**fields)


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


def train(process: RankProcess, job: Job, task: Task, run: Run, name: str) -> dict[str, Any]:
    """One run; its name is the same on all ranks, and nobody else's.

    Returns:
        seconds: of each step after the warm-up (:class:`Job`).
        right: test images of this rank's part told rightly, after 1/4 and 3/4 of the steps and at
            the end (after a last re-synchronization); fewer for a run that stopped.
        tested: how many images this rank's part has.
        lost, skipped, bound_s, drift (the largest before a re-synchronization): of OptiReduce.
    """
    training = Training(process, job, task, run)
    steps = job.steps or task.steps
    next_look = 1
    right: list[int] = []
    for step in range(steps):
        if step == next_look:
            after = _steps_to_next_look(process, f"{name}/{step}", training)
            if not after:
                break
            next_look += after
        training.step()
        if step + 1 in (steps // 4, 3 * steps // 4):
            right.append(training.right())

    result: dict[str, Any] = {
        "seconds": training.times[job.warm_up :] or training.times,
        "right": right,
        "tested": len(training.test_inputs),
    }
    is_whole = len(training.times) == steps
    attachment = training.attachment
    if attachment is not None:
        totals = attachment.ledger.totals
        result["lost"] = totals["lost"] / max(1, totals["due"])
        result["skipped"] = totals["skipped"]
        result["bound_s"] = attachment.engine.sync_point.bound_s
        last_drift = attachment.resync() if is_whole else 0.0
        result["drift"] = max(training.drift, last_drift)
    if is_whole:
        right.append(training.right())

    process.meet(f"{name}/over")
    if attachment is not None:
        attachment.close()
    return result


class Training:
    """A model on its way, step by step.

    Attributes:
        attachment: of OptiReduce.
        times: in seconds, of all steps until now.
        drift: the largest until now; of OptiReduce.
    """

    def __init__(self, process: RankProcess, job: Job, task: Task, run: Run) -> None:
        self._job = job
        self._run = run
        self._model = DistributedDataParallel(task.model(run.seed), bucket_cap_mb=4)
        self._optimizer = torch.optim.SGD(self._model.parameters(), lr=task.rate, momentum=0.9)
        self.attachment = None
        if run.way == OURS:
            self.attachment = ddp.attach(
                self._model,
                algorithm="optireduce",
                options=Options(warmup_steps=job.warm_up, datagram_bytes=job.datagram_bytes),
                optimizer=self._optimizer,
                timeout_s=TIMEOUT_S,
            )

        steps = job.steps or task.steps
        self._rate = torch.optim.lr_scheduler.LambdaLR(
            self._optimizer, lambda step: min(1.0, 2 - 2 * step / steps)
        )
        self._inputs, self._classes = task.train
        inputs, classes = task.test
        self.test_inputs = inputs[process.rank :: process.world_size]
        self._test_classes = classes[process.rank :: process.world_size]
        self._dice = torch.Generator().manual_seed(100 * run.seed + process.rank)
        self.times: list[float] = []
        self.drift = 0.0

    def step(self) -> None:
        """One batch."""
        batch = torch.randint(0, len(self._inputs), (BATCH,), generator=self._dice)
        began = time.monotonic()
        self._optimizer.zero_grad()
        outputs = self._model(self._inputs[batch])
        nn.functional.cross_entropy(outputs, self._classes[batch]).backward()
        self._optimizer.step()
        self.times.append(time.monotonic() - began)
        self._rate.step()
        if self.attachment is not None:
            self.drift = max(self.drift, self.attachment.replicas.drift)

    def right(self) -> int:
        """How many test images of this rank's part are told rightly."""
        with torch.no_grad():
            predicted = self._model.module(self.test_inputs).argmax(1)
            return int((predicted == self._test_classes).sum())

    def has_time(self) -> bool:
        """Whether its steps, without OptiReduce's warm-up, have taken less than the job's cap."""
        capped = self.times if self._run.way == GLOO else self.times[self._job.warm_up :]
        return sum(capped) < self._job.cap_s


def _steps_to_next_look(process: RankProcess, key: str, training: Training) -> int:
    """After how many steps to look again, by rank 0's clock; 0: time is up."""
    if process.rank == 0:
        steps = 0
        if training.has_time():
            steps = 1 if training.times[-1] > SLOW_S else LOOK_EVERY
        process.store.set(key, str(steps))
    return int(process.store.get(key))


def main() -> None:
    """All runs of the job."""
    choose("auto")  # tries the data path on itself: before anything is thrown away
    job = Job.read(sys.argv[1])
    process = RankProcess.from_environment()
    thrown = Thrown()
    task = TASKS[job.task]()
    results = []
    for number, run in enumerate(job.runs):
        thrown.draw(run.share, 100 * run.seed + process.rank)
        results.append(train(process, job, task, run, str(number)))
    process.leave({"runs": results})


if __name__ == "__main__":
    main()
