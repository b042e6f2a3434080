"""Measures the lab with traffic of its own: round trips, delays, losses, rates."""

from __future__ import annotations

import json
import os
import select
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from bench.lab.errors import LabError
from bench.lab.plan import address
from bench.lab.sandbox import Process

TRAFFIC = Path(__file__).with_name("traffic.py")
FRAME_BYTES = 1472
PORT = 28_500
READY_S = 20.0
INTERFACE = "e0"


class Hosts(Protocol):
    """What is needed of a lab here: to start commands on its hosts."""

    def start(self, argv: list[str], host: int | str, **streams: Any) -> Process:
        """Start a command on a host."""


@dataclass(frozen=True)
class Frames:
    """What became of frames sent one way from host to host.

    Attributes:
        sent: how many.
        delays_ms: of those that arrived, ascending.
        overtaken: how many arrived after a later one.
    """

    sent: int
    delays_ms: tuple[float, ...]
    overtaken: int

    @property
    def loss(self) -> float:
        """The share that did not arrive."""
        return 1 - len(self.delays_ms) / self.sent

    def percentile(self, share: float) -> float:
        """A percentile of the delays, in ms; infinite where nothing arrived."""
        if not self.delays_ms:
            return float("inf")
        return self.delays_ms[min(len(self.delays_ms) - 1, int(share * len(self.delays_ms)))]


@dataclass(frozen=True)
class Streams:
    """TCP streams that ran at the same time; ``busy_cores`` is of the whole machine."""

    mbit: Mapping[tuple[int, int], float]
    rtt_ms: Mapping[tuple[int, int], float]
    congestion: str
    busy_cores: float

    @property
    def median_mbit(self) -> float:
        """The median stream."""
        return statistics.median(self.mbit.values())


def frames(
    lab: Hosts,
    pairs: list[tuple[int, int]],
    count: int,
    gap_s: float,
    size: int = FRAME_BYTES,
) -> dict[tuple[int, int], Frames]:
    """Send ``count`` frames along every pair (source, destination) at the same time."""
    send = [str(count), str(size), str(gap_s)]
    ended = _traffic(lab, pairs, ["receive-frames"], [str(count)], ["send-frames"], send)
    frames_of = {}
    for pair, (received, _) in ended.items():
        delays_ms = tuple(sorted(received["delays_ms"]))
        frames_of[pair] = Frames(count, delays_ms, received["overtaken"])
    return frames_of


def streams(lab: Hosts, pairs: list[tuple[int, int]], seconds: float) -> Streams:
    """Run a TCP stream along every pair at the same time."""
    before = busy_s()
    began = time.monotonic()
    ended = _traffic(lab, pairs, ["receive-stream"], [], ["send-stream"], [str(seconds)])
    busy = (busy_s() - before) / (time.monotonic() - began)
    congestion = {sent["congestion"] for _, sent in ended.values()}
    return Streams(
        mbit={pair: received["mbit"] for pair, (received, _) in ended.items()},
        rtt_ms={pair: sent["rtt_ms"] for pair, (_, sent) in ended.items()},
        congestion=", ".join(sorted(congestion)),
        busy_cores=busy,
    )


def _traffic(
    lab: Hosts,
    pairs: list[tuple[int, int]],
    receive: list[str],
    receive_rest: list[str],
    send: list[str],
    send_rest: list[str],
) -> dict[tuple[int, int], tuple[dict[str, Any], dict[str, Any]]]:
    """Start all receivers, then all senders; what each pair's receiver and sender printed."""
    tool = [sys.executable, "-I", "-S", str(TRAFFIC)]
    with ExitStack() as stack:
        receivers = []
        senders = []
        for number, (_, destination) in enumerate(pairs):
            argv = [*tool, *receive, str(PORT + number), *receive_rest]
            receivers.append(stack.enter_context(Reader(lab, argv, destination)))
        for receiver in receivers:
            receiver.line(READY_S)
        for number, (source, destination) in enumerate(pairs):
            argv = [*tool, *send, address(destination), str(PORT + number), *send_rest]
            senders.append(stack.enter_context(Reader(lab, argv, source)))
        return {
            pair: (json.loads(receiver.line(600.0)), json.loads(sender.line(600.0)))
            for pair, receiver, sender in zip(pairs, receivers, senders, strict=True)
        }


class Reader:
    """A command on a host whose lines are read; killed when the block ends."""

    def __init__(self, lab: Hosts, argv: list[str], host: int | str) -> None:
        ours, theirs = os.pipe()
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  (closed at the exit)
        try:
            self.process = lab.start(argv, host, stdout=theirs, stderr=self._errors)
        finally:
            os.close(theirs)
        self._stream = open(ours, "rb", buffering=0)  # noqa: SIM115
        self._unread = b""

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self._stream.close()
        self._errors.close()

    def line(self, timeout_s: float) -> str:
        """The next line.

        Raises:
            LabError: none came in time, or the command ended without one.
        """
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._unread:
            left_s = max(0.0, deadline - time.monotonic())
            readable, _, _ = select.select([self._stream], [], [], left_s)
            if not readable:
                raise LabError(f"{' '.join(self.process.argv)}: silent for {timeout_s:g} s")
            data = self._stream.read(1 << 20)
            if not data:
                self._errors.seek(0)
                errors = self._errors.read().decode(errors="replace")
                raise LabError(f"{' '.join(self.process.argv)} ended early: {errors}")
            self._unread += data

        line, self._unread = self._unread.split(b"\n", 1)
        return line.decode()


def port_bytes(devices: str) -> tuple[int, int]:
    """What a host's port has received and sent so far, of what /proc/net/dev says there."""
    for line in devices.splitlines():
        name, _, counts = line.partition(":")
        if name.strip() == INTERFACE:
            numbers = counts.split()
            return int(numbers[0]), int(numbers[8])
    raise LabError(f"/proc/net/dev has no {INTERFACE}")


def busy_s() -> float:
    """Seconds that all cores together were busy since the machine started."""
    ticks = [int(t) for t in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")
