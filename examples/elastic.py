"""A replica dies and comes back, another one is always late: the parameters show nothing of it.

    python examples/elastic.py [--steps 200] [--bits same] [--silence 0.3] [--json FILE]

Four replicas train, one of them 50 ms late in every step. A third of the way one is killed, and two
seconds later started again. Besides, one replica trains alone. With ``bits="same"`` all must end
with the same parameters, bit for bit. Exit code 1 if not.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

from torch.distributed import TCPStore

REPLICAS = 4
LATE = 3
KILLED = 1
LATE_S = 0.05
AWAY_S = 2.0  # from the death to the start of the process that takes its place
DEADLINE_S = 300.0
"""For each training; against hangs."""


@dataclass
class Replica:
    """A process that trains, and what it has told."""

    process: subprocess.Popen[str]
    told: list[dict[str, object]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.told.append(json.loads(line))

    @property
    def steps(self) -> list[dict[str, object]]:
        return [each for each in self.told if "step" in each]

    def result(self) -> str:
        """The hash of its parameters, once it is over."""
        code = self.process.wait(DEADLINE_S)
        self._reading.join()
        if code != 0:
            sys.exit(f"FAILED: a replica has ended with {code}")
        return str(self.told[-1]["hash"])


def start(
    where: str, replica: int, replicas: int, options: argparse.Namespace, until: Path | None = None
) -> Replica:
    words = ["--store", where, "--replica", replica, "--replicas", replicas]
    words += ["--steps", options.steps, "--bits", options.bits, "--silence", options.silence]
    if until is not None:
        words += ["--late", LATE_S, "--until", until]
    script = Path(__file__).with_name("train_elastic.py")
    command = [sys.executable, str(script), *map(str, words)]
    return Replica(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))


@contextlib.contextmanager
def training(
    replicas: int, options: argparse.Namespace, until: Path | None = None
) -> Iterator[tuple[str, list[Replica]]]:
    """Replicas that have begun, and the store where they meet, which outlives them all.

    With ``until`` one of them is late, in one step until this file is there.
    """
    limit = timedelta(seconds=DEADLINE_S)
    store = TCPStore("127.0.0.1", 0, None, True, limit, wait_for_workers=False)
    where = f"127.0.0.1:{store.port}"
    started = []
    for replica in range(replicas):
        started.append(start(where, replica, replicas, options, until if replica == LATE else None))
    try:
        yield where, started
    finally:
        for each in started:
            each.process.kill()
            each.process.wait()


def wait_for(replica: Replica, is_so: Callable[[], bool]) -> None:
    """Until something is so, while the replica trains."""
    while not is_so():
        if replica.process.poll() is not None:
            sys.exit(f"FAILED: a replica has ended with {replica.process.returncode}")
        time.sleep(0.01)


def undisturbed(options: argparse.Namespace) -> str:
    """The hash of a training on one replica."""
    with training(1, options) as (_, [alone]):
        return alone.result()


def disturbed(options: argparse.Namespace, back: Path) -> dict[str, object]:
    """What there is to say of the training in which one dies and comes back.

    On a slow machine it would be over before that process has begun to train; so the late replica
    is late for as long in one step. ``back`` is a file that is not there yet.
    """
    with training(REPLICAS, options, back) as (where, started):
        victim = started[KILLED]
        wait_for(victim, lambda: len(victim.steps) >= options.steps // 3)
        victim.process.kill()
        killed_s = time.time()
        time.sleep(AWAY_S)
        started.append(start(where, KILLED, REPLICAS, options))
        wait_for(started[REPLICAS], lambda: bool(started[REPLICAS].told))
        began_s = time.time()
        back.touch()
        survivors = [each for number, each in enumerate(started[:REPLICAS]) if number != KILLED]
        hashes = [each.result() for each in [*survivors, started[REPLICAS]]]

    begun = [float(each.steps[0]["at_s"]) for each in survivors]
    ended = [[float(step["at_s"]) for step in each.steps] for each in survivors]
    views = sorted({(each["view"], tuple(each["replicas"])) for each in survivors[0].steps})
    returned_s = float(started[REPLICAS].steps[0]["at_s"])
    gaps = [
        later - sooner for times in ended for sooner, later in pairwise(times) if sooner > began_s
    ]
    return {
        "hashes": hashes,
        "views": views,
        "steps": len(survivors[0].steps),
        "step_s": (killed_s - min(begun)) / max(1, len(victim.steps) - 1),
        "until_next_step_s": max(min(at for at in times if at > killed_s) for times in ended)
        - killed_s,
        "longest_gap_at_return_s": max(gaps),
        "back_after_s": returned_s - began_s,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--bits", choices=("any", "same"), default="same")
    parser.add_argument(
        "--silence", type=float, default=0.3, help="seconds; more on a busy machine"
    )
    parser.add_argument("--json", type=Path, help="write what is found here")
    options = parser.parse_args()

    alone = undisturbed(options)
    print(f"alone, undisturbed:    {alone}")
    with tempfile.TemporaryDirectory() as folder:
        found = disturbed(options, Path(folder) / "back")
    hashes = sorted(set(found["hashes"]))
    print(
        f"four, one dies, comes back: {', '.join(hashes)}\n"
        f"  replica {LATE} is {1000 * LATE_S:.0f} ms late in each step; a step takes "
        f"{found['step_s']:.3f} s\n"
        f"  from the kill of replica {KILLED} to the end of the next step on all: "
        f"{found['until_next_step_s']:.2f} s\n"
        f"  longest step of the others when it comes back: {found['longest_gap_at_return_s']:.2f} s"
        f" ({found['back_after_s']:.1f} s after its script has begun)\n"
        f"  views: {'; '.join(', '.join(map(str, replicas)) for _, replicas in found['views'])}"
    )
    if options.json is not None:
        options.json.write_text(json.dumps({"alone": alone, **found}))
    is_right = len(hashes) == 1 and (options.bits == "any" or hashes == [alone])
    print("equal, bit for bit" if is_right and options.bits == "same" else "", end="")
    if not is_right:
        print("WRONG: the parameters differ", end="")
    print()
    return 0 if is_right else 1


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the replicas end with this process
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
