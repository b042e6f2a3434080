"""What this machine's kernel and tools can do for the lab, found out by trying each.

Nothing is assumed from version numbers or module lists: every mechanism is used once, in the
sandbox's own network namespace, where no host is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from bench.lab.errors import LabError, LabUnavailable
from bench.lab.network import Network
from bench.lab.sandbox import Sandbox

CONGESTION = "/proc/sys/net/ipv4/tcp_congestion_control"


@dataclass(frozen=True)
class Mechanism:
    """One thing the lab can use.

    Attributes:
        name: how the lab calls it.
        serves: what it is for.
        available: whether it worked.
        detail: what was said when it did not.
        remedy: what would make it available.
    """

    name: str
    serves: str
    available: bool
    detail: str
    remedy: str


_TRIALS: tuple[tuple[str, str, str, tuple[str, ...]], ...] = (
    (
        "veth",
        "hosts and their ports",
        "Install iproute2; the kernel needs veth",
        (
            "ip link add p0 type veth peer name p1",
            "ip link set p0 gso_max_segs 1 up",
            "ip netns list",
        ),
    ),
    (
        "tbf",
        "the rate of a port",
        "Install iproute2 with tc; the kernel needs sch_tbf",
        ("tc qdisc replace dev p0 root tbf rate 100mbit burst 70000 limit 200000",),
    ),
    (
        "htb",
        "the rate of a link",
        "The kernel needs sch_htb and cls_u32",
        (
            "tc qdisc replace dev p0 root handle 1: htb default 1",
            "tc class add dev p0 parent 1: classid 1:1 htb rate 1mbit quantum 60000",
            "tc filter add dev p0 parent 1: protocol ip u32 match ip src 10.0.0.1/32 flowid 1:1",
        ),
    ),
    (
        "netem",
        "constant delay",
        "The kernel needs sch_netem (without it the lab uses nfqueue)",
        ("tc qdisc replace dev p1 root netem delay 1ms",),
    ),
    (
        "statistic",
        "loss",
        "Install iptables; the kernel needs xt_statistic",
        ("iptables -A INPUT -m statistic --mode random --probability 0.5 -j DROP",),
    ),
    (
        "nfqueue",
        "delay, and its tails",
        "Install iptables; the kernel needs nfnetlink_queue and xt_NFQUEUE",
        ("iptables -A FORWARD -j NFQUEUE --queue-num 0",),
    ),
    (
        "conntrack",
        "a firewall",
        "Install iptables; the kernel needs xt_conntrack",
        ("iptables -A INPUT -m conntrack --ctstate ESTABLISHED -j ACCEPT",),
    ),
)
"""Name, what it serves, remedy, and the commands that must all succeed."""


def probe(sandbox: Sandbox) -> dict[str, Mechanism]:
    """Try every mechanism; about 20 short commands."""
    code, output = sandbox.call(["sh", "-c", "mount -t tmpfs none /run && mkdir /run/netns"])
    if code:
        raise LabUnavailable(
            f"mounting inside the sandbox is refused ({output.strip()})",
            "Run outside of the container, or allow mounts in user namespaces",
        )

    mechanisms = {}
    for name, serves, remedy, commands in _TRIALS:
        detail = ""
        for command in commands:
            try:
                code, output = sandbox.call(command.split())
            except LabError as error:
                code = 127
                output = str(error)
            if code:
                detail = f"{command}: {output.strip()}"
                break

        mechanisms[name] = Mechanism(name, serves, not detail, detail, remedy)
    return mechanisms


@dataclass(frozen=True)
class Choice:
    """Which mechanism does what in one network; ``""`` where there is nothing to do.

    Attributes:
        link_rate: ``htb`` or nothing.
        loss: ``statistic`` or nothing.
        delay: ``netem``, ``nfqueue`` or nothing.
    """

    link_rate: str = ""
    loss: str = ""
    delay: str = ""


def choose(network: Network, mechanisms: dict[str, Mechanism]) -> Choice:
    """Decide what builds ``network``: netem for delays without tails where it exists.

    Raises:
        LabUnavailable: a setting of this network has no mechanism here.
    """
    paths = [network.path(source, destination) for source, destination in network.pairs]
    delay = ""
    if any(path.late for path in paths):
        has_tails = any(path.tails for path in paths)
        has_netem = _has(mechanisms, "netem") and _has(mechanisms, "htb")
        delay = "netem" if has_netem and not has_tails else "nfqueue"
    choice = Choice(
        link_rate="htb" if any(path.rate_mbit for path in paths) else "",
        loss="statistic" if any(path.loss for path in paths) else "",
        delay=delay,
    )
    require(mechanisms, ["veth", "tbf", choice.link_rate, choice.loss, choice.delay])
    return choice


def require(mechanisms: dict[str, Mechanism], names: Iterable[str]) -> None:
    """Raise LabUnavailable for the first of ``names`` that is not available."""
    for name in names:
        if name and not _has(mechanisms, name):
            missing = mechanisms[name]
            raise LabUnavailable(
                f"{missing.serves} needs {name}, which does not work ({missing.detail})",
                missing.remedy,
            )


def _has(mechanisms: dict[str, Mechanism], name: str) -> bool:
    return mechanisms[name].available
