"""How schedules run on GPUs, as users choose it: in Python or, else, by LATECOMER_DEVICE.

    auto        one kernel per operation where all ranks can run it, else transfers; the default
    kernel      that, or an error
    transfers   rounds of NCCL transfers, and no look at what kernels would need

It says nothing of CPU tensors.
"""

from __future__ import annotations

import os
from typing import Literal, get_args

from latecomer.verify.errors import ArgumentError

OnDevice = Literal["auto", "kernel", "transfers"]
VARIABLE = "LATECOMER_DEVICE"


def resolved(device: OnDevice | None) -> OnDevice:
    """What is asked for, or else the variable; ArgumentError for what there is not."""
    name = "device"
    value: str | None = device
    if not value:
        name = VARIABLE
        value = os.environ.get(VARIABLE) or "auto"

    choice: OnDevice
    for choice in get_args(OnDevice):
        if value == choice:
            return choice
    raise ArgumentError(name, value, f"must be one of {', '.join(get_args(OnDevice))}")
