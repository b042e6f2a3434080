"""From the command line to a verified file, for few and many ranks: ``python -m bench.large``.

``synth generate --n N -o big.json.zst`` and ``verify big.json.zst``, each a process of its own,
with its wall time and its peak memory.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

CASES = [(7, 1), (12, 1), (48, 1), (96, 1), (192, 1), (256, 1), (1000, 1), (1024, 1), (1024, 4)]
BIN = Path(sys.executable).parent


def run(*command: str) -> tuple[float, float]:
    """Seconds and peak MiB of a command that has to succeed."""
    start = time.monotonic()
    pid = os.posix_spawn(BIN / command[0], command, os.environ)
    _, status, usage = os.wait4(pid, 0)
    if status:
        sys.exit(f"{' '.join(command)} failed: {os.waitstatus_to_exitcode(status)}")
    return time.monotonic() - start, usage.ru_maxrss / 1024


print("| n | m | transfers | generate | peak MiB | file KiB | verify | peak MiB |")
print("|--:|--:|--:|--:|--:|--:|--:|--:|")
with tempfile.TemporaryDirectory() as folder:
    file = Path(folder) / "big.json.zst"
    for n, m in CASES:
        made_s, made_mib = run("synth", "generate", f"--n={n}", f"--m={m}", "-q", "-o", str(file))
        proved_s, proved_mib = run("verify", "-q", str(file))
        moves = 2 * n * (n - 1) * m  # about: both phases
        print(
            f"| {n} | {m} | {moves:,} | {made_s:.2f} s | {made_mib:.0f} "
            f"| {file.stat().st_size / 1024:,.0f} | {proved_s:.2f} s | {proved_mib:.0f} |",
            flush=True,
        )
