"""All measurements of docs/optireduce.md, one after the other: ``python -m bench.optireduce``."""

from __future__ import annotations

import subprocess
import sys

NAMES = {"error": False, "transform": False, "loopback": True, "tails": True, "training": True}
"""Whether it knows ``--short``."""

short = [argument for argument in sys.argv[1:] if argument == "--short"]
for name, shortens in NAMES.items():
    argv = ["-m", f"bench.optireduce.{name}", *(short if shortens else [])]
    print(f"\n## python {' '.join(argv)}\n", flush=True)
    code = subprocess.run([sys.executable, *argv], check=False).returncode
    if code:
        sys.exit(code)
