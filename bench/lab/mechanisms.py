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


_TRIALS: tuple[tuple[str, str, str, tuple[tuple[str, ...], ...]], ...] = (
    (
        "veth",
        "hosts and their ports",
        "Install iproute2; the kernel needs veth",
        (
            ("ip", "link", "add", "p0", "type", "veth", "peer", "name", "p1"),
            ("ip", "link", "set", "p0", "gso_max_segs", "1", "up"),
            ("ip", "netns", "list"),
        ),
    ),
    (
        "tbf",
        "the rate of a port",
        "Install iproute2 with tc; the kernel needs sch_tbf",
        (
            tuple(
                [
                    "tc",
                    "qdisc",
                    "replace",
                    "dev",
                    "p0",
                    "root",
                    "tbf",
                    "rate",
                    "100mbit",
                    "burst",
                    "70000",
                    "limit",
                    "200000",
                ]
            ),
        ),
    ),
    (
        "htb",
        "the rate of a link",
        "The kernel needs sch_htb and cls_u32",
        (
            tuple(
                [
                    "tc",
                    "qdisc",
                    "replace",
                    "dev",
                    "p0",
                    "root",
                    "handle",
                    "1:",
                    "htb",
                    "default",
                    "1",
                ]
            ),
            tuple(
                [
                    "tc",
                    "class",
                    "add",
                    "dev",
                    "p0",
                    "parent",
                    "1:",
                    "classid",
                    "1:1",
                    "htb",
                    "rate",
                    "1mbit",
                    "quantum",
                    "60000",
                ]
            ),
            tuple(
                [
                    "tc",
                    "filter",
                    "add",
                    "dev",
                    "p0",
                    "parent",
                    "1:",
                    "protocol",
                    "ip",
                    "u32",
                    "match",
                    "ip",
                    "src",
                    "10.0.0.1/32",
                    "flowid",
                    "1:1",
                ]
            ),
        ),
    ),
    (
        "netem",
        "constant delay",
        "The kernel needs sch_netem (without it the lab uses nfqueue)",
        (tuple(["tc", "qdisc", "replace", "dev", "p1", "root", "netem", "delay", "1ms"]),),
    ),
    (
        "statistic",
        "loss",
        "Install iptables; the kernel needs xt_statistic",
        (
            tuple(
                [
                    "iptables",
                    "-A",
                    "INPUT",
                    "-m",
                    "statistic",
                    "--mode",
                    "random",
                    "--probability",
                    "0.5",
                    "-j",
                    "DROP",
                ]
            ),
        ),
    ),
    (
        "nfqueue",
        "delay, and its tails",
        "Install iptables; the kernel needs nfnetlink_queue and xt_NFQUEUE",
        (tuple(["iptables", "-A", "FORWARD", "-j", "NFQUEUE", "--queue-num", "0"]),),
    ),
)
"""Name, what it serves, remedy, and the commands that must all succeed."""


def probe(sandbox: Sandbox) -> dict[str, Mechanism]:
    """Try every mechanism; about 20 short commands."""
    code, said = sandbox.call(["sh", "-c", "mount -t tmpfs none /run && mkdir /run/netns"])
    if code:
        raise LabUnavailable(
            f"mounting inside the sandbox is refused ({said.strip()})",
            "Run outside of the container, or allow mounts in user namespaces",
        )
    found = {}
    for name, serves, remedy, commands in _TRIALS:
        detail = ""
        for command in commands:
            try:
                code, said = sandbox.call(command)
            except LabError as error:
                code = 127
                said = str(error)
            if code:
                detail = f"{' '.join(command)}: {said.strip()}"
                break
        found[name] = Mechanism(name, serves, not detail, detail, remedy)
    return found


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


def choose(network: Network, found: dict[str, Mechanism]) -> Choice:
    """Decide what builds ``network``: netem for delays without tails where it exists.

    Raises:
        LabUnavailable: a setting of this network has no mechanism here.
    """
    paths = [network.path(*pair) for pair in network.pairs]
    late = [path for path in paths if path.late]
    netem = not any(path.tails for path in late) and _has(found, "netem") and _has(found, "htb")
    choice = Choice(
        link_rate="htb" if any(path.rate_mbit for path in paths) else "",
        loss="statistic" if any(path.loss for path in paths) else "",
        delay=("netem" if netem else "nfqueue") if late else "",
    )
    require(found, ["veth", "tbf", choice.link_rate, choice.loss, choice.delay])
    return choice


def require(found: dict[str, Mechanism], names: Iterable[str]) -> None:
    """Raise LabUnavailable for the first of ``names`` that is not available."""
    for name in names:
        if name and not _has(found, name):
            missing = found[name]
            raise LabUnavailable(
                f"{missing.serves} needs {name}, which does not work ({missing.detail})",
                missing.remedy,
            )


def _has(found: dict[str, Mechanism], name: str) -> bool:
    return found[name].available
