"""The modes where a device's streams, and not the host, come to operations.

The host enqueues operations long before the device comes to them, and has to know by which schedule
when it does. So nothing can be decided from who has come to *this* operation; what is decided from
earlier ones is known at once, on all ranks alike:

    native, static    as on the CPU
    predict           as on the CPU; arrivals are those of the streams (``watcher``), reported when
                      they are known. Epochs begin at an operation that no *host* has come to
    auto              as predict: it is what remains of it without a wait, and each record says so
    eager             refused: it is nothing but that wait

The policy is the same code (``latecomer.runtime.policy``). A host waits only where an epoch that
begins at its operation is being agreed on: for a round trip, however late any device is.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from latecomer.runtime.executor.nccl.streams import Device
from latecomer.runtime.policy.options import Options
from latecomer.verify.errors import ArgumentError

AUTO_PREDICTS = "mode auto predicts on a device: "

logger = logging.getLogger("latecomer")


def on_device(options: Options) -> tuple[Options, str]:
    """The options by which a device's operations are decided, and what to say before each reason.

    ArgumentError for mode eager. Mode native has no use for kernels.
    """
    if options.mode == "eager":
        text = "waits on the host until ranks have come, while a device's work is enqueued before"
        raise ArgumentError("mode", "eager", text, "Use mode='auto', which predicts on a device")
    if options.mode == "native":
        return replace(options, device="transfers"), ""
    if options.mode != "auto":
        return options, ""
    logger.info("on a device mode auto predicts from earlier operations, as mode predict does")
    return replace(options, mode="predict"), AUTO_PREDICTS


def require_no_capture(device: Device, options: Options) -> None:
    """Raise ArgumentError where the current stream is captured in a graph."""
    if device.is_capturing():
        text = "decides each operation anew, which a CUDA graph would replay as it was once decided"
        raise ArgumentError("mode", options.mode, text, "Use mode='static', 'native' or a schedule")
