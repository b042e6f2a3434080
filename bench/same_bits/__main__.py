"""``bits="same"`` beside sums of floats: how accurate they are, and how long they take.

    python -m bench.same_bits accuracy [--dtypes float32 bfloat16 float16 float64] [--steps 200]
    python -m bench.same_bits loopback [--sizes 256KiB 1MiB 4MiB 16MiB] [--repeats 25]
    python -m bench.same_bits lab [--rate 200] [--sizes ...] [--repeats 9]

The first trains a small transformer in one process and compares each sum with float64; the others
time all-reduces of four ranks, on this machine's loopback and on an emulated network.
"""

from __future__ import annotations

import argparse

from bench.same_bits import accuracy, timing


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(dest="part", required=True)
    accuracy.add_to(parts)
    timing.add_to(parts)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
