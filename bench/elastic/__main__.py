"""``latecomer.elastic.Job`` on real processes: after each kind of fault, and under random ones.

python -m bench.elastic faults [--repeat 10] [--silence 0.3] [--late 0.05] [--json]
python -m bench.elastic changes [--replicas 2 4 8] [--repeat 10] [--json]
python -m bench.elastic chaos [--seconds 1800] [--seed 7]
python -m bench.elastic replay fault_trace.json [--first-day 320] [--days 20] [--minutes 10]
python -m bench.elastic goodput fault_trace.json
python -m bench.elastic lab [--minutes 3] [--every 60] [--seed 1] [--systems elastic torchft]

The trace of replay and goodput: see bench/elastic/trace.py.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.elastic import changes, chaos, faults, goodput, lab, replay
from bench.elastic.systems import SYSTEMS


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

    change = parts.add_parser("changes", help="how long members take to meet and connect")
    change.add_argument("--replicas", type=int, nargs="+", default=[2, 4, 8])
    change.add_argument("--repeat", type=int, default=10)
    change.add_argument("--json", action="store_true")
    change.set_defaults(run=changes.run)

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

    on_lab = parts.add_parser(
        "lab",
        help="a death a minute on a network: ours, restarts from checkpoints, torchft",
        description=lab.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    on_lab.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    on_lab.add_argument("--minutes", type=float, default=3.0, help="in which replicas die")
    on_lab.add_argument("--every", type=float, default=60.0, help="seconds from death to death")
    on_lab.add_argument("--away", type=float, default=5.0, help="seconds until it is started again")
    on_lab.add_argument("--quiet", type=float, default=15.0, help="seconds before, and after")
    on_lab.add_argument("--seed", type=int, default=1, help="of victims and moments")
    on_lab.add_argument("--rate", type=float, default=100.0, help="Mbit/s of a host's port")
    on_lab.add_argument("--width", type=int, default=8192, help="of the model: 67 parameters each")
    on_lab.add_argument(
        "--compute", type=float, default=0.05, help="seconds for a microbatch, more"
    )
    on_lab.add_argument("--save-every", type=int, default=10, help="steps between checkpoints")
    on_lab.add_argument("--torchft-timeout", type=float, default=5.0, help="of Gloo; seconds")
    on_lab.add_argument("--json", action="store_true")
    on_lab.set_defaults(run=lab.run)

    for part, silence_s in ((table, 0.3), (campaign, 0.3), (replayed, 0.3), (on_lab, 1.0)):
        part.add_argument(
            "--silence", type=float, default=silence_s, help="seconds; more where busy"
        )

    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
