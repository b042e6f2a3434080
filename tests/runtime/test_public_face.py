"""What users may import, pinned."""

from __future__ import annotations

import subprocess
import sys

import runtime


def test_exported_names():
    assert sorted(runtime.__all__) == [
        "AllReduceDispatcher",
        "BACKEND",
        "Executor",
        "Observer",
        "Operation",
        "Reducer",
        "Verified",
        "Watch",
        "configure",
        "ddp",
        "load",
        "watch",
    ]  # fmt: skip
    assert all(hasattr(runtime, name) for name in runtime.__all__)


def test_the_runtime_needs_no_solver():
    script = (
        "import sys, runtime\n"
        "loaded = {'ortools', 'z3', 'synth', 'matplotlib', 'sklearn'} & set(sys.modules)\n"
        "sys.exit(str(loaded) if loaded else 0)"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=500, check=False
    )
    assert result.returncode == 0, result.stderr
