"""How fast the verified checker is beside ``verify``, and how long Coq takes for a certificate.

    python -m proofs.speed [--n 64 128 256]

Needs ``make proofs``. All read the same bytes, in turn, and the median of each is taken: ``verify``
in a Python that runs already, the command ``verify``, and the extracted checker, which is a process
of its own, too.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from latecomer.synth.straggler.generate import search
from latecomer.verify import check, decode, encode
from latecomer.verify.certify import certificate
from latecomer.verify.kernel import judge

THEORIES = Path(__file__).resolve().parent / "coq"
REPEATS = 3


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _schedule(n: int, m: int) -> bytes:
    """One late rank, closed form."""
    return encode(search(n, m=m, owners="free").schedule)


def compare(n: int) -> str:
    """One row: transfers, the three medians, the ratios of the extracted checker to the others."""
    data = _schedule(n, 1)
    moves = sum(len(moves) for _, _, moves in decode(data).located_rounds())
    own = []
    command = []
    extracted = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "schedule.json"
        file.write_bytes(data)
        argv = [sys.executable, "-m", "latecomer.verify", "--quiet", str(file)]
        for _ in range(REPEATS):
            own.append(_seconds(lambda: check(decode(data))))
            command.append(_seconds(lambda: subprocess.run(argv, check=True)))
            extracted.append(_seconds(lambda: list(judge([data]))))
    a, b, c = map(statistics.median, (own, command, extracted))
    return f"| {n} | {moves:,} | {a:.2f} s | {b:.2f} s | {c:.2f} s | {c / a:.2f} | {c / b:.2f} |"


def compile_certificate() -> float:
    """Seconds that ``coqc`` takes for n = 8, k = 28."""
    data = _schedule(8, 4)
    schedule = decode(data)
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "proof.v"
        digest = hashlib.sha256(data).hexdigest()
        target.write_text(certificate(schedule, check(schedule), digest, target))
        command = ["coqc", "-Q", str(THEORIES), "Latecomer", str(target)]
        return statistics.median(
            _seconds(lambda: subprocess.run(command, check=True, capture_output=True))
            for _ in range(REPEATS)
        )


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, nargs="+", default=[64, 128, 256])
    options = parser.parse_args()
    print("| n | transfers | verify | the command | extracted | to verify | to the command |")
    print("|--:|--:|--:|--:|--:|--:|--:|")
    for n in options.n:
        print(compare(n), flush=True)
    print(f"certificate for n = 8, k = 28: {compile_certificate():.1f} s")


if __name__ == "__main__":
    main()
