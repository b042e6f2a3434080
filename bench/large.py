"""From the command line to a verified file, for few and many ranks: ``python -m bench.large``.

``synth generate --n N -o big.json.zst`` and ``verify big.json.zst``, each a process of its own,
with its processor time (user and system) and its peak memory. With ``--bytes`` the number of chunks
is the best for such a buffer.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from latecomer.synth.cost import Link, best_chunks

CASES = [
    *((n, "--m=1") for n in (7, 12, 48, 192, 256, 1000, 1024)),
    *((n, "--bytes=1GiB") for n in (8, 64, 1024, 4096, 16384)),
]
BIN = Path(sys.executable).parent


def run(*command: str) -> tuple[float, float]:
    """Processor seconds and peak MiB of a command that has to succeed."""
    pid = os.posix_spawn(BIN / command[0], command, os.environ)
    _, status, usage = os.wait4(pid, 0)
    if status:
        sys.exit(f"{' '.join(command)} failed: {os.waitstatus_to_exitcode(status)}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


print("| n | chunks | transfers | generate | peak MiB | file KiB | verify | peak MiB |")
print("|--:|--:|--:|--:|--:|--:|--:|--:|")
with tempfile.TemporaryDirectory() as folder:
    file = Path(folder) / "big.json.zst"
    for n, chunks in CASES:
        generate_s, generate_mib = run(
            "synth", "generate", f"--n={n}", chunks, "-q", "-o", str(file)
        )
        proved_s, proved_mib = run("verify", "-q", str(file))

        k = n - 1  # for m = 1
        if "bytes" in chunks:
            k = best_chunks(n, 2**30, Link(3e-6, 450e9))
        transfers = 2 * n * k  # about: both phases
        print(
            f"| {n} | {k} | {transfers:,} | {generate_s:.2f} s | {generate_mib:.0f} "
            f"| {file.stat().st_size / 1024:,.0f} | {proved_s:.2f} s | {proved_mib:.0f} |",
            flush=True,
        )
