"""From a network to the commands that build it: a pure function, nothing is run here.

    host r, namespace hR                     switch, namespace switch
    e0  10.77.0.(r+1)/32 ── veth pair ──  vR  (10.77.0.254)

The switch forwards by IP address. A port's rate is set twice: on e0 for what the host sends (so
that a full port pushes back on the sender, as a network card does) and on vR for what it
receives. Where paths to R differ in rate (or are delayed by netem), vR has an htb class for each
such source instead of the plain tbf. Hosts hand over frames of up to 64 KiB; ``gso_max_segs 1`` on
vR cuts them to the MTU on their way into the receiving host, where frames are then lost one by
one. Delays by nfqueue happen in the switch, to the frames as they were handed over.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from bench.lab.mechanisms import CONGESTION, Choice
from bench.lab.network import Limits, Network

SWITCH = "switch"
SWITCH_ADDRESS = "10.77.0.254"
LEAST_BURST = 16_000
HEADERS = 1000
MAX_FRAME = 65_536
LEAST_BUFFER = 200_000
QUANTUM = 60_000
PORT = 0xFFFF
OTHERS = 1
FIRST_OWN = 0x10
"""Numbers of htb classes: the whole port, sources without a class of their own, source 0's own."""


@dataclass(frozen=True)
class Step:
    """A command in a namespace (``""``: the sandbox's own), with what it reads."""

    where: str
    argv: tuple[str, ...]
    stdin: str = ""

    def __str__(self) -> str:
        line = f"[{self.where or 'sandbox'}] {' '.join(self.argv)}"
        return line + "".join(f"\n    {text}" for text in self.stdin.splitlines())


@dataclass(frozen=True)
class Queue:
    """A netfilter queue and the delays of the frames in it."""

    number: int
    path: Limits
    pairs: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Plan:
    """All steps, in order, and the queues that a delaying process has to serve."""

    steps: tuple[Step, ...]
    queues: tuple[Queue, ...]


def address(host: int) -> str:
    """The IP address of a host."""
    return f"10.77.0.{host + 1}"


def namespace(host: int) -> str:
    """The name of a host's network namespace."""
    return f"h{host}"


def buffer_bytes(network: Network, mbit: float) -> int:
    """How much a port of this rate holds before it drops."""
    return max(LEAST_BUFFER, int(mbit * 1e6 / 8 * network.buffer_s))


def burst_bytes(network: Network, mbit: float) -> int:
    """What may pass at once after a pause."""
    return max(LEAST_BURST, 2 * network.mtu + HEADERS, int(mbit * 1e6 / 8 * network.burst_s))


def frame_bytes(network: Network, host: int) -> int:
    """The largest frame that a host hands over: it fits into every burst on its way."""
    bursts = [burst_bytes(network, network.port_mbit(h)) for h in range(network.hosts)]
    links = [network.path(host, h).rate_mbit for h in range(network.hosts) if h != host]
    bursts += [burst_bytes(network, rate) for rate in links if rate]
    return min(MAX_FRAME, min(bursts) - HEADERS)


def plan(network: Network, choice: Choice) -> Plan:
    """The commands that build ``network`` with the mechanisms of ``choice``."""
    hosts = range(network.hosts)
    queues = _queues(network) if choice.delay == "nfqueue" else ()
    steps = [
        *(Step("", ("ip", "netns", "add", name)) for name in [SWITCH, *map(namespace, hosts)]),
        _batch(SWITCH, "ip", _switch_links(network)),
        _write(SWITCH, "/proc/sys/net/ipv4/ip_forward", "1"),
    ]

    for host in hosts:
        steps += [
            _batch(namespace(host), "ip", _host_links(network, host)),
            _write(namespace(host), CONGESTION, network.congestion),
            _batch(namespace(host), "tc", [_tbf(network, "e0", network.port_mbit(host))]),
        ]

    shaping = [line for host in hosts for line in _into(network, host, choice)]
    steps.append(_batch(SWITCH, "tc", shaping))

    if choice.loss:
        losses = {host: _losses(network, host) for host in hosts}
        steps += [_rules(namespace(host), rules) for host, rules in losses.items() if rules]
    if queues:
        steps.append(_rules(SWITCH, [rule for queue in queues for rule in _queue_rules(queue)]))

    return Plan(tuple(steps), queues)


def _switch_links(network: Network) -> list[str]:
    lines = ["link set lo up"]
    for host in range(network.hosts):
        port = f"v{host}"
        lines += [
            f"link add {port} mtu {network.mtu} type veth "
            f"peer name e0 mtu {network.mtu} netns {namespace(host)}",
            f"link set {port} gso_max_segs 1 up",
            f"addr add {SWITCH_ADDRESS}/32 dev {port}",
            f"route add {address(host)}/32 dev {port} src {SWITCH_ADDRESS}",
        ]
    return lines


