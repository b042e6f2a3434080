"""``latecomer.elastic.Job`` on real processes: after each kind of fault, and under random ones.

python -m bench.elastic faults [--repeat 10] [--silence 0.3] [--late 0.05] [--json]
python -m bench.elastic chaos [--seconds 1800] [--seed 7]
python -m bench.elastic replay fault_trace.json [--first-day 320] [--days 20] [--minutes 10]
python -m bench.elastic goodput fault_trace.json

The trace of the last two: see bench/elastic/trace.py.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.elastic import chaos, faults, goodput, replay


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(required=True)

    table = parts.add_parser("faults", help="how soon the others go on after each kind of fault")
    table.add_argument("--repeat", type=int, default=10)
    table.add_argument("--late", type=float, default=0.05, help="seconds in each step, one replica")
    table.add_argument("--json", action="store_true")
    table.set_defaults(run=faults.run)

    campaign = parts.add_parser("chaos", help="random faults for a while")
    campaign.add_argument("--seconds", type=float, default=1800.0)
    campaign.add_argument("--seed", type=int)
    campaign.set_defaults(run=chaos.run)

    replayed = parts.add_parser("replay", help="days of a real cluster in minutes")
    replayed.add_argument("trace", type=Path)
    replayed.add_argument("--replicas", type=int, default=8)
    replayed.add_argument("--first-day", type=float, default=320.0)
    replayed.add_argument("--days", type=float, default=20.0)
    replayed.add_argument("--minutes", type=float, default=10.0)
    replayed.set_defaults(run=replay.run)

    year = parts.add_parser("goodput", help="what a year of it would have left of a job")
    year.add_argument("trace", type=Path)
    year.add_argument("--step", type=float, default=10.0, help="seconds")
    year.add_argument("--write", type=float, default=5.0, help="seconds that a checkpoint takes")
    year.set_defaults(run=goodput.run)

    for part in (table, campaign, replayed):
        part.add_argument("--silence", type=float, default=0.3, help="seconds; more where busy")

    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
