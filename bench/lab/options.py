"""From the options of the command line to a network."""

from __future__ import annotations

import re
from collections.abc import Iterable

from bench.lab.network import Limits, Network, Tail
from latecomer.synth.units import parse_seconds
from latecomer.verify.errors import ArgumentError

EXAMPLE = "For example: 3:rate=50,loss=1%,delay=5ms,tail=1%:20ms"


def network(
    *,
    hosts: int,
    rate: float,
    loss: str,
    delay: str,
    tail: Iterable[str],
    host: Iterable[str],
    link: Iterable[str],
    buffer: str,
    burst: str,
    mtu: int,
    congestion: str,
    seed: int,
) -> Network:
    """The network that the options describe.

    Raises:
        ArgumentError: an option that can't be read, or is out of its range.
    """
    of_link: dict[tuple[int, int], Limits] = {}
    for text in link:
        match = re.fullmatch(r"(\d+)([->])(\d+):(.+)", text)
        if match is None:
            raise ArgumentError(
                "--link", text, "must be two hosts and their limits", "For example: 6-7:rate=30"
            )
        source = int(match[1])
        destination = int(match[3])
        of_link[source, destination] = _limits("--link", match[4])
        if match[2] == "-":
            of_link[destination, source] = of_link[source, destination]

    of_host: dict[int, Limits] = {}
    for text in host:
        match = re.fullmatch(r"(\d+):(.+)", text)
        if match is None:
            raise ArgumentError("--host", text, "must be a host and its limits", EXAMPLE)
        of_host[int(match[1])] = _limits("--host", match[2])

    return Network(
        hosts=hosts,
        rate_mbit=rate,
        everywhere=Limits(
            loss=_share("--loss", loss),
            delay_s=parse_seconds("--delay", delay),
            tails=tuple(_tail("--tail", text) for text in tail),
        ),
        of_host=of_host,
        of_link=of_link,
        buffer_s=parse_seconds("--buffer", buffer),
        burst_s=parse_seconds("--burst", burst),
        mtu=mtu,
        congestion=congestion,
        seed=seed,
    )


def _limits(option: str, text: str) -> Limits:
    """``rate=50,loss=1%,delay=5ms,tail=1%:20ms``, in any order."""
    rate = None
    loss = 0.0
    delay = 0.0
    tails = []

    for part in text.split(","):
        name, _, value = part.partition("=")
        if name == "rate":
            rate = _number(option, value)
        elif name == "loss":
            loss = _share(option, value)
        elif name == "delay":
            delay = parse_seconds(option, value)
        elif name == "tail":
            tails.append(_tail(option, value))
        else:
            raise ArgumentError(option, text, "knows rate, loss, delay and tail", EXAMPLE)
    return Limits(rate, loss, delay, tuple(tails))


def _tail(option: str, text: str) -> Tail:
    share, _, delay = text.partition(":")
    return Tail(_share(option, share), parse_seconds(option, delay))


def _share(option: str, text: str) -> float:
    """``1%`` or ``0.01``."""
    number = _number(option, text.removesuffix("%"))
    return number / 100 if text.endswith("%") else number


def _number(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ArgumentError(option, text, "must be a number", EXAMPLE) from None
