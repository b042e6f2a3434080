"""Replicas on the hosts of a lab, one on each, of whichever system keeps them together."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from bench.elastic.fleet import Failed, Fleet
from bench.elastic.systems import System
from bench.lab import Lab, Network
from bench.lab.job import variables
from bench.lab.measure import READY_S, Reader

ROOT = Path(__file__).parents[2]
KILL_S = 5.0
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "RUST_LOG": "error",
    # torch asks for the name behind each connection, and no name server is reachable
    "RES_OPTIONS": "timeout:1 attempts:1",
}


class OnHost:
    """A command on a host of a lab, with its lines."""

    def __init__(self, lab: Lab, argv: Sequence[str], host: int) -> None:
        output, its_output = os.pipe()
        errors, its_errors = os.pipe()
        self.stdout: IO[str] = open(output)  # noqa: SIM115  (closed when it has been read)
        self.stderr: IO[str] = open(errors)  # noqa: SIM115
        environment = os.environ | variables(host, lab.network.hosts) | ENVIRONMENT
        try:
            self._process = lab.start(
                argv, host, env=environment, cwd=ROOT, stdout=its_output, stderr=its_errors
            )
        finally:
            os.close(its_output)
            os.close(its_errors)

    def poll(self) -> int | None:
        """The return code if it has ended."""
        return self._process.poll()


class LabFleet(Fleet):
    """The replicas of a system on the hosts of a lab that is up."""

    def __init__(self, lab: Lab, system: System) -> None:
        self.lab = lab
        super().__init__(
            lab.network.hosts, lambda number: OnHost(lab, system.command(number), number)
        )

    def kill(self, number: int) -> float:
        """Kill the process that trains on a host; when."""
        pid = self.current[number].pid
        at_s = time.time()
        killer = self.lab.start(["kill", f"-{signal.SIGKILL:d}", str(pid)], number)
        if killer.wait(KILL_S) != 0:
            raise Failed(f"the process of replica {number} can't be killed: there is none")
        return at_s

    @property
    def view(self) -> int:
        """The latest view in which a step was done."""
        return max(step.view for replica in self.current.values() for step in replica.steps[-1:])

    def wait_for_all_after(self, view: int, steps: int = 1) -> None:
        """Until all replicas have done so many steps together, in a view after this one."""

        def are_together() -> bool:
            for replica in self.current.values():
                told = replica.steps[-steps:]
                if len(told) < steps or told[0].view <= view:
                    return False
                if any(len(step.replicas) < self.replicas for step in told):
                    return False
            return True

        self.wait_for(are_together, range(self.replicas), "all replicas train together")


@contextlib.contextmanager
def on_hosts(network: Network, system: System) -> Iterator[LabFleet]:
    """Replicas that have been started, one on each host; all has ended after the block."""
    with ExitStack() as stack:
        lab = stack.enter_context(Lab(network))
        for argv in system.served:
            served = stack.enter_context(Reader(lab, argv, "switch"))
            served.line(READY_S)
        fleet = LabFleet(lab, system)
        yield fleet
    for replica in fleet.all:
        replica.reading.join()
