"""Days of a real cluster in minutes: real processes die and come back when its servers did.

A replica is killed when one of the servers that it stands for breaks, and started again when all
of them are repaired. One replica is late in every step. After every step every replica's parameters
must be those of an undisturbed training on one replica, bit for bit: so every sum that was used was
that of all microbatches, each counted once.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import time
from itertools import pairwise

from bench.elastic.fleet import Failed, LocalFleet, fleet, undisturbed
from bench.elastic.trace import Outage, faults, of_replicas

LATE_S = 0.2


def play(running: LocalFleet, outages: list[Outage], day_s: float) -> list[float]:
    """Let them come; when some died."""
    moments = sorted(
        [(outage.begins, "dies", int(outage.who)) for outage in outages]
        + [(outage.ends, "returns", int(outage.who)) for outage in outages]
    )
    there = set(range(running.replicas))
    deaths_s = []
    began_s = time.monotonic()
    for day, what, replica in moments:
        time.sleep(max(0.0, began_s + day * day_s - time.monotonic()))
        running.require_alive(there)
        if what == "dies":
            deaths_s.append(running.signal(replica, signal.SIGKILL))
            running.current[replica].process.wait()
            there.discard(replica)
        else:
            running.start_again(replica)
            there.add(replica)
    running.wait_for_all_in_view(there, steps=3)
    return deaths_s


def ends_s(running: LocalFleet) -> list[float]:
    """When any replica has done a step, in order."""
    return sorted(step.at_s for replica in running.all for step in replica.steps)


def run(options: argparse.Namespace) -> None:
    """Replay, and say what was there."""
    outages = of_replicas(faults(options.trace), options.replicas, options.first_day, options.days)
    day_s = options.minutes * 60.0 / options.days
    print(
        f"{options.days:g} days from day {options.first_day:g} in {options.minutes:g} minutes: "
        f"{len(outages)} outages of {options.replicas} replicas",
        flush=True,
    )
    late_s = {options.replicas - 1: LATE_S}
    with fleet(options.replicas, silence_s=options.silence, late_s=late_s) as running:
        try:
            deaths_s = play(running, outages, day_s)
            running.end()
            steps = running.check(undisturbed(running.last_step + 1))
        except Failed as failed:
            raise SystemExit(f"FAILED: {failed}") from None
        views = {step.view for replica in running.all for step in replica.steps}
        done_s = ends_s(running)
        waits_s = [min(at_s for at_s in done_s if at_s > died_s) - died_s for died_s in deaths_s]
        longest_s = max(after - before for before, after in pairwise(done_s))
        print(f"{steps} steps in {len(views)} views, every replica's parameters right after each")
        print(
            f"from a death to the next step: {statistics.median(waits_s):.2f} s, "
            f"at most {max(waits_s):.2f} s; "
            f"longest time without any step {longest_s:.2f} s"
        )
