"""The lab: an emulated network that is up inside a ``with`` block, and commands on its hosts."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.lab import firewall, job, measure
from bench.lab.errors import LabError
from bench.lab.mechanisms import Choice, Mechanism, choose, probe, require
from bench.lab.network import Limits, Network
from bench.lab.plan import SWITCH, SWITCH_ADDRESS, Plan, Queue, Step, address, namespace, plan
from bench.lab.readback import checks, dropped
from bench.lab.sandbox import Process, Sandbox

DELAY = Path(__file__).with_name("delay.py")
QUEUE_TABLE = "/proc/net/netfilter/nfnetlink_queue"
PINGS = 30
UNLUCKY = 1e-9  # how likely all pings of a path may be lost
PING_GAP_S = 0.003
PING_BYTES = 64
EARLY = 0.95
"""A delay measured below this share of the one asked for did not take effect."""


class Lab:
    """N hosts in network namespaces, joined by a switch; up inside a ``with`` block.

        with Lab(Network(hosts=8, rate_mbit=200)) as lab:
            lab.run(["python", "train.py"]).check()

    However the block or the process ends, all processes in the lab end and the namespaces vanish.

    Attributes:
        network: as asked for.
        choice: which mechanism does what.
        rtt_ms: the idle round trip between the first two hosts, median, as measured.
        setup_s: how long it took to build, checks included.

    Raises:
        LabUnavailable: namespaces, tools or a mechanism that this network needs are missing here.
        LabError: a command failed, or a setting did not take effect.
    """

    def __init__(self, network: Network | None = None) -> None:
        self.network = network or Network()
        self.choice = Choice()
        self.rtt_ms = math.nan
        self.setup_s = math.nan
        self._mechanisms: dict[str, Mechanism] = {}
        self._has_firewall = False
        self._queues: tuple[Queue, ...] = ()
        self._delayer: measure.Reader | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Lab:
        began = time.monotonic()
        with ExitStack() as stack:
            self._sandbox = stack.enter_context(Sandbox())
            self._mechanisms = probe(self._sandbox)
            self.choice = choose(self.network, self._mechanisms)
            self._build(plan(self.network, self.choice), stack)
            self._verify()
            self._stack = stack.pop_all()
        self.setup_s = time.monotonic() - began
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def address(self, host: int | str) -> str:
        """The IP address of a host, or of ``"switch"``."""
        return SWITCH_ADDRESS if host == SWITCH else address(int(host))

    def admit(self, ports: Sequence[firewall.Ports]) -> None:
        """From now on the hosts reach each other at these ports only; see :mod:`~.firewall`.

        Connections that were made before stay.

        Raises:
            LabUnavailable: this machine has no firewall.
            LabError: it did not take effect.
        """
        require(self._mechanisms, ["conntrack"])
        for host in range(self.network.hosts):
            where = namespace(host)
            text = firewall.restoring(ports, is_first=not self._has_firewall)
            self._step(Step(where, ("iptables-restore", "--noflush"), text))
            _, printed = self._sandbox.call(["iptables", "-S", firewall.CHAIN], netns=where)
            if printed.splitlines()[1:] != firewall.rules(ports):
                raise LabError(f"the firewall of host {host} did not take effect:\n{printed}")
        self._has_firewall = True

    def start(self, argv: Sequence[str], host: int | str, **options: Any) -> Process:
        """Start a command on a host, or on the ``"switch"`` (which reaches all hosts).

        Args:
            options: see :meth:`Sandbox.start`.
        """
        netns = SWITCH if host == SWITCH else namespace(int(host))
        return self._sandbox.start(argv, netns=netns, **options)

    def run(
        self,
        argv: Sequence[str],
        *,
        ranks_per_host: int = 1,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 600.0,
        keep_going: bool = False,
        on_line: Callable[[int, str], None] | None = None,
    ) -> job.Job:
        """Run a command on all hosts, once for each rank; see :func:`bench.lab.job.run`.

        Raises:
            LabError: the lab broke meanwhile; a rank that fails is in the result.
        """
        done = job.run(
            self,
            argv,
            ranks_per_host=ranks_per_host,
            env=env,
            timeout_s=timeout_s,
            keep_going=keep_going,
            on_line=on_line,
        )
        self.require_faithful()
        return done

    def require_alive(self) -> None:
        """Raise LabError if the process that delays frames has ended."""
        if self._delayer is not None and self._delayer.process.poll() is not None:
            self._delayer.line(1.0)

    def require_faithful(self) -> None:
        """Raise LabError if frames were dropped because the delaying process was too slow."""
        self.require_alive()
        if self._queues:
            lost = {queue: n for queue, n in dropped(self._call(QUEUE_TABLE)).items() if n}
            if lost:
                raise LabError(
                    f"the delaying process could not keep up: frames dropped, by queue: {lost}. "
                    "Lower the rates, or send larger frames"
                )

    def describe(self) -> dict[str, Any]:
        """What was built and how, for reports."""
        by_hosts = {"ports": "tbf", "switch": "IP forwarding"}
        chosen = {
            "link_rate": self.choice.link_rate,
            "loss": self.choice.loss,
            "delay": self.choice.delay,
        }
        return {
            "hosts": self.network.hosts,
            "rate_mbit": [self.network.port_mbit(h) for h in range(self.network.hosts)],
            "congestion": self.network.congestion,
            "rtt_ms": round(self.rtt_ms, 3),
            "setup_s": round(self.setup_s, 3),
            "mechanisms": by_hosts | {use: name for use, name in chosen.items() if name},
        }

    def entrance(self, host: int | str) -> str:
        """A command line that opens a shell on a host from outside, while the lab is up."""
        netns = SWITCH if host == SWITCH else namespace(int(host))
        inner = f"nsenter --net=/run/netns/{netns} $SHELL"
        return f"nsenter -t $(pgrep -P {self._sandbox.pid}) -U -m -p --preserve-credentials {inner}"

    def port_bytes(self, host: int) -> tuple[int, int]:
        """What a host's port has received and sent so far."""
        return measure.port_bytes(self._call("/proc/net/dev", namespace(host)))

    def _call(self, path: str, netns: str = SWITCH) -> str:
        code, output = self._sandbox.call(["cat", path], netns=netns)
        if code:
            raise LabError(f"reading {path}: {output.strip()}")
        return output

    def _build(self, built: Plan, stack: ExitStack) -> None:
        for step in built.steps:
            self._step(step)
        self._queues = built.queues
        if built.queues:
            queues = [_for_delayer(queue) for queue in built.queues]
            argv = [sys.executable, "-I", "-S", os.fspath(DELAY)]
            argv += [str(self.network.seed), json.dumps(queues)]
            self._delayer = stack.enter_context(measure.Reader(self, argv, SWITCH))
            self._delayer.line(measure.READY_S)

    def _step(self, step: Step) -> None:
        code, output = self._sandbox.call(step.argv, netns=step.where, stdin=step.stdin)
        if code:
            raise LabError(f"building the lab failed, rc {code}: {output.strip()}\n{step}")

    def _verify(self) -> None:
        """Read every setting back, then measure the delays.

        Raises:
            LabError: names the settings that are not in effect.
        """
        wrong = []
        for check in checks(self.network, self.choice, self._queues):
            code, output = self._sandbox.call(check.argv, netns=check.where)
            problem = f"can't be read: {output.strip()}" if code else check.problem(output)
            if problem:
                wrong.append(f"{check.setting}: {problem}")
        if not wrong and self.network.hosts > 1:
            wrong += self._measured()
        if wrong:
            raise LabError("settings that did not take effect:\n  " + "\n  ".join(wrong))

    def _measured(self) -> list[str]:
        """The idle round trip, and one path of each kind of delay."""
        paths = {(src, dst): self.network.path(src, dst) for src, dst in self.network.pairs}
        first_of_kind: dict[Limits, tuple[int, int]] = {}
        for pair, path in paths.items():
            if path.late:
                first_of_kind.setdefault(path, pair)
        pairs = list(dict.fromkeys([(0, 1), (1, 0), *first_of_kind.values()]))

        loss = max(paths[pair].loss for pair in pairs)
        pings = PINGS
        if 0 < loss < 1:  # so many that not all of a path's are lost
            pings = max(PINGS, int(math.log(UNLUCKY) / math.log(loss)) + 1)
        frames_of = measure.frames(self, pairs, pings, PING_GAP_S, PING_BYTES)
        self.rtt_ms = frames_of[0, 1].percentile(0.5) + frames_of[1, 0].percentile(0.5)

        wrong = []
        for (source, destination), frames in frames_of.items():
            path = paths[source, destination]
            least_ms = min(frames.delays_ms, default=math.inf)
            if path.loss < 1 and not EARLY * path.delay_s * 1e3 <= least_ms < math.inf:
                asked = f"{path.delay_s * 1e3:g} ms were asked for"
                wrong.append(f"delay from {source} to {destination}: {least_ms:.3f} ms, {asked}")
        return wrong


def _for_delayer(queue: Queue) -> dict[str, Any]:
    """A queue as ``delay.py`` takes it."""
    return {
        "queue": queue.number,
        "delay_s": queue.path.delay_s,
        "tails": [[tail.share, tail.delay_s] for tail in queue.path.tails],
    }
