"""A firewall in every host: which of its ports the other hosts reach.

What belongs to a TCP connection that is admitted passes, both ways. UDP is judged datagram by
datagram: with a memory of what a host has sent, two hosts that send to each other at the same two
ports would open them for each other. All else is dropped without an answer, but for ICMP, which
tells a host that what it has sent did not arrive. What a host sends to itself is its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

CHAIN = "ADMITTED"
ENTRANCE = f"-A INPUT -i e0 -j {CHAIN}"


@dataclass(frozen=True)
class Ports:
    """Ports of one protocol (``tcp`` or ``udp``), from ``first`` to ``last``."""

    protocol: str
    first: int
    last: int


EVERY_TCP_PORT = Ports("tcp", 1, 65_535)


def rules(admitted: Iterable[Ports]) -> list[str]:
    """The chain's rules, as ``iptables -S`` prints them."""
    answers = f"-A {CHAIN} -p tcp -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT"
    lines = [answers, f"-A {CHAIN} -p icmp -j ACCEPT"]
    for ports in admitted:
        name = ports.protocol
        numbers = f"{ports.first}:{ports.last}" if ports.first != ports.last else ports.first
        lines.append(f"-A {CHAIN} -p {name} -m {name} --dport {numbers} -j ACCEPT")
    return [*lines, f"-A {CHAIN} -j DROP"]


def restoring(admitted: Iterable[Ports], *, is_first: bool) -> str:
    """What ``iptables-restore --noflush`` reads; the chain is emptied before, if it is there."""
    entrance = [ENTRANCE] if is_first else []
    lines = ["*filter", f":{CHAIN} - [0:0]", *entrance, *rules(admitted), "COMMIT"]
    return "\n".join(lines) + "\n"
