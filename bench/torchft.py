"""How soon survivors go on under torchft: with its own process group over Gloo, and with ours.

    python -m bench.torchft --repeat 5
    python -m bench.torchft --groups auto --faults helper error --repeat 1 --json

Four replicas train under torchft's lighthouse, whose heartbeats time out after a second; replica 3
is 0.2 s late in every step. Each repeat starts one job for each process group, in turn, and in each
job come one after the other:

    error    replica 1 reports an error of its own to its Manager, and lives
    helper   replica 1 is killed (SIGKILL), and started again a second later
    stop     replica 1 is stopped (SIGSTOP), and after the measurement killed and started again
    owner    replica 0 is killed, whose store the quorum has met in, and started again

Measured: from the fault to the end of the first step that all survivors have committed in a quorum
of its own; of the replica that comes back, from the start of its process to its first committed
step, and the longest time between two committed steps of the others meanwhile. And, apart from all
that, how long a reconfiguration takes.

After every committed step the replicas that have committed it must have the same parameters, and
an int64 probe must sum up to exactly the participants; else there are no figures. (torchft lets
only one replica contribute to the very first step.)
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.torchft_reconfiguring import reconfigurations_s

REPLICAS = 4
HELPER = 1
OWNER = 0
LATE = 3
LATE_S = 0.2
HEARTBEAT_S = 1.0
TICK_S = 0.02  # of the lighthouse
LEAST = 2
TIMEOUT_S = {"gloo": 12.0}  # so long Gloo hangs where it does: with 60 s nothing else is seen
OUR_TIMEOUT_S = 60.0
GROUPS = ("gloo", "auto", "static")
FAULTS = ("error", "helper", "stop", "owner")
PATIENCE_S = 300.0  # for anything at all: against hangs
QUIET_STEPS = 3  # that all have committed together before the next fault
AWAY_S = 1.0  # from a death to the start of the process that takes its place
GOAL_S = 1.1

Event = dict[str, Any]


@dataclass
class Replica:
    """The processes of one replica, one after the other, and what they have told."""

    number: int
    command: list[str]
    log: Path
    told: list[Event] = field(default_factory=list)
    process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start a process for it."""
        variables = {
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                self.command,
                env=os.environ | variables,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        threading.Thread(target=self._read, args=(self.process,), daemon=True).start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.told.append(json.loads(line))

    def send(self, number: signal.Signals) -> float:
        """Send it a signal; when that was."""
        assert self.process is not None
        self.process.send_signal(number)
        return time.time()

    def kill(self) -> float:
        """End its process; when that was."""
        at_s = self.send(signal.SIGKILL)
        assert self.process is not None
        self.process.wait()
        self.process = None
        return at_s

    def committed(self) -> list[Event]:
        """Its committed steps."""
        return [event for event in list(self.told) if event.get("is_committed")]

    @property
    def has_ended(self) -> bool:
        """Whether its process is gone, and nobody has killed it."""
        return self.process is not None and self.process.poll() is not None


class Wrong(Exception):
    """There are no figures: something is not as it must be."""


class Job:
    """Four replicas under a lighthouse."""

    def __init__(self, kind: str, lighthouse: str, logs: Path) -> None:
        self.kind = kind
        timeout_s = TIMEOUT_S.get(kind, OUR_TIMEOUT_S)
        words = ["--group", kind, "--lighthouse", lighthouse, "--late", LATE, "--late-s", LATE_S]
        words += ["--timeout", timeout_s, "--least", LEAST]
        self.replicas = []
        for number in range(REPLICAS):
            command = [sys.executable, "-m", "bench.torchft_replica", "--replica", number, *words]
            log = logs / f"{kind}-{number}.log"
            self.replicas.append(Replica(number, [str(word) for word in command], log))

    def start(self) -> None:
        """Start all, and wait until they train together."""
        for replica in self.replicas:
            replica.start()
        self.settle()

    def close(self) -> None:
        """End all processes."""
        for replica in self.replicas:
            if replica.process is not None:
                replica.kill()

    def settle(self) -> None:
        """Wait until all have committed some steps together."""

        def are_together() -> bool:
            for replica in self.replicas:
                last = replica.committed()[-QUIET_STEPS:]
                together = [step for step in last if step["participants"] == REPLICAS]
                if len(together) < QUIET_STEPS:
                    return False
            return True

        self._wait(are_together, "all replicas train together")

    def quorum(self) -> int:
        """The last one in which a step was committed."""
        return max(step["quorum"] for replica in self.replicas for step in replica.committed()[-1:])

    def disturb(self, fault: str) -> dict[str, float]:
        """Disturb it, and put it in order again; the seconds that were measured, by what they are.

        Where a replica has to be started again, from its start on, too.
        """
        self.settle()
        victim = self.replicas[OWNER if fault == "owner" else HELPER]
        before = self.quorum()
        at_s = self._fault(fault, victim)
        survivors = [each for each in self.replicas if fault == "error" or each is not victim]
        went_on_s = self._wait_for_step(survivors, before) - at_s
        if fault == "error":
            return {fault: went_on_s}

        if fault == "stop":
            victim.kill()
        time.sleep(AWAY_S)
        back_s, gap_s = self._bring_back(victim, survivors)
        return {fault: went_on_s, "back": back_s, "gap": gap_s}

    def _fault(self, fault: str, victim: Replica) -> float:
        """Inject it; when that was."""
        if fault == "stop":
            return victim.send(signal.SIGSTOP)
        if fault != "error":
            return victim.kill()
        told = len(victim.told)
        victim.send(signal.SIGUSR1)

        def reports() -> list[Event]:
            return [event for event in victim.told[told:] if "reports" in event]

        self._wait(lambda: bool(reports()), "replica 1 reports an error")
        at_s: float = reports()[0]["at_s"]
        return at_s

    def _wait_for_step(self, survivors: list[Replica], quorum: int) -> float:
        """When the last of them has committed its first step in a quorum after that one."""

        def firsts() -> list[float]:
            found = []
            for replica in survivors:
                later = [step for step in replica.committed() if step["quorum"] > quorum]
                found += [later[0]["at_s"]] if later else []
            return found

        self._wait(lambda: len(firsts()) == len(survivors), "survivors commit a step")
        return max(firsts())

    def _bring_back(self, victim: Replica, others: list[Replica]) -> tuple[float, float]:
        """Until the first step of a replica that is started again; the others' longest gap."""
        told = len(victim.told)
        victim.start()
        began_s = time.time()

        def firsts() -> list[Event]:
            return [event for event in victim.told[told:] if event.get("is_committed")]

        self._wait(lambda: bool(firsts()), "who comes back commits a step")
        back_s = firsts()[0]["at_s"]
        self.settle()
        gaps = []
        for replica in others:
            times = [step["at_s"] for step in replica.committed()]
            gaps += [later - sooner for sooner, later in pairwise(times) if later > began_s]
        return back_s - began_s, max(gaps)

    def _wait(self, is_so: Callable[[], bool], what: str) -> None:
        give_up_s = time.monotonic() + PATIENCE_S
        while not is_so():
            ended = [str(each.log) for each in self.replicas if each.has_ended]
            if ended:
                raise Wrong(f"{self.kind}: a replica has ended by itself: see {', '.join(ended)}")
            if time.monotonic() > give_up_s:
                raise Wrong(f"{self.kind}: not within {PATIENCE_S:g} s: {what}")
            time.sleep(0.005)

    def require_right(self) -> int:
        """Wrong unless every committed step has equal parameters and the right probe; how many."""
        by_step = defaultdict(list)
        for replica in self.replicas:
            for event in replica.committed():
                by_step[event["step"]].append(event)
        for step, events in sorted(by_step.items()):
            if len({(event["hash"], event["probe"]) for event in events}) > 1:
                raise Wrong(f"{self.kind}: step {step} differs: {events}")
            participants = events[0]["participants"] if step > 1 else 1
            if events[0]["probe"].bit_count() != participants:
                raise Wrong(f"{self.kind}: step {step}: not the participants' sum: {events}")
        return len(by_step)


def served_lighthouse(bind: str) -> Any:
    """torchft's lighthouse in this process, at an address such as ``[::]:0``."""
    from torchft.coordination import LighthouseServer

    return LighthouseServer(
        bind=bind,
        min_replicas=LEAST,
        join_timeout_ms=60_000,
        heartbeat_timeout_ms=int(1000 * HEARTBEAT_S),
        quorum_tick_ms=int(1000 * TICK_S),
    )


@contextlib.contextmanager
def job(kind: str, logs: Path) -> Iterator[Job]:
    """A job that trains."""
    lighthouse = served_lighthouse("[::]:0")
    started = Job(kind, lighthouse.address(), logs)
    try:
        started.start()
        yield started
    finally:
        started.close()
        lighthouse.shutdown()


def measure(options: argparse.Namespace) -> dict[str, dict[str, list[float]]]:
    """By process group and fault, what every repeat has measured; tells how far it is."""
    measured: dict[str, dict[str, list[float]]] = {
        kind: defaultdict(list) for kind in options.groups
    }
    for repeat in range(options.repeat):
        for kind in options.groups:
            with job(kind, options.logs) as started:
                for fault in options.faults:
                    for name, seconds in started.disturb(fault).items():
                        measured[kind][name].append(seconds)
                steps = started.require_right()
                if options.events:
                    lines = [
                        {"replica": each.number, **event}
                        for each in started.replicas
                        for event in each.told
                    ]
                    path = options.logs / f"{kind}-{repeat}.jsonl"
                    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
            shown = ", ".join(f"{name} {times[-1]:.2f}" for name, times in measured[kind].items())
            told = f"repeat {repeat + 1} of {options.repeat}, {kind}: {shown}; {steps} steps right"
            print(told, file=sys.stderr, flush=True)
    return measured


ROWS = {
    "error": "an error reported by a live replica",
    "helper": "a helper killed",
    "stop": "a replica stopped (SIGSTOP)",
    "owner": "the store's owner killed",
    "back": "back again, from the start of its process",
    "gap": "meanwhile the others' longest gap",
}


def table(
    measured: dict[str, dict[str, list[float]]], reconfigured: dict[str, dict[int, float]]
) -> str:
    """Medians, with the least and the most, as Markdown."""
    kinds = list(measured)
    names = {"gloo": "torchft, Gloo"}
    heads = [names.get(kind, f"latecomer, {kind}") for kind in kinds]
    lines = [f"| | {' | '.join(heads)} |", "|:--|" + "--:|" * len(kinds)]
    for name, text in ROWS.items():
        cells = []
        for kind in kinds:
            times = measured[kind].get(name)
            if times:
                middle = statistics.median(times)
                cells.append(f"{middle:.2f} s ({min(times):.2f} to {max(times):.2f})")
        if cells:
            lines.append(f"| {text} | {' | '.join(cells)} |")
    for members in sorted({members for times in reconfigured.values() for members in times}):
        cells = [f"{1000 * reconfigured[kind][members]:.0f} ms" for kind in kinds]
        lines.append(f"| reconfiguration, {members} replicas | {' | '.join(cells)} |")
    return "\n".join(lines)


def parsed() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=5, help="jobs of each (default: 5)")
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=GROUPS)
    parser.add_argument("--faults", nargs="+", choices=FAULTS, default=FAULTS)
    parser.add_argument("--rounds", type=int, default=10, help="reconfigurations of each size")
    parser.add_argument("--logs", type=Path, default=Path("out/bench-torchft"))
    parser.add_argument("--events", action="store_true", help="keep what replicas tell, there, too")
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    return parser.parse_args()


def main() -> None:
    """Measure and print; exit code 1 if something was not right."""
    options = parsed()
    options.logs.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("RUST_LOG", "error")
    # torch asks for the name behind each connection, and not every name server answers
    os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
    try:
        measured = measure(options)
    except Wrong as error:
        sys.exit(f"FAILED: {error}")
    reconfigured = {}
    if options.rounds:
        reconfigured = {kind: reconfigurations_s(kind, options.rounds) for kind in options.groups}

    if options.json:
        faults = {kind: dict(times) for kind, times in measured.items()}
        print(json.dumps({"seconds": faults, "reconfiguration_s": reconfigured}, indent=2))
    else:
        print(table(measured, reconfigured))
        print(f"goal: {GOAL_S} s after each fault, of which {HEARTBEAT_S:g} s is the heartbeat's")


if __name__ == "__main__":
    main()
