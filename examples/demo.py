"""The whole way, in one command: synthesize a schedule, prove it, train with one late rank.

python examples/demo.py [--ranks 8] [--late 5] [--delay-ms 60] [--epochs 8] [--out out/demo]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def step(*command: str) -> None:
    """Show a command, run it, and stop if it fails."""
    print("$", *command, flush=True)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    tool, *arguments = command
    code = subprocess.run(
        [str(Path(sys.executable).parent / tool), *arguments], env=environment, check=False
    ).returncode
    if code:
        sys.exit(code)
    print(flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--late", type=int, default=5)
    parser.add_argument("--delay-ms", type=float, default=60.0)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--out", type=Path, default=HERE.parent / "out" / "demo")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    schedule = os.path.relpath(options.out / "schedule.json")
    step("synth", "generate", "--n", str(options.ranks), "-o", schedule)
    step("verify", "--z3", schedule)
    step(
        "torchrun", "--standalone", "--nproc-per-node", str(options.ranks),
        os.path.relpath(HERE / "digits.py"), "--schedule", schedule,
        "--late", str(options.late), "--delay-ms", f"{options.delay_ms:g}",
        "--epochs", str(options.epochs), "--picture", os.path.relpath(options.out / "rounds.svg"),
    )  # fmt: skip


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
