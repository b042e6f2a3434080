"""The command ``latecomer profile``, which torchrun starts on every rank."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from latecomer.verify.replacing import PROFILE, Force, require_replaceable


def profile(
    out: Annotated[Path, typer.Option("--out", "-o", help="Where rank 0 writes it.")] = Path(
        "profile.json"
    ),
    force: Force = False,
) -> None:
    """Measure latency and bandwidth of the native all-reduce and of ours, for the modes.

    And by what all-reduces of each size are fastest where no rank is late.

    \b
    Examples:
      torchrun --nproc-per-node 4 -m latecomer profile
      torchrun --nnodes 8 --nproc-per-node 1 ... -m latecomer profile -o profile.json
    """
    from latecomer.runtime.policy.arrivals import first_of_class
    from latecomer.runtime.policy.dispatcher import AllReduceDispatcher
    from latecomer.runtime.policy.profile import run as measure

    if os.environ.get("RANK") == "0":
        require_replaceable("--out", out, PROFILE, force=force)
    measured = measure(AllReduceDispatcher, out)
    if os.environ["RANK"] == "0":
        for name, cost in (("native", measured.native), ("schedule", measured.schedule)):
            latency_us = cost.alpha_s * 1e6
            megabytes_per_s = 1e-6 / cost.beta_s
            print(f"{name:<9} {latency_us:9.1f} us a message, {megabytes_per_s:9.1f} MB/s")
        for of_class, way in measured.on_time.items():
            collective, first = first_of_class(of_class)
            print(f"{collective} from {first:>9} bytes on, all on time: {way}")
        print(f"written: {out} ({measured.ranks} ranks)")
