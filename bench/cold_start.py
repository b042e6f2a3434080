"""How long the two commands take from a cold shell, and how much of it is imports.

python -m bench.cold_start [--repeats 7]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

BIN = Path(sys.executable).parent
IMPORTS_OF_GENERATE = (
    "latecomer.synth.cli",
    "latecomer.synth.straggler.generate",
    "ortools.sat.python.cp_model",
)


def seconds(command: list[str], folder: str) -> float:
    began = time.monotonic()
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - began


def main() -> None:
    """Run and print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    repeats = parser.parse_args().repeats

    python = str(BIN / "python")
    commands = {
        "`synth generate --n 8`": [str(BIN / "synth"), "generate", "--n", "8"],
        "its imports alone": [python, "-c", f"import {', '.join(IMPORTS_OF_GENERATE)}"],
        "`verify schedule.json`": [str(BIN / "verify"), "schedule.json"],
        "its imports alone ": [python, "-c", "import latecomer.verify.cli"],
        "`verify --z3 schedule.json`": [str(BIN / "verify"), "--z3", "schedule.json"],
        "an empty Python": [python, "-c", ""],
    }  # fmt: skip

    times: dict[str, list[float]] = {name: [] for name in commands}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(repeats):
            for name, command in commands.items():
                times[name].append(seconds(command, folder))

    print("| command | median wall |")
    print("|:--|--:|")
    for name, measured in times.items():
        print(f"| {name.strip()} | {statistics.median(measured):.2f} s |")


if __name__ == "__main__":
    main()
