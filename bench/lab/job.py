"""The ranks of a job on the hosts of a lab, with the variables that torchrun sets.

Ranks are numbered host by host, as ``torchrun`` does it: with one rank on each host, rank r is on
host r.
"""

from __future__ import annotations

import os
import selectors
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Protocol

from bench.lab.errors import JobFailed
from bench.lab.measure import INTERFACE
from bench.lab.network import Network
from bench.lab.plan import address
from bench.lab.sandbox import Process

PORT = 29_500
GRACE_S = 3.0
"""From SIGTERM to SIGKILL."""
TICK_S = 0.5


class Hosts(Protocol):
    """What a job needs of the lab it runs in."""

    network: Network

    def start(self, argv: Sequence[str], host: int | str, **options: Any) -> Process:
        """Start a command on a host."""

    def require_alive(self) -> None:
        """Raise LabError if the lab has come down."""


@dataclass
class Rank:
    """How one rank went.

    Attributes:
        returncode: negative: the signal that ended it.
        output: its stdout and stderr, as they came.
        seconds: from its start to its end.
        stopped: why the lab ended it, empty where it ended by itself.
    """

    rank: int
    returncode: int | None = None
    output: str = ""
    seconds: float = 0.0
    stopped: str = ""


@dataclass
class Job:
    """How all ranks went; ``first_failed`` is the first that ended with an error by itself."""

    ranks: list[Rank] = field(default_factory=list)
    first_failed: int | None = None
    timed_out: bool = False

    @property
    def ok(self) -> bool:
        """All ranks ended well."""
        return all(rank.returncode == 0 for rank in self.ranks)

    def check(self) -> Job:
        """This job, if all ranks ended well.

        Raises:
            JobFailed: names the first rank that did not, with the end of its output.
        """
        if self.ok:
            return self
        failed = self.first_failed
        if failed is None:
            failed = next(rank.rank for rank in self.ranks if rank.returncode != 0)
        rank = self.ranks[failed]
        raise JobFailed(failed, rank.stopped or f"ended with {rank.returncode}", rank.output)


def variables(rank: int, ranks: int, ranks_per_host: int = 1, port: int = PORT) -> dict[str, str]:
    """The environment of one rank: torchrun's, and the interface for Gloo, NCCL and TensorPipe."""
    host, local_rank = divmod(rank, ranks_per_host)
    interfaces = {f"{library}_SOCKET_IFNAME": INTERFACE for library in ("GLOO", "NCCL", "TP")}
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(ranks_per_host),
        "GROUP_RANK": str(host),
        "GROUP_WORLD_SIZE": str(ranks // ranks_per_host),
        "MASTER_ADDR": address(0),
        "MASTER_PORT": str(port),
        "LATECOMER_ADDRESS": address(host),
        **interfaces,
    }


def run(
    lab: Hosts,
    argv: Sequence[str],
    *,
    ranks_per_host: int = 1,
    env: Mapping[str, str] | None = None,
    timeout_s: float = 600.0,
    keep_going: bool = False,
    on_line: Callable[[int, str], None] | None = None,
) -> Job:
    """Run ``argv`` on every host at once and wait for all.

    Args:
        ranks_per_host: how many times on each host; its processes share the host's port.
        env: added to this process's environment and to :func:`variables`.
        timeout_s: ranks that run longer are ended.
        keep_going: do not end the others when a rank fails.
        on_line: is told each line as it comes, with its rank.
    """
    with ExitStack() as stack:
        running = _Running(lab, ranks_per_host, on_line, stack)
        for rank in running.job.ranks:
            running.start(rank, argv, env or {})
        return running.wait(timeout_s, keep_going)


class _Running:
    """A job in progress: its processes, and a pipe for what each rank prints."""

    def __init__(
        self,
        lab: Hosts,
        ranks_per_host: int,
        on_line: Callable[[int, str], None] | None,
        stack: ExitStack,
    ) -> None:
        ranks = lab.network.hosts * ranks_per_host
        self.lab = lab
        self.ranks_per_host = ranks_per_host
        self.on_line = on_line
        self.stack = stack
        self.job = Job([Rank(rank) for rank in range(ranks)])
        self.selector = stack.enter_context(selectors.DefaultSelector())
        self.processes: dict[int, Process] = {}
        self.partial = dict.fromkeys(range(ranks), "")
        self.began = time.monotonic()

    def start(self, rank: Rank, argv: Sequence[str], env: Mapping[str, str]) -> None:
        """Start one rank."""
        ours, theirs = os.pipe()
        self.stack.callback(os.close, ours)
        of_torchrun = variables(rank.rank, len(self.job.ranks), self.ranks_per_host)
        try:
            process = self.lab.start(
                argv,
                rank.rank // self.ranks_per_host,
                env={"OMP_NUM_THREADS": "1", **os.environ, **of_torchrun, **env},
                stdout=theirs,
                stderr=theirs,
            )
        finally:
            os.close(theirs)

        self.stack.callback(process.kill)
        self.processes[rank.rank] = process
        self.selector.register(ours, selectors.EVENT_READ, rank)
        self.selector.register(process, selectors.EVENT_READ, rank)

    def wait(self, timeout_s: float, keep_going: bool) -> Job:
        """Until every rank has ended, by itself or not."""
        deadline = self.began + timeout_s

        while self.processes:
            for key, _ in self.selector.select(TICK_S):
                if isinstance(key.fileobj, int):
                    self.read(key.fileobj, key.data)
                elif self.ended(key.data) and not keep_going:
                    self.stop(f"was ended because rank {key.data.rank} failed", signal.SIGTERM)
                    deadline = min(deadline, time.monotonic() + GRACE_S)

            if self.processes and time.monotonic() > deadline:
                self.job.timed_out = self.job.first_failed is None
                self.stop(f"had not ended after {timeout_s:g} s", signal.SIGKILL)
                deadline = float("inf")
            self.lab.require_alive()

        while pipes := [key for key, _ in self.selector.select(0.0)]:
            for key in pipes:  # what is left in them; a rank's orphan may hold one open
                self.read(key.fd, key.data)
        return self.job

    def ended(self, rank: Rank) -> bool:
        """Note the end of a rank; whether it is the first to fail by itself."""
        process = self.processes.pop(rank.rank)
        self.selector.unregister(process)
        rank.returncode = process.wait(1.0)
        rank.seconds = time.monotonic() - self.began
        first = bool(rank.returncode) and not rank.stopped and self.job.first_failed is None
        if first:
            self.job.first_failed = rank.rank
        return first

    def stop(self, why: str, number: signal.Signals) -> None:
        """Send all that still run a signal."""
        for rank, process in self.processes.items():
            self.job.ranks[rank].stopped = self.job.ranks[rank].stopped or why
            process.signal(number)

    def read(self, descriptor: int, rank: Rank) -> None:
        """Take what a rank has printed."""
        data = os.read(descriptor, 1 << 16)
        text = data.decode(errors="replace")
        rank.output += text
        *lines, self.partial[rank.rank] = (self.partial[rank.rank] + text).split("\n")
        if not data:
            self.selector.unregister(descriptor)
            unfinished = self.partial[rank.rank]
            lines = [unfinished] if unfinished else []
        if self.on_line is not None:
            for line in lines:
                self.on_line(rank.rank, line)