def _host_links(network: Network, host: int) -> list[str]:
    return [
        "link set lo up",
        f"link set e0 gso_max_size {frame_bytes(network, host)} up",
        f"addr add {address(host)}/32 dev e0",
        f"route add {SWITCH_ADDRESS}/32 dev e0",
        f"route add default via {SWITCH_ADDRESS} dev e0",
    ]


def _tbf(network: Network, device: str, mbit: float) -> str:
    return (
        f"qdisc replace dev {device} root tbf rate {_rate(mbit)} "
        f"burst {burst_bytes(network, mbit)} limit {buffer_bytes(network, mbit)}"
    )


def _into(network: Network, host: int, choice: Choice) -> list[str]:
    """What shapes the traffic into a host, on the switch's end of its port."""
    port = f"v{host}"
    mbit = network.port_mbit(host)
    paths = {i: network.path(i, host) for i in range(network.hosts) if i != host}
    by_netem = choice.delay == "netem"
    own = {i: path for i, path in paths.items() if path.rate_mbit or (by_netem and path.late)}
    if not own:
        return [_tbf(network, port, mbit)]

    lines = [
        f"qdisc replace dev {port} root handle 1: htb default {OTHERS:x}",
        _htb(network, port, "1:", PORT, mbit),
        _htb(network, port, f"1:{PORT:x}", OTHERS, mbit),
        f"qdisc add dev {port} parent 1:{OTHERS:x} bfifo limit {buffer_bytes(network, mbit)}",
    ]

    for source, path in own.items():
        number = FIRST_OWN + source
        rate = min(path.rate_mbit or mbit, mbit)
        room = buffer_bytes(network, rate)
        lines.append(_htb(network, port, f"1:{PORT:x}", number, rate))
        if by_netem and path.late:
            frames = int((room + rate * 1e6 / 8 * path.delay_s) / network.mtu) + 1000
            leaf = f"netem limit {frames} delay {path.delay_s * 1e6:.0f}us"
        else:
            leaf = f"bfifo limit {room}"

        lines += [
            f"qdisc add dev {port} parent 1:{number:x} {leaf}",
            f"filter add dev {port} parent 1: protocol ip prio 1 "
            f"u32 match ip src {address(source)}/32 flowid 1:{number:x}",
        ]
    return lines


def _htb(network: Network, port: str, parent: str, number: int, mbit: float) -> str:
    burst = burst_bytes(network, mbit)
    return (
        f"class add dev {port} parent {parent} classid 1:{number:x} htb rate {_rate(mbit)} "
        f"ceil {_rate(mbit)} burst {burst} cburst {burst} quantum {QUANTUM}"
    )


def _losses(network: Network, host: int) -> list[str]:
    """Rules of the receiving host; what comes from the switch itself is never lost."""
    by_source = {i: network.path(i, host).loss for i in range(network.hosts) if i != host}
    values = set(by_source.values())
    if values == {0.0} or not values:
        return []
    if len(values) == 1:
        return [_loss(f"! -s {SWITCH_ADDRESS}", values.pop())]
    return [_loss(f"-s {address(i)}", loss) for i, loss in by_source.items() if loss]


def _loss(source: str, loss: float) -> str:
    chance = f"-m statistic --mode random --probability {loss:.9f}"
    return f"-A INPUT -i e0 {source} {chance} -j DROP"


def _queues(network: Network) -> tuple[Queue, ...]:
    """One queue for all paths that are delayed alike."""
    alike = defaultdict(list)
    for source, destination in network.pairs:
        path = network.path(source, destination)
        if path.late:
            only_delay = Limits(delay_s=path.delay_s, tails=path.tails)
            alike[only_delay].append((source, destination))

    queues = []
    for number, (path, pairs) in enumerate(alike.items()):
        queues.append(Queue(number, path, tuple(pairs)))
    return tuple(queues)


def _queue_rules(queue: Queue) -> list[str]:
    return [
        f"-A FORWARD -i v{source} -o v{destination} -j NFQUEUE --queue-num {queue.number}"
        for source, destination in queue.pairs
    ]


def _batch(where: str, tool: str, lines: list[str]) -> Step:
    return Step(where, (tool, "-batch", "-"), "".join(f"{line}\n" for line in lines))


def _rules(where: str, rules: list[str]) -> Step:
    return Step(where, ("iptables-restore",), "\n".join(["*filter", *rules, "COMMIT", ""]))


def _write(where: str, path: str, value: str) -> Step:
    return Step(where, ("tee", path), value)


def _rate(mbit: float) -> str:
    return f"{round(mbit * 1e6)}bit"
