"""Which data path runs, and why: the compiled one where it can, else numpy's, which says so once.

What is compiled (see :mod:`latecomer.runtime.compiling`) is tried out before it is used:
``struct mmsghdr`` and ``struct cmsghdr`` are read at places that hold for Linux on 64 bits, and
were seen to on x86-64 only.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import platform
import select
import sys
from pathlib import Path
from typing import cast

import numpy as np

from latecomer.runtime.compiling import REMEDY, alone, missing
from latecomer.runtime.host import host
from latecomer.runtime.optireduce.options import Options, When
from latecomer.runtime.optireduce.udp.data_path import NUMPY, DataPath
from latecomer.runtime.optireduce.udp.endpoint import Endpoint
from latecomer.runtime.optireduce.udp.events import (
    Burst,
    Control,
    DatagramHeader,
    ExpectedShard,
    Placed,
    Type,
    UbtEvent,
    UbtMessage,
)
from latecomer.runtime.optireduce.udp.placement import Placer
from latecomer.verify.errors import ArgumentError

logger = logging.getLogger("latecomer")
MACHINES = ("x86_64", "aarch64")  # the latter by its documents only: nobody has tried it
TRY_S = 1.0  # how long datagrams to oneself may take
TRIED_OPERATION = 7
TRIED_BYTES = 399  # of a shard of five datagrams, of which the last one is filled up
TRIED_DATAGRAM_BYTES = 128


def choose(when: When) -> DataPath:
    """The data path for an option's value; where that is auto, for LATECOMER_COMPILED's, if set.

    Compiles where that is due. Raises ArgumentError if it must be the compiled one, and can't.
    """
    if when == "auto" and (asked := os.environ.get("LATECOMER_COMPILED", "auto")) != "auto":
        if asked not in ("on", "off"):
            raise ArgumentError("LATECOMER_COMPILED", asked, "must be auto, on or off")
        return choose(cast(When, asked))
    if when == "off":
        return NUMPY._replace(how="data path numpy, as was asked for")
    path, reason = _compiled()
    if path is not None:
        return path
    if when == "on":
        raise ArgumentError("compiled", when, reason, REMEDY)
    return NUMPY._replace(how=f"data path numpy: {reason}")


@functools.cache
def _compiled() -> tuple[DataPath | None, str]:
    """The compiled path; or none, and why."""
    reason = unfit()
    if not reason:
        began_s = host.monotonic()
        with alone(Path(__file__).parent / "kernels.py"):
            from latecomer.runtime.optireduce.udp.compiled.placement import COMPILED
        took_s = host.monotonic() - began_s
        if not (reason := fault(COMPILED)):
            logger.info("UBT's data path is compiled; loaded in %.1f s", took_s)
            return COMPILED._replace(how="data path compiled"), ""
    logger.warning("UBT's data path is numpy's, which is several times slower: %s", reason)
    return None, reason


def unfit() -> str:
    """Why nothing can be compiled here, or nothing."""
    if reason := missing():
        return reason
    if sys.platform != "linux" or sys.maxsize < 2**32 or sys.byteorder != "little":
        return "only Linux on 64 bits, little-endian, is known"
    if platform.machine() not in MACHINES:
        return f"no layout of structures is known for {platform.machine()}"
    return ""


def fault(path: DataPath) -> str:
    """What goes wrong when datagrams are sent to oneself and read by ``path``, or nothing."""
    burst = Burst(
        header=DatagramHeader(stage=0, receiver=0, operation=TRIED_OPERATION),
        source=np.arange(TRIED_BYTES, dtype=np.int64).astype(np.uint8),
        first=0,
        marks_from=4,
        passed=np.arange(5),
    )
    if not _writes_like_numpy(path, burst):
        return "it wrote other datagrams than numpy's path"

    credit = Control(Type.CREDIT, stage=1, peer=0, operation=TRIED_OPERATION, passed=6)
    placer = path.placer(path.codec(1, 0, 2, TRIED_DATAGRAM_BYTES))
    into = np.zeros(TRIED_BYTES, np.uint8)
    arrived = np.zeros(5, bool)
    shard = ExpectedShard(stage=0, sender=1, arrived=arrived, into=into)
    placer.open(TRIED_OPERATION, [shard])
    try:
        sent, events = _to_oneself(path, placer, [burst, credit])
    except OSError as error:
        return f"it can't send to itself, or not read that: {error}"
    placed = sum(event.fresh for event in events if isinstance(event, Placed))
    credits = [event for event in events if isinstance(event, Control)]
    received = placed + len(credits)
    as_sent = [credit._replace(peer=1)]
    if (sent, received) != (6, 6) or credits != as_sent or (into != burst.source).any():
        return f"it read {received} of 6 datagrams to itself rightly: the layouts must be others"
    return ""


def _writes_like_numpy(path: DataPath, burst: Burst) -> bool:
    """Whether the datagrams of a burst are the same, bit by bit, with and without tags."""
    for key in (b"", bytes(range(16))):
        codec = path.codec(1, 1, 2, TRIED_DATAGRAM_BYTES, key)
        right = NUMPY.codec(1, 1, 2, TRIED_DATAGRAM_BYTES, key).burst(burst)
        written = np.zeros_like(right)
        codec.write(written, burst)
        if (written != right).any() or (np.stack([*codec.burst(burst)]) != right).any():
            return False
    return True


def _to_oneself(
    path: DataPath, placer: Placer, messages: list[UbtMessage]
) -> tuple[int, list[UbtEvent]]:
    """(datagrams that the kernel took, events of what came back), as rank 1 sends to rank 0."""
    options = Options(datagram_bytes=TRIED_DATAGRAM_BYTES)
    channel = path.socket(options, "127.0.0.1", path.reader)
    sender = path.codec(1, 1, 2, TRIED_DATAGRAM_BYTES)
    events: list[UbtEvent] = []
    with contextlib.closing(channel):
        channel.peers = {0: channel.address}
        sending = Endpoint(channel, path.placer(sender))
        receiving = Endpoint(channel, placer)
        sent = sum(sending.send(message) for message in messages)
        until_s = host.monotonic() + TRY_S
        read = 0
        while read < sent and select.select([channel], [], [], until_s - host.monotonic())[0]:
            while (received := receiving.receive()) is not None:
                count, new_events = received
                read += count
                events += new_events
    return sent, events
