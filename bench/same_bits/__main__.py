"""``bits="same"`` beside sums of floats: how accurate they are, and how long they take.

    python -m bench.same_bits accuracy [--dtypes float32 bfloat16 float16 float64] [--steps 200]
    python -m bench.same_bits loopback [--modes native auto] [--repeats 25] [--ranks 4]
                                       [--sizes 256KiB 1MiB 4MiB 16MiB]
    python -m bench.same_bits lab [--rate 200] [--modes ...] [--sizes ...] [--repeats 9]

The first trains a small transformer in one process and compares each sum with float64; the others
time all-reduces of four ranks, on this machine's loopback and on an emulated network.
"""

from __future__ import annotations

import argparse

from bench.same_bits import accuracy, timing
from bench.same_bits.accuracy import DTYPES
from bench.same_bits.timing import MODES, SIZES


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(required=True)

    part = parts.add_parser("accuracy", help="errors against float64, over a small training")
    part.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    part.add_argument("--steps", type=int, default=200)
    part.set_defaults(run=accuracy.run)

    loopback = parts.add_parser("loopback", help="time on this machine's loopback")
    loopback.add_argument("--repeats", type=int, default=25)
    loopback.add_argument("--ranks", type=int, default=timing.RANKS)
    loopback.set_defaults(run=timing.on_loopback)

    lab = parts.add_parser("lab", help="time on an emulated network")
    lab.add_argument("--rate", type=float, default=200.0, help="Mbit/s of a port")
    lab.add_argument("--repeats", type=int, default=9)
    lab.add_argument("--rank-side", action="store_true", help=argparse.SUPPRESS)
    lab.set_defaults(run=timing.on_lab)

    for part in (loopback, lab):
        part.add_argument("--sizes", nargs="+", default=list(SIZES), metavar="SIZE")
        part.add_argument("--modes", nargs="+", choices=tuple(MODES), default=["native", "auto"])

    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
