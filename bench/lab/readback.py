"""Did a setting take effect? What to read back from the kernel, and what has to be there.

Pure functions: :func:`checks` says which commands to run in which namespace, and each check's
``problem`` judges what such a command printed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from bench.lab.mechanisms import CONGESTION, Choice
from bench.lab.network import Network
from bench.lab.plan import FIRST_OWN, OTHERS, PORT, SWITCH, Queue, address, frame_bytes, namespace

TOLERANCE = 0.001
UNITS = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9}


@dataclass(frozen=True)
class Check:
    """A setting, the command that reads it, and the judgement on its output.

    Attributes:
        problem: given the output, what is wrong with it (empty: nothing).
    """

    setting: str
    where: str
    argv: tuple[str, ...]
    problem: Callable[[str], str]


def checks(network: Network, choice: Choice, queues: tuple[Queue, ...]) -> list[Check]:
    """Everything that is read back of a network."""
    all_checks = [
        Check("forwarding", SWITCH, _cat("/proc/sys/net/ipv4/ip_forward"), _is("1")),
        Check("cutting frames to the MTU", SWITCH, ("ip", "-d", "-j", "link"), _segments(network)),
        Check(
            "rates into the hosts",
            SWITCH,
            ("tc", "-j", "qdisc"),
            _rates({f"v{h}": network.port_mbit(h) for h in _plain_ports(network, choice)}),
        ),
    ]
    for host in range(network.hosts):
        all_checks += _checks_of_host(network, choice, host)

    if choice.delay == "netem":
        delays = {}
        for source, destination in network.pairs:
            path = network.path(source, destination)
            if path.late:
                delays[source, destination] = path.delay_s
        all_checks.append(Check("delays", SWITCH, ("tc", "-j", "qdisc"), _netem(delays)))
    if queues:
        all_checks.append(Check("delays", SWITCH, ("iptables", "-S", "FORWARD"), _queued(queues)))
    return all_checks


def _checks_of_host(network: Network, choice: Choice, host: int) -> list[Check]:
    """What the host sends, its congestion control, and what is set on the way into it."""
    where = namespace(host)
    sending = {"e0": network.port_mbit(host)}
    of_host = [
        Check(
            f"frames out of host {host}",
            where,
            ("ip", "-d", "-j", "link", "show", "e0"),
            _frame(frame_bytes(network, host)),
        ),
        Check(f"rate out of host {host}", where, ("tc", "-j", "qdisc"), _rates(sending)),
        Check(
            f"congestion control of host {host}",
            where,
            _cat(CONGESTION),
            _is(network.congestion),
        ),
    ]

    own = _own_classes(network, choice, host)
    if own:
        show = ("tc", "class", "show", "dev", f"v{host}")
        of_host.append(Check(f"links into host {host}", SWITCH, show, _classes(own)))
    losses = _losses(network, host)
    if losses:
        rules = ("iptables", "-S", "INPUT")
        of_host.append(Check(f"losses into host {host}", where, rules, _probabilities(losses)))
    return of_host


def bits_per_second(text: str) -> float:
    """A rate as ``tc`` prints it (``30500Kbit``)."""
    match = re.fullmatch(r"([0-9.]+)([KMG]?)bit", text)
    assert match is not None, text
    return float(match[1]) * UNITS[match[2]]


def dropped(table: str) -> dict[int, int]:
    """Frames that netfilter queues dropped, by queue, from /proc/net/netfilter/nfnetlink_queue."""
    rows = [line.split() for line in table.splitlines()]
    return {int(row[0]): int(row[5]) + int(row[6]) for row in rows if len(row) >= 7}


def _cat(path: str) -> tuple[str, ...]:
    return ("cat", path)


def _is(value: str) -> Callable[[str], str]:
    def problem(output: str) -> str:
        return "" if output.strip() == value else f"is {output.strip()!r}, not {value!r}"

    return problem


def _segments(network: Network) -> Callable[[str], str]:
    def problem(output: str) -> str:
        links = {link["ifname"]: link for link in json.loads(output)}
        ports = [f"v{host}" for host in range(network.hosts)]
        wrong = []
        for port in ports:
            link = links.get(port)
            if link is None or link.get("gso_max_segs") != 1 or link["mtu"] != network.mtu:
                wrong.append(port)
        return f"not in effect on {', '.join(wrong)}" if wrong else ""

    return problem


def _frame(size: int) -> Callable[[str], str]:
    def problem(output: str) -> str:
        size_read = json.loads(output)[0].get("gso_max_size")
        return "" if size_read == size else f"up to {size_read} bytes, not {size}"

    return problem


def _plain_ports(network: Network, choice: Choice) -> list[int]:
    return [h for h in range(network.hosts) if not _own_classes(network, choice, h)]


def _own_classes(network: Network, choice: Choice, host: int) -> dict[str, float]:
    """The classes on the way into ``host``, with their rates, where there are any."""
    mbit = network.port_mbit(host)
    own: dict[str, float] = {}
    for source in range(network.hosts):
        path = network.path(source, host)
        delayed = choice.delay == "netem" and path.late
        if source != host and (path.rate_mbit or delayed):
            own[f"1:{FIRST_OWN + source:x}"] = min(path.rate_mbit or mbit, mbit)
    if not own:
        return {}
    return {f"1:{PORT:x}": mbit, f"1:{OTHERS:x}": mbit} | own


def _rates(expected: dict[str, float]) -> Callable[[str], str]:
    def problem(output: str) -> str:
        read_back = {}
        for qdisc in json.loads(output):
            if qdisc["kind"] == "tbf" and qdisc.get("root"):
                read_back[qdisc["dev"]] = qdisc["options"]["rate"] * 8 / 1e6
        return _differences(expected, read_back, "Mbit/s by tbf")

    return problem


def _classes(expected: dict[str, float]) -> Callable[[str], str]:
    def problem(output: str) -> str:
        rows = re.findall(r"class htb (\S+) .*\brate (\S+) ceil (\S+)", output)
        read_back = {
            number: bits_per_second(ceil) / 1e6 for number, rate, ceil in rows if rate == ceil
        }
        return _differences(expected, read_back, "Mbit/s by htb")

    return problem


def _losses(network: Network, host: int) -> dict[str, float]:
    """Probability by source address, ``*`` where it is the same for all."""
    by_source = {}
    for source in range(network.hosts):
        if source != host:
            by_source[f"{address(source)}/32"] = network.path(source, host).loss
    if len(set(by_source.values())) == 1:
        by_source = {"*": next(iter(by_source.values()))}
    return {source: loss for source, loss in by_source.items() if loss}


def _probabilities(expected: dict[str, float]) -> Callable[[str], str]:
    def problem(output: str) -> str:
        read_back = {}
        for line in output.splitlines():
            chance = re.search(r"--probability ([0-9.]+)", line)
            source = re.search(r"(?<!! )-s (\S+)", line)
            if chance and "-j DROP" in line:
                read_back[source[1] if source else "*"] = float(chance[1])
        return _differences(expected, read_back, "lost by statistic")

    return problem


def _netem(expected: dict[tuple[int, int], float]) -> Callable[[str], str]:
    def problem(output: str) -> str:
        read_back = {}
        for qdisc in json.loads(output):
            if qdisc["kind"] == "netem":
                _, class_number = qdisc["parent"].split(":")
                source = int(class_number, 16) - FIRST_OWN
                destination = int(qdisc["dev"][1:])
                read_back[source, destination] = qdisc["options"]["delay"]["delay"]
        return _differences(expected, read_back, "s by netem")

    return problem


def _queued(queues: tuple[Queue, ...]) -> Callable[[str], str]:
    expected = {(f"v{i}", f"v{j}"): queue.number for queue in queues for i, j in queue.pairs}

    def problem(output: str) -> str:
        rows = re.findall(r"-i (\S+) -o (\S+) -j NFQUEUE --queue-num (\d+)", output)
        read_back = {(i, o): int(number) for i, o, number in rows}
        return "" if read_back == expected else f"rules are {read_back}, not {expected}"

    return problem


def _differences(expected: Mapping[Any, float], read_back: Mapping[Any, float], unit: str) -> str:
    wrong = [
        f"{name}: {read_back.get(name, 'nothing')}, not {value:g} {unit}"
        for name, value in expected.items()
        if name not in read_back or abs(read_back[name] - value) > TOLERANCE * max(value, 1e-6)
    ]
    wrong += [
        f"{name}: {read_back[name]:g} {unit}, not asked for" for name in read_back.keys() - expected
    ]
    return "; ".join(wrong)
