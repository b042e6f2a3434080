"""Replicas of ``examples/train_elastic.py`` as processes: what they tell, and what befalls them."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).parents[2] / "examples" / "train_elastic.py"
PATIENCE_S = 120.0  # for anything at all: against hangs
MANY_STEPS = 100_000
LOOK_S = 0.01
LINES = 60  # of a replica's log that are kept

SERVES_STORE = """
import sys, time
from torch.distributed import TCPStore
store = TCPStore(sys.argv[1], int(sys.argv[2]), None, True, wait_for_workers=False)
print(store.port, flush=True)
time.sleep(1e6)
"""


class Failed(Exception):
    """The job does not do what it must."""


@dataclass(frozen=True)
class StepTold:
    """A step that a replica has done."""

    number: int
    at_s: float  # by the clock of this machine
    view: int
    replicas: tuple[int, ...]
    hash: str


class Replica:
    """A process that trains.

    Attributes:
        number: of the replica.
        process: as ``subprocess.Popen`` is one; it may have started another one, which trains.
        pid: of the process that trains, as it says; 0 before it has begun.
        steps: those that it has told.
    """

    def __init__(self, number: int, process: Any) -> None:
        self.number = number
        self.process = process
        self.pid = 0
        self.steps: list[StepTold] = []
        self.last_words: deque[str] = deque(maxlen=LINES)
        self.reading = threading.Thread(target=self._read, daemon=True)
        self.reading.start()
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stderr is not None
        self.last_words.extend(self.process.stderr)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            told = json.loads(line)
            if "step" in told:
                step = StepTold(
                    number=told["step"],
                    at_s=told["at_s"],
                    view=told["view"],
                    replicas=tuple(told["replicas"]),
                    hash=told["hash"],
                )
                self.steps.append(step)
            self.pid = told.get("pid", self.pid)

    @property
    def has_ended(self) -> bool:
        """Whether its process is gone."""
        return self.process.poll() is not None


class Fleet:
    """All replicas of a job, and what they have told.

    Args:
        replicas: how many.
        launch: starts the process of the replica with this number.
    """

    def __init__(self, replicas: int, launch: Callable[[int], Any]) -> None:
        self.replicas = replicas
        self._launch = launch
        self.all: list[Replica] = []  # those that have ended, too
        self.current: dict[int, Replica] = {}
        for number in range(replicas):
            self.start_again(number)

    def start_again(self, number: int) -> Replica:
        """A process that takes the place of one that has ended."""
        replica = Replica(number, self._launch(number))
        self.all.append(replica)
        self.current[number] = replica
        return replica

    def require_alive(self, of: Collection[int]) -> None:
        """Failed if one of these replicas has ended by itself, with its last words."""
        ended = [number for number in of if self.current[number].has_ended]
        if ended:
            words = "".join(self.current[ended[0]].last_words)
            raise Failed(f"replica(s) {ended} have ended by themselves:\n{words}")

    def wait_for(self, is_so: Callable[[], bool], of: Collection[int], what: str) -> None:
        """Until something is so, while these replicas live; else Failed."""
        give_up_s = time.monotonic() + PATIENCE_S
        while not is_so():
            self.require_alive(of)
            if time.monotonic() > give_up_s:
                raise Failed(f"not within {PATIENCE_S:g} s: {what}")
            time.sleep(LOOK_S)

    def wait_for_all_in_view(self, of: Collection[int], steps: int = 1) -> None:
        """Until these replicas have done so many steps together, and no others with them."""

        def are_together() -> bool:
            for number in of:
                told = self.current[number].steps[-steps:]
                if len(told) < steps or any(sorted(each.replicas) != sorted(of) for each in told):
                    return False
            return True

        self.wait_for(are_together, of, f"steps of replicas {sorted(of)} together")

    @property
    def last_step(self) -> int:
        """The last step that any replica has done."""
        return max(step.number for replica in self.all for step in replica.steps)

    def check(self, expected: dict[int, str]) -> int:
        """After each step all have the parameters that they must have; how many steps there were.

        ``expected``: by step, the parameters' hash. Raises Failed.
        """
        hashes: dict[int, set[str]] = {}
        for replica in self.all:
            for step in replica.steps:
                hashes.setdefault(step.number, set()).add(step.hash)
        for number, found in hashes.items():
            if found != {expected[number]}:
                raise Failed(f"step {number} has ended with parameters {sorted(found)}")
        return len(hashes)


class LocalFleet(Fleet):
    """Replicas of ``examples/train_elastic.py`` on this machine, and the store where they meet.

    Args:
        replicas: how many.
        silence_s: of the job.
        late_s: by replica, seconds more in each step.
    """

    def __init__(self, replicas: int, *, silence_s: float, late_s: dict[int, float]) -> None:
        self._silence_s = silence_s
        self._late_s = late_s
        self._store, self._where = _served_store()
        super().__init__(replicas, self._start)

    def signal(self, number: int, what: signal.Signals) -> float:
        """Send a replica's process a signal; when."""
        at_s = time.time()
        self.current[number].process.send_signal(what)
        return at_s

    def lose_store(self) -> None:
        """The store's process ends."""
        self._store.kill()
        self._store.wait()

    def end(self) -> None:
        """End all processes."""
        for replica in self.all:
            with contextlib.suppress(ProcessLookupError):
                replica.process.kill()
            replica.process.wait()
            replica.reading.join()
        self.lose_store()

    def _start(self, number: int) -> subprocess.Popen[str]:
        words = ["--store", self._where, "--replica", number, "--replicas", self.replicas]
        words += ["--steps", MANY_STEPS, "--silence", self._silence_s]
        words += ["--late", self._late_s.get(number, 0.0)]
        return subprocess.Popen(
            command(words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )


@contextlib.contextmanager
def fleet(replicas: int, *, silence_s: float, late_s: dict[int, float]) -> Iterator[LocalFleet]:
    """Replicas that have begun to train together; ended after the block."""
    running = LocalFleet(replicas, silence_s=silence_s, late_s=late_s)
    try:
        running.wait_for_all_in_view(range(replicas))
        yield running
    finally:
        running.end()


def undisturbed(steps: int, *more: object) -> dict[int, str]:
    """By step, the hash of the parameters in a training on one replica; ``more`` options of it."""
    store, where = _served_store()
    words = ["--store", where, "--replica", 0, "--replicas", 1]
    words += ["--steps", steps, *more, "--compute", 0.0]
    try:
        done = subprocess.run(
            command(words),
            stdout=subprocess.PIPE,
            text=True,
            timeout=600.0,
            check=True,
        )
    finally:
        store.kill()
        store.wait()
    told = [json.loads(line) for line in done.stdout.splitlines()]
    return {each["step"]: each["hash"] for each in told if "step" in each}


def _served_store() -> tuple[subprocess.Popen[str], str]:
    """A process that serves a store, and where that is."""
    process = subprocess.Popen(serves_store("127.0.0.1", port=0), stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    port = int(process.stdout.readline())
    return process, f"127.0.0.1:{port}"


def serves_store(address: str, port: int) -> list[str]:
    """A command that serves a store, and prints its port."""
    return [sys.executable, "-c", SERVES_STORE, address, str(port)]


def command(words: Iterable[object]) -> list[str]:
    """The script with these options."""
    return [sys.executable, str(SCRIPT), *map(str, words)]
