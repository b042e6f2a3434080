"""What comes before its operation is entered: kept in order, within limits, and then forgotten."""

from __future__ import annotations

import numpy as np

from runtime.optireduce.udp.datagram import Batch, Type
from runtime.optireduce.udp.early import MOST_BYTES, MOST_OPERATIONS, EarlyBuffer
from tests.runtime.optireduce.simulation import Host, content, options, simulate

WRAP = 2**64


def _batch(sender, operation, rows=1, fill=0):
    payload = np.full((rows, 64), fill, np.uint8)
    each = np.zeros(rows, np.int64)
    return Batch(Type.DATA, 0, sender, operation, each, each, each, payload, 1, 0, 0)


def test_batches_are_copied_and_come_back_in_order_once():
    early, batch = EarlyBuffer(), _batch(1, 7, fill=3)
    assert early.keep(batch)
    batch.payload[:] = 9  # the receive buffer is used again
    assert early.keep(_batch(2, 7, fill=4))
    assert [(b.sender, int(b.payload[0, 0])) for b in early.take(7)] == [(1, 3), (2, 4)]
    assert early.take(7) == []


def test_older_operations_are_forgotten_newer_ones_stay_across_the_wrap():
    early = EarlyBuffer()
    for operation in (WRAP - 1, 0, 1):
        assert early.keep(_batch(1, operation))
    assert len(early.take(0)) == 1
    assert early.take(WRAP - 1) == []
    assert len(early.take(1)) == 1


def test_a_sender_fills_its_own_room_only_and_gets_it_back():
    early, rows = EarlyBuffer(), MOST_BYTES // (64 + 48)
    assert early.keep(_batch(1, 7, rows))
    assert not early.keep(_batch(1, 7))
    assert early.keep(_batch(2, 7))
    early.take(8)
    assert early.keep(_batch(1, 9, rows))


def test_operations_are_limited():
    early = EarlyBuffer()
    assert all(early.keep(_batch(1, number)) for number in range(MOST_OPERATIONS))
    assert not early.keep(_batch(1, MOST_OPERATIONS))
    assert early.keep(_batch(1, 0))


def test_the_rank_that_comes_last_finds_the_first_grant_there():
    """Two ranks, 0.1 s one way: rank 1 enters at 1 s and has rank 0's shard at once."""
    hosts = {rank: Host(rank, 2, options(absence_s=5.0, bound_s=5.0)) for rank in (0, 1)}
    simulate(
        hosts, [(0.0, 0, 0, 1, [500, 500]), (1.0, 1, 0, 1, [500, 500])], delay=lambda dice: 0.1
    )
    assert hosts[1].ends[1, 0] == 1.0
    assert (hosts[1].exchanges[1].scratch[0].reshape(-1)[:500] == content(0, 1, 500)).all()
