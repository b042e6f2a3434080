"""What comes for an operation before this rank has entered it is kept, within limits."""

from __future__ import annotations

import numpy as np

from latecomer.runtime.optireduce.udp import placement
from latecomer.runtime.optireduce.udp.datagram import Batch
from latecomer.runtime.optireduce.udp.events import Type
from latecomer.runtime.optireduce.udp.placement import EarlyBuffer

WRAP = 2**64


def _early(sender, operation, rows=1, fill=0):
    zeros = np.zeros(rows, np.int64)
    return Batch(
        type=Type.DATA,
        stage=0,
        sender=sender,
        operation=operation,
        offsets=zeros,
        lengths=zeros,
        flags=zeros,
        payload=np.full((rows, 64), fill, np.uint8),
        incast=1,
        expected_us=0,
        passed=0,
    )


def test_batches_are_copied_and_come_back_in_order_once_across_the_wrap():
    early = EarlyBuffer()
    batch = _early(1, WRAP - 1, fill=3)
    assert early.keep(batch)
    batch.payload[:] = 9  # the receive buffer is used again
    assert early.keep(_early(2, WRAP - 1, fill=4))
    assert early.keep(_early(1, 1))

    first, second = early.take(WRAP - 1)
    assert (first.sender, int(first.payload[0, 0])) == (1, 3)
    assert (second.sender, int(second.payload[0, 0])) == (2, 4)

    assert early.keep(_early(1, WRAP - 1))
    assert early.take(0) == []
    assert early.take(WRAP - 1) == []  # it is older, and forgotten
    assert len(early.take(1)) == 1


def test_a_sender_fills_its_own_room_only_and_gets_it_back():
    early = EarlyBuffer()
    rows = placement.EARLY_BYTES // (64 + 48)  # of payload and header
    assert early.keep(_early(1, 7, rows))
    assert not early.keep(_early(1, 7))
    assert early.keep(_early(2, 7))
    early.take(8)
    assert early.keep(_early(1, 9, rows))


def test_operations_are_limited():
    early = EarlyBuffer()
    most = placement.EARLY_OPERATIONS
    assert all(early.keep(_early(1, number)) for number in range(most))
    assert not early.keep(_early(1, most))
    assert early.keep(_early(1, 0))
