"""The wire format: what is written is read back; what does not belong is counted and dropped."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from latecomer.runtime.optireduce.options import HEADER_BYTES
from latecomer.runtime.optireduce.udp.datagram import LAST, Codec
from latecomer.runtime.optireduce.udp.events import (
    Burst,
    Control,
    DatagramHeader,
    Type,
    is_before,
    operation_id,
)
from tests.runtime.optireduce.simulation import SESSION

SIZE = 128
PAYLOAD = SIZE - HEADER_BYTES
KEY = b"k" * 16
SENDER = Codec(SESSION, 1, 3, SIZE)
RECEIVER = Codec(SESSION, 0, 3, SIZE)


def _rows(codec, source, operation=5, marks=10**6, passed=0, **announced):
    """The datagrams of a shard that holds ``source``, uint8 [datagrams, bytes]."""
    rows = np.zeros((-(-len(source) // PAYLOAD), SIZE), np.uint8)
    header = DatagramHeader(stage=1, receiver=0, operation=operation, **announced)
    all_passed = np.full(len(rows), passed)
    burst = Burst(header, source, first=0, marks_from=marks, passed=all_passed)
    codec.write(rows, burst)
    return rows


@given(st.binary(min_size=1, max_size=1000), st.integers(0, 2**64 - 1), st.integers(0, 12))
def test_data_comes_back_as_it_was(data, operation, marks):
    source = np.frombuffer(data, np.uint8)
    rows = _rows(
        SENDER, source, operation=operation, marks=marks, passed=9, incast=3, expected_us=77
    )

    (batch,) = RECEIVER.read(rows, Counter())

    assert batch.type == Type.DATA
    assert batch.stage == 1
    assert batch.sender == 1
    assert batch.operation == operation
    assert batch.passed == 9
    assert batch.incast == 3
    assert batch.expected_us == 77
    numbers = range(len(rows))
    payloads = zip(batch.payload.copy(), batch.lengths, strict=True)
    assert b"".join(row[:length].tobytes() for row, length in payloads) == data
    assert list(batch.offsets) == [number * PAYLOAD for number in numbers]
    assert [bool(flag & LAST) for flag in batch.flags] == [number >= marks for number in numbers]


def test_a_control_datagram_comes_back():
    credit = Control(Type.CREDIT, stage=0, peer=0, operation=7, passed=2**40, flags=2, incast=300)
    data = SENDER.control(credit)
    (batch,) = RECEIVER.read(np.frombuffer(data, np.uint8).reshape(1, -1), Counter())
    assert batch.type == Type.CREDIT
    assert int(batch.offsets[0]) == 2**32 - 1
    assert int(batch.flags[0]) == 2
    assert batch.incast == 255


@pytest.mark.parametrize(
    ("codec", "kind"),
    [
        (Codec(SESSION ^ 1, 1, 3, SIZE), "foreign"),
        (Codec(SESSION, 0, 3, SIZE), "misdirected"),  # claims to be the receiver itself
        (Codec(SESSION, 7, 3, SIZE), "misdirected"),  # no such rank
    ],
)
def test_what_is_not_ours_is_counted(codec, kind):
    drops = Counter()
    assert not list(RECEIVER.read(_rows(codec, np.ones(200, np.uint8)), drops))
    assert +drops == {kind: 3}


@given(st.integers(0, SIZE - 1), st.integers(1, 255))
def test_any_changed_byte_is_noticed_where_datagrams_are_authenticated(position, change):
    rows = _rows(Codec(SESSION, 1, 3, SIZE, KEY), np.arange(PAYLOAD, dtype=np.uint8))
    reader = Codec(SESSION, 0, 3, SIZE, KEY)
    assert len(list(reader.read(rows, Counter()))) == 1
    rows[0, position] ^= change
    drops = Counter()
    assert not list(reader.read(rows, drops))
    assert sum(drops.values()) == 1


def test_datagrams_of_several_senders_may_come_in_one_batch():
    another_sender = Codec(SESSION, 2, 3, SIZE)
    source = np.arange(100, dtype=np.uint8)
    rows = np.concatenate(
        [_rows(SENDER, source), _rows(another_sender, source), _rows(SENDER, source)]
    )

    first, second = RECEIVER.read(rows, Counter())

    assert first.sender == 1
    assert len(first.offsets) == 4
    assert second.sender == 2
    assert len(second.offsets) == 2


@given(st.integers(0, 2**64 - 1), st.integers(1, 2**63 - 1))
def test_ids_are_compared_as_serial_numbers(number, ahead):
    later = (number + ahead) % 2**64
    assert is_before(number, later)
    assert not is_before(later, number)
    assert not is_before(number, number)
    assert is_before(operation_id(2**32 - 1, 9), operation_id(2**32, 0))
