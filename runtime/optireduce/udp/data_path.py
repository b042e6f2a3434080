"""What UBT does to bytes, in one of two ways: by numpy (here), or compiled (``compiled``).

Which one runs is chosen once, at the start; ranks of both kinds work together, since what is on the
wire, what is decided and every bit of a result are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from latecomer.runtime.optireduce.udp.datagram import Codec
from latecomer.runtime.optireduce.udp.events import Bytes
from latecomer.runtime.optireduce.udp.placement import Placer
from latecomer.runtime.optireduce.udp.socket import BatchReader, UdpSocket


class DataPath(NamedTuple):
    """One of the ways; ``how`` says for reports which, and why."""

    how: str
    socket: type[UdpSocket]  # sends, and
    reader: type[BatchReader]  # takes datagrams from a socket
    codec: type[Codec]  # checks and writes them
    placer: type[Placer]  # puts their payloads in place, and makes events of them
    runs: Callable[[np.ndarray, np.ndarray, int, bool], list[tuple[int, int]]]
    average: Callable[[Bytes, torch.dtype, int, Bytes, int, np.ndarray, bool], None]


def runs(
    arrived: np.ndarray, reduced: np.ndarray, least: int, every: bool
) -> list[tuple[int, int]]:
    """Runs of datagrams that may be reduced now: (first, one past the last); are marked as reduced.

    These are ``least`` datagrams at least, of which all has ``arrived``, bool [peers, datagrams],
    or ``every`` one that is not in ``reduced``, bool [datagrams].
    """
    padded = np.zeros(len(reduced) + 2, bool)  # so that every run has two edges
    padded[1:-1] = ~reduced if every else ~reduced & arrived.all(axis=0)
    edges = np.flatnonzero(padded[1:] != padded[:-1]).tolist()
    all_runs = zip(edges[::2], edges[1::2], strict=True)
    long_runs = [(first, stop) for first, stop in all_runs if stop - first >= least]
    for first, stop in long_runs:
        reduced[first:stop] = True
    return long_runs


def average(
    own: Bytes,
    dtype: torch.dtype,
    rank: int,
    pieces: Bytes,
    first: int,
    arrived: np.ndarray,
    mean: bool,
) -> None:
    """The mean of what arrived of a run of datagrams, or (not ``mean``) an estimate of the sum.

    Added in the order of ranks, in at least float32: without loss timing makes no difference.
    ``own`` has the bytes of this ``rank``'s contribution, and gets those of the result; ``pieces``,
    uint8 [peers, datagrams, payload], has what the others sent (what is missing is set to zero),
    the run from datagram ``first`` on; ``arrived`` is bool [peers, datagrams of the run].
    """
    wide = np.float64 if dtype is torch.float64 else np.float32
    received = pieces[:, first : first + arrived.shape[1]]
    ranks = len(pieces) + 1
    complete = bool(arrived.all())
    if not complete:
        received[~arrived] = 0

    total: np.ndarray
    for sender in range(ranks):
        if sender == rank:
            contribution = own
        else:
            row = sender if sender < rank else sender - 1
            contribution = received[row].reshape(-1)[: len(own)]
        if sender == 0:
            total = _numbers(contribution, dtype).astype(wide)
        else:
            total += _numbers(contribution, dtype)

    if not complete:  # an element depends on what came of it alone: not on its neighbours' losses
        divisors = 1 + arrived.sum(axis=0)
        elements = pieces.shape[2] // dtype.itemsize
        if mean:
            total /= np.repeat(divisors, elements)[: len(total)].astype(wide)
        else:
            total *= np.repeat(ranks / divisors, elements)[: len(total)].astype(wide)
    elif mean:
        total /= wide(ranks)
    torch.from_numpy(own).view(dtype).copy_(torch.from_numpy(total))


def _numbers(raw: Bytes, dtype: torch.dtype) -> np.ndarray:
    """The numbers in ``raw``; bfloat16, which numpy has not, as float32."""
    if dtype is torch.bfloat16:
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return raw.view(f"f{dtype.itemsize}")


NUMPY = DataPath(
    how="numpy",
    socket=UdpSocket,
    reader=BatchReader,
    codec=Codec,
    placer=Placer,
    runs=runs,
    average=average,
)
