"""Which data path runs, and why: the compiled one where it can, else numpy's, which says so once.

Compiling takes seconds, on the first use after an installation or an update: one process does it,
the others of this machine wait for its result. What is compiled is tried out before it is used:
``struct mmsghdr`` and ``struct cmsghdr`` are read at places that hold for Linux on 64 bits, and
were seen to on x86-64 only.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import importlib.util
import logging
import os
import platform
import select
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import numpy as np

from runtime.optireduce.options import Options, When
from runtime.optireduce.udp.compiled.data_path import NUMPY, DataPath
from runtime.optireduce.udp.datagram import Header, Type
from verify.errors import ArgumentError

logger = logging.getLogger("latecomer")
MACHINES = ("x86_64", "aarch64")
COMPILE_S = 120.0  # waits: for another process; between looks; to arrive
LOOK_S = 0.05
TRY_S = 1.0
REMEDY = "pip install 'latecomer[fast]'"


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
        began_s = time.monotonic()
        with _alone():
            from runtime.optireduce.udp.compiled.batches import COMPILED
        took_s = time.monotonic() - began_s
        if not (reason := fault(COMPILED)):
            logger.info("UBT's data path is compiled; loaded in %.1f s", took_s)
            return COMPILED._replace(how="data path compiled"), ""
    logger.warning("UBT's data path is numpy's, which is several times slower: %s", reason)
    return None, reason


def unfit() -> str:
    """Why nothing can be compiled here, or nothing."""
    if importlib.util.find_spec("numba") is None:
        return f"numba is not installed ({REMEDY})"
    if sys.platform != "linux" or sys.maxsize < 2**32 or sys.byteorder != "little":
        return "only Linux on 64 bits, little-endian, is known"
    if platform.machine() not in MACHINES:
        return f"no layout of structures is known for {platform.machine()}"
    return ""


def fault(path: DataPath) -> str:
    """What goes wrong when datagrams are sent to oneself and read by ``path``, or nothing."""
    source = np.arange(399, dtype=np.int64).astype(np.uint8)
    codec, sender, numpys = path.codec(1, 0, 2, 128), path.codec(1, 1, 2, 128), NUMPY.codec
    what = 5, source, 0, 4, Header(0, 0, 7), np.arange(5)
    rows = sender.burst(*what)
    right = numpys(1, 1, 2, 128).burst(*what)
    wrote = (np.stack([*rows]) == right).all()
    for key in (b"", bytes(range(16))):
        written = [np.zeros_like(right) for _ in range(2)]
        for kind, into in zip((path.codec, numpys), written, strict=True):
            kind(1, 1, 2, 128, key).data(into, *what[1:])
        wrote = wrote and (written[0] == written[1]).all()
    if not wrote:
        return "it wrote other datagrams than numpy's path"
    short = np.frombuffer(sender.control(Type.CREDIT, Header(1, 0, 9), offset=6), np.uint8)
    found = np.zeros(399, np.uint8)
    kinds = list[Type]()
    seen = 0
    own = path.socket(Options(datagram_bytes=128), "127.0.0.1", path.reader)
    try:
        with contextlib.closing(own):
            own.peers = {0: own.address}
            until_s = time.monotonic() + TRY_S
            sent = own.send(0, rows) + own.send(0, short[None])
            while seen < 6 and select.select([own], [], [], until_s - time.monotonic())[0]:
                while (taken := own.receive()) is not None:
                    for batch in codec.read(taken, Counter()):
                        kinds = [*kinds, batch.type]
                        seen = seen + len(batch.offsets)
                        if batch.type is Type.DATA:
                            path.place(found, 80, batch.payload, batch.offsets // 80)
    except OSError as error:
        return f"it can't send to itself, or not read that: {error}"
    if (sent, seen, set(kinds)) != (6, 6, {Type.DATA, Type.CREDIT}) or (found != source).any():
        return f"it read {seen} of 6 datagrams to itself rightly: the layouts must be others"
    return ""


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Hold a lock that all processes on this machine share, if it can be had in time."""
    with (Path(__file__).parent / "kernels.py").open() as file:
        until_s = time.monotonic() + COMPILE_S
        while time.monotonic() < until_s:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(LOOK_S)
            except OSError:  # a file system without locks: each compiles for itself
                break
        yield
