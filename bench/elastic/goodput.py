"""What a year of a real cluster would have left of a job on all of its servers.

Not a run: the trace's outages, and what each costs a job that trains on every server that is up.

    elastic      a death costs the time to the next step, a return the longest gap; both were
                 measured (docs/measurements/elastic.md). No finished work is lost. The batch stays
                 what it was, so all wait for those that have one microbatch more.
    torchft      a death costs the step that was under way, too, and as long as was measured where
                 a replica is late (docs/measurements/torchft.md). Its batch shrinks.
    checkpoints  a death costs the work since the last one, and a restart; a server that comes back
                 is taken in at the next restart. Writing one costs time. Its batch shrinks, too.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from itertools import pairwise

from bench.elastic.trace import DAYS, SERVERS, Outage, faults, merged

DAY_S = 86_400.0

# as measured: see the pages above
DEATH_S = 0.9
RETURN_S = 0.6
TORCHFT_DEATH_S = {"our process group": 1.2, "Gloo, a time-out of 12 s": 12.5}


@dataclass(frozen=True)
class Change:
    """From a day on so many servers are up; ``died``: of those that just went."""

    day: float
    up: int
    died: int
    returned: int


def changes(outages: list[Outage]) -> list[Change]:
    """All of them, from day 0 on."""
    moments: dict[float, tuple[int, int]] = {0.0: (0, 0)}
    for outage in outages:
        if outage.begins >= DAYS:
            continue
        died, returned = moments.get(outage.begins, (0, 0))
        moments[outage.begins] = died + 1, returned
        if outage.ends < DAYS:
            died, returned = moments.get(outage.ends, (0, 0))
            moments[outage.ends] = died, returned + 1
    up = SERVERS
    found = []
    for day in sorted(moments):
        died, returned = moments[day]
        up += returned - died
        found.append(Change(day, up, died, returned))
    return found


def _stretches(found: list[Change]) -> list[tuple[Change, float]]:
    """Each change, and how many seconds it is until the next."""
    end = Change(DAYS, up=0, died=0, returned=0)
    return [(now, (after.day - now.day) * DAY_S) for now, after in pairwise([*found, end])]


def possible(found: list[Change]) -> float:
    """Server-seconds that the servers were up."""
    return sum(change.up * lasts_s for change, lasts_s in _stretches(found))


def without_restart(
    found: list[Change], *, death_s: float, return_s: float, microbatches: int | None = None
) -> float:
    """Server-seconds of work where all go on after so long; ``microbatches``: always so many."""
    work = 0.0
    for change, lasts_s in _stretches(found):
        lost_s = (death_s if change.died else 0.0) + (return_s if change.returned else 0.0)
        busy = 1.0
        if microbatches is not None:
            busy = microbatches / (change.up * math.ceil(microbatches / change.up))
        work += busy * change.up * max(0.0, lasts_s - lost_s)
    return work


def with_checkpoints(
    found: list[Change], *, every_s: float, write_s: float, restart_s: float
) -> float:
    """Server-seconds of work that are kept, where a death throws all back to the last checkpoint.

    On average that is half the time between two, or of what there was since the last restart.
    """
    work = 0.0
    members = SERVERS
    runs_s = 0.0  # since the last restart
    restarting_s = 0.0  # still to come
    for change, lasts_s in _stretches(found):
        if change.died:
            work -= members * min(every_s, runs_s) / 2
            members = change.up
            restarting_s = restart_s
            runs_s = 0.0
        trained_s = max(0.0, lasts_s - restarting_s)
        restarting_s = max(0.0, restarting_s - lasts_s)
        work += members * trained_s * every_s / (every_s + write_s)
        runs_s += trained_s
    return work


def run(options: argparse.Namespace) -> None:
    """Print the table."""
    found = changes(merged(faults(options.trace)))
    most = possible(found)
    deaths = sum(1 for change in found if change.died)
    returns = sum(1 for change in found if change.returned)
    of_all = most / (SERVERS * DAYS * DAY_S)
    print(f"{SERVERS} servers, {DAYS:g} days: {deaths} moments at which some died, {returns} at")
    print(f"which some came back; they were up for {of_all:.2%} of the time. Of that, work kept:\n")
    step_s = options.step
    rows = {
        f"elastic, {each} microbatches for each server": without_restart(
            found, death_s=DEATH_S, return_s=RETURN_S, microbatches=each * SERVERS
        )
        for each in (8, 32, 128)
    }
    rows["elastic, as if microbatches could be cut"] = without_restart(
        found, death_s=DEATH_S, return_s=RETURN_S
    )
    for name, death_s in TORCHFT_DEATH_S.items():
        rows[f"torchft, {name}"] = without_restart(
            found, death_s=death_s + step_s / 2, return_s=RETURN_S
        )
    for every_min in (10.0, 30.0, 60.0):
        for restart_min in (3.0, 10.0):
            name = f"checkpoint every {every_min:g} min, restart in {restart_min:g} min"
            rows[name] = with_checkpoints(
                found, every_s=every_min * 60.0, write_s=options.write, restart_s=restart_min * 60.0
            )
    print("| | work kept | lost, in days of the whole cluster |")
    print("|:--|--:|--:|")
    for name, work in rows.items():
        lost_days = (most - work) / (SERVERS * DAY_S)
        print(f"| {name} | {work / most:.3%} | {lost_days:.2f} |")
