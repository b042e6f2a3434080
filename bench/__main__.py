"""The measurements in docs/measurements that need no emulated network: ``python -m bench``."""

from __future__ import annotations

import subprocess
import sys

NAMES = ["cold_start", "verify_scaling", "large", "delays", "simulation", "executor", "forwarding"]

for name in NAMES:
    print(f"\n## python -m bench.{name}\n", flush=True)
    code = subprocess.run([sys.executable, "-m", f"bench.{name}"], check=False).returncode
    if code:
        sys.exit(code)
