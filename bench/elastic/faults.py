"""How soon the others go on after each kind of fault, and how long they wait when one comes back.

Four replicas, the last of them late in every step. Each repeat is one job, in which the faults come
one after the other; who has died is started again a second later. Measured, from the fault to the
end of the next step that all survivors have done without who was lost; and when it is back, the
longest time between two steps of the others. Every replica's parameters after every step must be
those of an undisturbed training on one replica, bit for bit; else there are no figures.
"""

from __future__ import annotations

import argparse
import json
import math
import signal
import statistics
import sys
import time
from collections import defaultdict
from itertools import pairwise

from bench.elastic.fleet import Failed, LocalFleet, fleet, undisturbed

REPLICAS = 4
LATE = 3
AWAY_S = 1.0
FAULTS: dict[str, tuple[signal.Signals, tuple[int, ...]]] = {
    "a helper is killed": (signal.SIGKILL, (1,)),
    "the first rank is killed": (signal.SIGKILL, (0,)),
    "the late rank is killed": (signal.SIGKILL, (LATE,)),
    "two are killed at once": (signal.SIGKILL, (1, 2)),
    "a training loop raises": (signal.SIGINT, (1,)),
    "a helper is stopped": (signal.SIGSTOP, (2,)),
}
WITHOUT_STORE = "one is killed, and the store before"


def after_fault(running: LocalFleet, what: signal.Signals, victims: tuple[int, ...]) -> float:
    """Seconds until the survivors have done the next step without the victims."""
    survivors = sorted(set(range(running.replicas)) - set(victims))
    lost_s = 0.0
    for victim in victims:
        lost_s = running.signal(victim, what)
    running.wait_for_all_in_view(survivors)
    ends_s = []
    for number in survivors:
        steps = [step for step in running.current[number].steps if step.at_s > lost_s]
        ends_s.append(next(step.at_s for step in steps if not set(victims) & set(step.replicas)))
    return max(ends_s) - lost_s


def at_return(running: LocalFleet, what: signal.Signals, victims: tuple[int, ...]) -> float:
    """The longest time between two steps of the survivors, until the victims are back."""
    survivors = sorted(set(range(running.replicas)) - set(victims))
    time.sleep(AWAY_S)
    began_s = time.time()
    for victim in victims:
        if what == signal.SIGSTOP:
            running.signal(victim, signal.SIGCONT)
        else:
            running.current[victim].process.wait()
            running.start_again(victim)
    running.wait_for_all_in_view(range(running.replicas), steps=3)
    gaps_s = []
    for number in survivors:
        times_s = [step.at_s for step in running.current[number].steps if step.at_s > began_s]
        gaps_s += [after - before for before, after in pairwise(times_s)]
    return max(gaps_s)


def one_job(silence_s: float, late_s: float, faults: list[str]) -> dict[str, tuple[float, float]]:
    """By fault, seconds until the survivors have gone on, and their longest gap at the return."""
    found = {}
    with fleet(REPLICAS, silence_s=silence_s, late_s={LATE: late_s}) as running:
        for name in faults:
            running.wait_for_all_in_view(range(REPLICAS), steps=3)
            if name == WITHOUT_STORE:
                running.lose_store()
                found[name] = after_fault(running, signal.SIGKILL, (1,)), math.nan
                continue
            what, victims = FAULTS[name]
            found[name] = (
                after_fault(running, what, victims),
                at_return(running, what, victims),
            )
        running.end()
        running.check(undisturbed(running.last_step + 1))
    return found


def run(options: argparse.Namespace) -> None:
    """Print the table."""
    faults = [*FAULTS, WITHOUT_STORE]
    rows = defaultdict(list)
    for number in range(options.repeat):
        print(f"job {number + 1} of {options.repeat}", file=sys.stderr, flush=True)
        try:
            for name, times_s in one_job(options.silence, options.late, faults).items():
                rows[name].append(times_s)
        except Failed as failed:
            raise SystemExit(f"FAILED: {failed}") from None
    if options.json:
        print(json.dumps(rows))
        return
    print(
        f"silence {options.silence:g} s, replica {LATE} {options.late:g} s late, {REPLICAS} of them"
    )
    print("| fault | next step of all survivors | at most | longest gap at the return |")
    print("|:--|--:|--:|--:|")
    for name, times_s in rows.items():
        until_s = [until for until, _ in times_s]
        gap_s = statistics.median(gap for _, gap in times_s)
        gap = "-" if math.isnan(gap_s) else f"{gap_s:.2f} s"
        print(f"| {name} | {statistics.median(until_s):.2f} s | {max(until_s):.2f} s | {gap} |")
