"""``latecomer.elastic.Job`` on real processes: after each kind of fault, and under random ones.

python -m bench.elastic faults [--repeat 10] [--silence 0.3] [--late 0.05] [--json]
python -m bench.elastic chaos [--seconds 1800] [--seed 7]
"""

from __future__ import annotations

import argparse

from bench.elastic import chaos, faults


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

    for part in (table, campaign):
        part.add_argument("--silence", type=float, default=0.3, help="seconds; more where busy")

    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
