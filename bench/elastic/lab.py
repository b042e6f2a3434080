"""A death a minute on a network: this project, restarts from checkpoints, and torchft.

Eight replicas train, one on each host of an emulated network (``bench.lab``). In turn, for each of

    elastic      ``latecomer.elastic.Job`` with ``bits="same"``: ``examples/train_elastic.py``
    checkpoints  torch's elastic agents and DDP over Gloo: ``bench.elastic.restarting``
    torchft      torchft over Gloo: ``bench.elastic.under_torchft``

nobody dies for a while; then once in ``--every`` seconds the process of one replica is killed, and
started again ``--away`` seconds later (the agents do that themselves, at once); then nobody dies
again. The victims and the moments come from the seed, and are the same for all.

Measured: from a death to the end of the first step after it that all survivors have done; and the
work that is done while replicas die, in microbatches, against what would have been done at the rate
before and after it. A step counts once: what is done again after a restart is no work.

The parameters of every replica must be right after every step: with ours, those of an undisturbed
training on one replica, bit for bit; with the others, the same on all replicas. There are no
figures of a system with which they are not, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.elastic.fleet import Failed, undisturbed
from bench.elastic.on_hosts import LabFleet, on_hosts
from bench.elastic.outcome import (
    Span,
    first_told,
    rate,
    require_equal,
    require_same_end,
    went_on_s,
    work,
)
from bench.elastic.systems import HOSTS, SYSTEMS, Setting, System
from bench.lab import Lab, Network
from bench.lab.measure import busy_s
from latecomer.verify.errors import LatecomerError

WARM_UP_STEPS = 20
LOOK_S = 0.1
INTERRUPTED = 130  # as shells have it


@dataclass(frozen=True)
class Death:
    """A replica's process was killed.

    Attributes:
        replica: its number.
        at_s: when, by the clock of this machine.
        survivors_s: until all others had done a step without it.
        all_s: until all had done a step together again.
    """

    replica: int
    at_s: float
    survivors_s: float
    all_s: float


@dataclass(frozen=True)
class Load:
    """How busy the machine and the network were, while nobody died.

    Attributes:
        cores: busy ones of the whole machine.
        port: share of its rate that the busiest direction of any port has carried.
    """

    cores: float
    port: float


@dataclass(frozen=True)
class Figures:
    """What was measured of one system; rates are microbatches per second."""

    deaths: list[Death]
    rate_before: float
    rate_after: float
    rate_disturbed: float
    kept: float
    steps: int
    load: Load
    parameters: str


def say(text: str) -> None:
    """How far it is."""
    print(text, file=sys.stderr, flush=True)


def moments(seed: int, minutes: float, every_s: float) -> list[tuple[float, int]]:
    """When who dies, in seconds from the beginning: once in the middle half of each interval."""
    dice = random.Random(seed)
    deaths = int(minutes * 60.0 / every_s)
    return [
        ((number + 0.25 + 0.5 * dice.random()) * every_s, dice.randrange(HOSTS))
        for number in range(deaths)
    ]


def wait_until(running: LabFleet, at_s: float, alive: Sequence[int]) -> None:
    """Sleep; Failed if one of these replicas ends by itself."""
    while (left_s := at_s - time.time()) > 0.0:
        running.require_alive(alive)
        time.sleep(min(left_s, LOOK_S))


def undisturbed_span(running: LabFleet, seconds: float) -> tuple[Span, Load]:
    """Let them train; when that was, and how busy all was."""
    everyone = range(running.replicas)
    began_s = time.time()
    busy_before_s = busy_s()
    bytes_before = _port_bytes(running.lab)
    wait_until(running, began_s + seconds, everyone)

    span = Span(began_s, time.time())
    carried = max(
        after - before for before, after in zip(bytes_before, _port_bytes(running.lab), strict=True)
    )
    load = Load(
        cores=(busy_s() - busy_before_s) / span.seconds,
        port=carried * 8e-6 / span.seconds / running.lab.network.rate_mbit,
    )
    return span, load


def _port_bytes(lab: Lab) -> list[int]:
    """By host and direction."""
    return [count for host in range(lab.network.hosts) for count in lab.port_bytes(host)]


def one_death(running: LabFleet, system: System, victim: int, away_s: float) -> Death:
    """Kill a replica, start it again, and wait until all train together."""
    view = running.view
    others = [number for number in range(running.replicas) if number != victim]
    killed_s = running.kill(victim)
    if not system.restarts_itself:
        wait_until(running, killed_s + away_s, others)
        running.start_again(victim)
    running.wait_for_all_after(view)

    survivors_s = went_on_s([running.current[number].steps for number in others], killed_s)
    together = [step.at_s for step in running.current[victim].steps if step.view > view]
    death = Death(victim, killed_s, survivors_s, together[0] - killed_s)
    say(
        f"  replica {victim} killed: the others went on after {death.survivors_s:.2f} s, "
        f"it was back after {death.all_s:.2f} s"
    )
    return death


def disturb(running: LabFleet, system: System, options: argparse.Namespace) -> Figures:
    """Let them train, die, and train; what was measured, if all was right but for the check by
    an undisturbed training."""
    began_s = time.time()
    running.wait_for_all_after(-1, steps=WARM_UP_STEPS)
    say(f"{system.name}: all train after {time.time() - began_s:.1f} s")
    before, load = undisturbed_span(running, options.quiet)

    deaths = []
    began_s = time.time()
    for moment_s, victim in moments(options.seed, options.minutes, options.every):
        wait_until(running, began_s + moment_s, range(running.replicas))
        deaths.append(one_death(running, system, victim, options.away))
    disturbed = Span(began_s, began_s + options.minutes * 60.0)
    wait_until(running, disturbed.ends_s, range(running.replicas))
    after, _ = undisturbed_span(running, options.quiet)

    steps = first_told(running.all)
    rate_before = rate(steps, before, system.worth)
    rate_after = rate(steps, after, system.worth)
    done = work(steps, disturbed, system.worth)
    possible = (rate_before + rate_after) / 2 * disturbed.seconds
    return Figures(
        deaths=deaths,
        rate_before=rate_before,
        rate_after=rate_after,
        rate_disturbed=done / disturbed.seconds,
        kept=done / possible,
        steps=require_equal(running.all, within_views=system.repeats),
        load=load,
        parameters=require_same_end(running.current.values()),
    )


def measure(name: str, options: argparse.Namespace) -> Figures:
    """One system, its parameters checked. Raises Failed."""
    with tempfile.TemporaryDirectory() as folder:
        setting = Setting(
            width=options.width,
            compute_s=options.compute,
            silence_s=options.silence,
            save_every=options.save_every,
            torchft_timeout_s=options.torchft_timeout,
            folder=Path(folder),
        )
        system = SYSTEMS[name](setting)
        network = Network(hosts=HOSTS, rate_mbit=options.rate)
        with on_hosts(network, system) as running:
            figures = disturb(running, system, options)
        if name == "elastic":
            say("  the same training undisturbed, on one replica")
            running.check(undisturbed(running.last_step + 1, "--width", options.width))
    load = figures.load
    say(
        f"  {figures.steps} steps right, {figures.kept:.1%} of the work kept; "
        f"{load.cores:.1f} busy cores, ports {load.port:.0%} full"
    )
    return figures


def table(measured: dict[str, Figures | str]) -> str:
    """As Markdown; a text in place of figures says what was wrong."""
    lines = [
        "| | next step of all survivors | at most | all together again "
        "| microbatches/s undisturbed | with deaths | work kept | ports full | busy cores |",
        "|:--|" + "--:|" * 8,
    ]
    for name, figures in measured.items():
        if isinstance(figures, str):
            lines.append(f"| {name} | FAILED: {figures.splitlines()[0]} |" + " |" * 7)
            continue
        survivors_s = [death.survivors_s for death in figures.deaths]
        all_s = [death.all_s for death in figures.deaths]
        undisturbed_rate = (figures.rate_before + figures.rate_after) / 2
        cells = [
            f"{statistics.median(survivors_s):.2f} s",
            f"{max(survivors_s):.2f} s",
            f"{statistics.median(all_s):.1f} s",
            f"{undisturbed_rate:.1f}",
            f"{figures.rate_disturbed:.1f}",
            f"{figures.kept:.1%}",
            f"{figures.load.port:.0%}",
            f"{figures.load.cores:.1f}",
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def run(options: argparse.Namespace) -> None:
    """Measure each system in turn, and print the table; exit code 1 if something was not right."""
    if not 0.0 < options.every <= 60.0 * options.minutes:
        sys.exit(
            f"--every {options.every:g} must be above 0, and within --minutes: nobody would die"
        )
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # an end like Ctrl-C, tidily
    measured: dict[str, Figures | str] = {}
    try:
        for name in options.systems:
            try:
                measured[name] = measure(name, options)
            except Failed as failed:
                say(f"FAILED: {name}: {failed}")
                measured[name] = str(failed)
    except KeyboardInterrupt:
        say("interrupted: all processes of the lab have ended")
        sys.exit(INTERRUPTED)
    except LatecomerError as error:  # there is no lab here, or it broke
        sys.exit(f"error: {error}")

    if options.json:
        rows = {
            name: {"failed": row} if isinstance(row, str) else asdict(row)
            for name, row in measured.items()
        }
        settings = {name: value for name, value in vars(options).items() if name != "run"}
        print(json.dumps({"options": settings, "systems": rows}))
    else:
        print(table(measured))
    if any(isinstance(row, str) for row in measured.values()):
        sys.exit(1)
