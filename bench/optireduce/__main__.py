"""All measurements of OptiReduce (docs), one after the other: ``python -m bench.optireduce``.

    python -m bench.optireduce [--short]      under 25 minutes on 2 cores; a few with --short

Every table is a command of its own, which is printed above it; what takes longest comes last. A
table whose results are wrong ends everything with an error.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
import time

TABLES: list[tuple[str, str, int]] = [
    ("error --repeats 3", "error --repeats 1", 10),
    ("transform", "transform --repeats 2", 5),
    # For operations of a few milliseconds the median of a few repeats says little.
    ("loopback --mib 1 16 --repeats 25", "loopback --short", 35),
    ("goodput", "goodput --short", 200),
    ("goodput --rates 0 --pairs 2 --ways TCP 'UBT, numpy' 'UBT, compiled'", "", 60),
    (
        "training --loopback --tasks digits --seeds 2 --shares 0.1",
        "training --loopback --short",
        46,
    ),
    ("tails --cap 8", "tails --short", 720),
    (
        "training --tasks digits --steps 40 --cap 6 "
        "--networks clean 'lower tail' 'higher tail' '1 % lost' '5 % lost'",
        "training --short --cap 8",
        139,
    ),
    (
        "training --tasks images --steps 40 --cap 12 --networks clean 'higher tail'",
        "",
        88,
    ),
]
"""The command, the short one, and about how many seconds the first takes."""


def main() -> None:
    """Run them."""
    short = "--short" in sys.argv[1:]
    began_s = time.monotonic()
    if not short:
        print(f"about {sum(seconds for _, _, seconds in TABLES) / 60:.0f} minutes", flush=True)

    for number, (full, shortened, _) in enumerate(TABLES):
        command = shortened if short else full
        if not command:
            continue
        argv = shlex.split(command)

        left_s = sum(seconds for _, _, seconds in TABLES[number:])
        print(f"\n## python -m bench.optireduce.{' '.join(argv)}\n", flush=True)
        if not short:
            print(f"{time.monotonic() - began_s:.0f} s, {left_s} to go", file=sys.stderr)

        table, *options = argv
        python_m = [sys.executable, "-m", f"bench.optireduce.{table}"]
        code = subprocess.run([*python_m, *options], check=False).returncode
        if code:
            sys.exit(code)

    print(f"\n{(time.monotonic() - began_s) / 60:.1f} minutes in all")


if __name__ == "__main__":
    main()
