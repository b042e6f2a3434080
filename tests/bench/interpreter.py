"""What a plan's commands amount to, read from their text: an oracle that shares no code with it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from bench.lab.plan import Plan

NUMBER = r"([0-9.]+)"


@dataclass
class Device:
    """Bits per second by class (``root``: a plain tbf); the class of each source address."""

    rates: dict[str, float] = field(default_factory=dict)
    bursts: dict[str, int] = field(default_factory=dict)
    default: str = "root"
    by_source: dict[str, str] = field(default_factory=dict)
    leaves: dict[str, str] = field(default_factory=dict)

    def rate_for(self, source: str) -> float:
        """The rate of frames from a source address; a class is also held by its parent's rate."""
        if "root" in self.rates:
            return self.rates["root"]
        return min(self.rates[self.class_of(source)], self.rates["1:ffff"])

    def class_of(self, source: str) -> str:
        """The class that frames from a source address go to."""
        if "root" in self.rates:
            return "root"
        return self.by_source.get(source, self.default)


@dataclass
class World:
    """Everything a plan sets up."""

    devices: dict[tuple[str, str], Device] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)
    ports: dict[str, str] = field(default_factory=dict)
    routes: dict[str, str] = field(default_factory=dict)
    frames: dict[str, int] = field(default_factory=dict)
    losses: dict[str, list[tuple[str, float]]] = field(default_factory=dict)
    queues: dict[tuple[str, str], int] = field(default_factory=dict)
    files: dict[tuple[str, str], str] = field(default_factory=dict)
    namespaces: list[str] = field(default_factory=list)


def interpret(plan: Plan) -> World:
    """Read every step; an unknown line is an error."""
    world = World()
    readers = {"ip": _ip, "tc": _tc, "iptables-restore": _rule}
    for step in plan.steps:
        match step.argv:
            case ("ip", "netns", "add", name):
                world.namespaces.append(name)
            case ("tee", path):
                world.files[step.where, path] = step.stdin
            case ("ip" | "tc", "-batch", "-") | ("iptables-restore",):
                for line in step.stdin.splitlines():
                    readers[step.argv[0]](world, step.where, line)
            case _:
                raise AssertionError(f"unknown step {step}")
    return world


def _ip(world: World, where: str, line: str) -> None:
    if match := re.fullmatch(
        r"link add (\S+) mtu (\d+) type veth peer name e0 mtu \2 netns (\S+)", line
    ):
        world.ports[match[3]] = match[1]
    elif match := re.fullmatch(r"addr add (\S+)/32 dev (\S+)", line):
        if match[2] == "e0":
            world.addresses[where] = match[1]
    elif match := re.fullmatch(r"route add (\S+)/32 dev (v\d+) src \S+", line):
        world.routes[match[1]] = match[2]
    elif match := re.fullmatch(r"link set e0 gso_max_size (\d+) up", line):
        world.frames[where] = int(match[1])
    else:
        assert re.match(r"link set (lo|v\d+)|route add", line), line


def _tc(world: World, where: str, line: str) -> None:
    words = line.split()
    device = world.devices.setdefault((where, words[words.index("dev") + 1]), Device())
    if match := re.search(rf"root tbf rate {NUMBER}bit burst (\d+)", line):
        device.rates["root"] = float(match[1])
        device.bursts["root"] = int(match[2])
    elif match := re.search(r"root handle 1: htb default (\w+)", line):
        device.default = f"1:{match[1]}"
    elif match := re.search(
        rf"parent (\S+) classid (\S+) htb rate {NUMBER}bit ceil \3bit burst (\d+) cburst \4", line
    ):
        assert match[1] == "1:" or match[1] in device.rates
        device.rates[match[2]] = float(match[3])
        device.bursts[match[2]] = int(match[4])
    elif match := re.search(r"qdisc add dev \S+ parent (\S+) (bfifo|netem) (.*)", line):
        assert match[1] in device.rates
        device.leaves[match[1]] = f"{match[2]} {match[3]}"
    elif match := re.search(r"u32 match ip src (\S+)/32 flowid (\S+)", line):
        assert match[2] in device.rates
        device.by_source[match[1]] = match[2]
    else:
        raise AssertionError(f"unknown line {line}")


def _rule(world: World, where: str, line: str) -> None:
    if match := re.fullmatch(
        rf"-A INPUT -i e0 (! )?-s (\S+) -m statistic --mode random --probability {NUMBER} -j DROP",
        line,
    ):
        source = "*" if match[1] else match[2]
        world.losses.setdefault(where, []).append((source, float(match[3])))
    elif match := re.fullmatch(r"-A FORWARD -i (\S+) -o (\S+) -j NFQUEUE --queue-num (\d+)", line):
        world.queues[match[1], match[2]] = int(match[3])
    else:
        assert line in {"*filter", "COMMIT"}, f"unknown rule {line}"


def tc_json(device: Device, name: str) -> str:
    """What ``tc -j qdisc`` prints of a plain port (its rate is in bytes per second)."""
    rate = int(device.rates["root"] / 8)
    return json.dumps([{"kind": "tbf", "dev": name, "root": True, "options": {"rate": rate}}])
