"""A campaign of random faults against a job of real processes, for as long as one likes.

One to two replicas at a time are killed, stopped, or interrupted, at random moments, also while
others come back; then all are there again. At least two of four always live on. Every replica's
parameters after every step must be those of an undisturbed training, bit for bit, and the job must
go on within a minute; else the campaign ends with exit code 1, and says its seed.
"""

from __future__ import annotations

import argparse
import random
import signal
import time
from collections import Counter

from bench.elastic.fleet import Failed, LocalFleet, fleet, undisturbed

REPLICAS = 5
LATE = 4
LATE_S = 0.03
MOST_LOST = 2  # at a time: the others are a majority
KINDS = (signal.SIGKILL, signal.SIGKILL, signal.SIGINT, signal.SIGSTOP)
STOPS_S = (0.1, 1.0, 4.0)


def round_of_faults(running: LocalFleet, dice: random.Random, counts: Counter[str]) -> None:
    """Some are lost and come back; afterwards all are there."""
    victims = dice.sample(range(REPLICAS), dice.randint(1, MOST_LOST))
    for victim in victims:
        time.sleep(dice.choice([0.0, dice.random() * 0.01, dice.random()]))
        kind = dice.choice(KINDS)
        counts[kind.name] += 1
        running.signal(victim, kind)
        if kind == signal.SIGSTOP:
            time.sleep(dice.choice(STOPS_S))
            running.signal(victim, signal.SIGCONT)
        else:
            running.current[victim].process.wait()
            time.sleep(dice.random())
            running.start_again(victim)
    running.wait_for_all_in_view(range(REPLICAS))


def run(options: argparse.Namespace) -> None:
    """Run the campaign, and say what it was."""
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(2**32)
    print(f"seed {seed}", flush=True)
    dice = random.Random(seed)
    counts: Counter[str] = Counter()
    end_s = time.monotonic() + options.seconds
    rounds = 0
    with fleet(REPLICAS, silence_s=options.silence, late_s={LATE: LATE_S}) as running:
        try:
            while time.monotonic() < end_s:
                round_of_faults(running, dice, counts)
                rounds += 1
                if rounds % 10 == 0:
                    print(f"{rounds} rounds: {dict(counts)}", flush=True)
            running.end()
            compared = running.check(undisturbed(running.last_step + 1))
        except Failed as failed:
            raise SystemExit(f"FAILED in round {rounds + 1} of seed {seed}: {failed}") from None
    views = len({step.view for replica in running.all for step in replica.steps})
    faults = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    print(f"{rounds} rounds ({faults}), {views} views, {compared} steps: the same bits in all")
