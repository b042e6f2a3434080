"""What an emulated network is: hosts, ports, and what happens to frames between two hosts.

    host 0 ──port── switch ──port── host 1       every port: full duplex, ``rate_mbit`` each way

Every host has one port. A path leads from one host to another; on it frames may be lost, delayed,
and limited to less than the port's rate. What is set for one host belongs to its cable: it adds
to the network's own on every path that leads from or to the host. What is set for a link replaces
all of that on this one path. Pure data: nothing is built here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from latecomer.verify.errors import ArgumentError

MAX_HOSTS = 64
MAX_DELAY_S = 10.0


@dataclass(frozen=True)
class Tail:
    """A share of the frames is delayed by ``delay_s`` more, each drawn on its own."""

    share: float
    delay_s: float


@dataclass(frozen=True)
class Limits:
    """What a host's cable or a link does to frames.

    Attributes:
        rate_mbit: Mbit/s in each direction; ``None``: as the port.
        loss: probability that a frame of MTU size or less is lost.
        delay_s: seconds added one way.
        tails: further delays that hit a share of the frames.
    """

    rate_mbit: float | None = None
    loss: float = 0.0
    delay_s: float = 0.0
    tails: tuple[Tail, ...] = ()

    def __add__(self, following: Limits) -> Limits:
        """One after the other; the rate is the ports' matter and not added."""
        return Limits(
            loss=self.loss + following.loss - self.loss * following.loss,
            delay_s=self.delay_s + following.delay_s,
            tails=self.tails + following.tails,
        )

    @property
    def late(self) -> bool:
        """Whether frames are delayed at all."""
        return bool(self.delay_s or self.tails)


@dataclass(frozen=True)
class Network:
    """An emulated network.

    Attributes:
        hosts: how many; host r runs rank r.
        rate_mbit: of every port, in each direction.
        everywhere: loss, delay and tails of every path.
        of_host: by host: the rate of its port, and what its cable adds to its paths.
        of_link: by (source, destination): what replaces all else on this path.
        buffer_s: how long a frame may wait in a full port; what comes then is dropped.
        burst_s: a port that has paused makes up for so much of the pause at once. All hosts share
            this machine's cores, so some pauses are not their own fault; 0.5 ms is strict.
        mtu: bytes of a frame without its Ethernet header.
        congestion: TCP's congestion control in all hosts.
        seed: of the delay draws (losses are drawn by the kernel, without a seed).

    Raises:
        ArgumentError: a number out of its range, or a host that does not exist.
    """

    hosts: int = 8
    rate_mbit: float = 200.0
    everywhere: Limits = Limits()
    of_host: Mapping[int, Limits] = field(default_factory=dict)
    of_link: Mapping[tuple[int, int], Limits] = field(default_factory=dict)
    buffer_s: float = 0.5
    burst_s: float = 0.002
    mtu: int = 1500
    congestion: str = "reno"
    seed: int = 0

    def __post_init__(self) -> None:
        _within("hosts", self.hosts, 1, MAX_HOSTS)
        _within("rate_mbit", self.rate_mbit, 0.1, 1e6)
        _within("buffer_s", self.buffer_s, 0.001, 60.0)
        _within("burst_s", self.burst_s, 0.0, 1.0)
        _within("mtu", self.mtu, 576, 65535)

        if self.everywhere.rate_mbit is not None:
            raise ArgumentError(
                "everywhere.rate_mbit", self.everywhere.rate_mbit, "is no path's", "Use rate_mbit"
            )

        _require(self.everywhere, "everywhere")
        for host, limits in self.of_host.items():
            self._exists(host)
            _require(limits, f"host {host}")

        for (source, destination), limits in self.of_link.items():
            self._exists(source)
            self._exists(destination)
            if source == destination:
                raise ArgumentError("link", f"{source}-{destination}", "joins two hosts")
            _require(limits, f"link {source}>{destination}")

    def port_mbit(self, host: int) -> float:
        """The rate of one host's port."""
        return self.of_host.get(host, Limits()).rate_mbit or self.rate_mbit

    def path(self, source: int, destination: int) -> Limits:
        """All that happens to frames from ``source`` to ``destination``, but for the ports."""
        if (own := self.of_link.get((source, destination))) is not None:
            return own
        cables = (self.of_host.get(host, Limits()) for host in (source, destination))
        return sum(cables, self.everywhere)

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """All paths, as (source, destination)."""
        return [(i, j) for i in range(self.hosts) for j in range(self.hosts) if i != j]

    def _exists(self, host: int) -> None:
        if not 0 <= host < self.hosts:
            raise ArgumentError("host", host, f"must be in 0..{self.hosts - 1}")


def _within(name: str, value: float, least: float, greatest: float) -> None:
    if not least <= value <= greatest:
        raise ArgumentError(name, value, f"must be in {least:g}..{greatest:g}")


def _require(limits: Limits, where: str) -> None:
    if limits.rate_mbit is not None:
        _within(f"rate_mbit of {where}", limits.rate_mbit, 0.1, 1e6)
    _within(f"loss of {where}", limits.loss, 0.0, 1.0)
    _within(f"delay_s of {where}", limits.delay_s, 0.0, MAX_DELAY_S)
    for tail in limits.tails:
        _within(f"tail share of {where}", tail.share, 0.0, 1.0)
        _within(f"tail delay_s of {where}", tail.delay_s, 0.0, MAX_DELAY_S)
