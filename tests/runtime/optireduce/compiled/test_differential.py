"""Both data paths are fed the same, and every byte, counter and answer of theirs is compared."""

from __future__ import annotations

import contextlib
import random
import signal
import socket
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("numba", reason="the extra fast is not installed")

from latecomer.runtime.optireduce.options import HEADER_BYTES
from latecomer.runtime.optireduce.udp.compiled.placement import COMPILED
from latecomer.runtime.optireduce.udp.compiled.sockets import Scattered, UnwrittenBurst
from latecomer.runtime.optireduce.udp.data_path import NUMPY
from latecomer.runtime.optireduce.udp.datagram import LAST, MAGIC, PACKED, VERSION
from latecomer.runtime.optireduce.udp.events import (
    Burst,
    Control,
    DatagramHeader,
    ExpectedShard,
    Type,
)
from tests.fuzz.datagrams import GENUINE, KEY, OPEN, OPTIONS, Program, attack, changed, forged
from tests.runtime.optireduce import simulation
from tests.runtime.optireduce.compiled.guards import Guards
from tests.runtime.optireduce.simulation import SESSION, options
from tests.runtime.spawning import python

PATHS = (NUMPY, COMPILED)
UDP = (socket.AF_INET, socket.SOCK_DGRAM)
GUARDS = Guards()
SIZE = OPTIONS.datagram_bytes
PAYLOAD = OPTIONS.payload_bytes


def _batches(path, rows, key):
    """What a path makes of rows, as values that can be compared; and what it drops."""
    drops = Counter()
    batches = []
    for batch in path.codec(SESSION, 0, 3, SIZE, key).read(rows, drops):
        comparable = batch._replace(
            offsets=batch.offsets.tolist(),
            lengths=batch.lengths.tolist(),
            flags=batch.flags.tolist(),
            payload=batch.payload.copy().tobytes(),
        )
        batches.append(comparable)
    return batches, +drops


@settings(max_examples=150, deadline=None)
@given(st.binary(min_size=200, max_size=900), st.sampled_from([b"", KEY]), st.integers(0, 9))
def test_batches_and_what_is_refused_are_the_same(data, key, noise):
    """Genuine, changed and invented datagrams; of one length, as numpy's path wants them."""
    program = Program(data)
    rows = []
    while not program.over:
        operation = program.pick(*OPEN)
        genuine = GENUINE[operation, key]
        whole = genuine[program.number() % len(genuine)]
        invented = forged(program, operation)
        rows += [whole, changed(program, whole), invented]
    dice = random.Random(noise)
    rows += [dice.randbytes(SIZE) for _ in range(noise)]

    all_drops = Counter()
    for size in {len(row) for row in rows if row}:
        of_this_size = np.frombuffer(b"".join(row for row in rows if len(row) == size), np.uint8)
        batches, drops = _batches(NUMPY, of_this_size.reshape(-1, size), key)
        assert _batches(COMPILED, of_this_size.reshape(-1, size), key) == (batches, drops)
        all_drops += drops

    # all lengths together
    flat = np.frombuffer(b"".join(rows), np.uint8)
    sizes = np.array([len(row) for row in rows])
    everything = Scattered(flat, np.cumsum(sizes) - sizes, sizes)
    _, drops = _batches(COMPILED, everything[sizes > 0], key)
    assert drops == all_drops


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 2000),
    st.integers(0, 30),
    st.integers(1, 30),
    st.integers(0, 40),
    st.sampled_from([b"", KEY, bytes(range(16))]),
    st.sampled_from([128, 136, 256, 264, 1472]),
    st.booleans(),
)
def test_what_is_written_is_the_same(nbytes, first, count, marks, key, size, passed_differs):
    source = np.random.default_rng(nbytes).integers(0, 256, nbytes, np.uint8)
    payload_bytes = size - HEADER_BYTES
    first = min(first, (nbytes - 1) // payload_bytes)
    count = min(count, -(-nbytes // payload_bytes) - first)
    passed = np.arange(count) + 2**32 - 9 if passed_differs else np.full(count, 77)
    burst = Burst(DatagramHeader(1, 2, 2**64 - 1, 300, 2**33), source, first, marks, passed)
    end = Control(Type.END, stage=1, peer=2, operation=2**64 - 1, passed=5, expected_us=2**33)

    written = []
    for path in PATHS:
        codec = path.codec(SESSION, 1, 3, size, key)
        rows = np.full((count, size), 0xEE, np.uint8)
        codec.write(rows, burst)
        to_send = codec.burst(burst)
        assert len(to_send) == count
        assert b"".join(row.tobytes() for row in to_send) == rows.tobytes()
        written.append((rows.tobytes(), codec.control(end)))
    assert written[0] == written[1]


@pytest.mark.parametrize("offload", [False, True])
@pytest.mark.parametrize("key", [b"", KEY])
def test_what_is_sent_is_the_same(offload, key):
    """In the same order, to a socket that reads one by one; also where the shard ends."""
    source = np.random.default_rng(1).integers(0, 256, 15_930).astype(np.uint8)

    def received(path):
        """What comes of three bursts that are sent by this path."""
        with contextlib.ExitStack() as closing:
            own = path.socket(options(offload=offload), "127.0.0.1", path.reader)
            closing.callback(own.close)
            plain = socket.socket(*UDP)
            closing.callback(plain.close)
            plain.bind(("127.0.0.1", 0))
            plain.settimeout(5.0)
            own.peers = {1: plain.getsockname(), 2: ("127.0.0.1", 9)}
            codec = path.codec(SESSION, 0, 3, SIZE, key)
            header = DatagramHeader(stage=0, receiver=1, operation=5)

            datagrams = []
            for first, count in [(0, 200), (199, 1), (70, 65)]:
                burst = codec.burst(Burst(header, source, first, 150, np.arange(count)))
                assert own.send(1, burst) == count
                datagrams += [plain.recv(4096) for _ in range(count)]
                assert own.send(2, burst) == count  # nobody is there: as good as lost
            return datagrams

    assert received(NUMPY) == received(COMPILED)


def test_what_the_kernel_does_not_take_is_not_sent():
    """A burst beyond the shard, or to a socket that is closed."""
    own = COMPILED.socket(options(), "127.0.0.1", COMPILED.reader)
    own.peers = {1: own.address}
    common = np.zeros(HEADER_BYTES, np.uint8)

    def unwritten(first):
        header = DatagramHeader(stage=0, receiver=1, operation=5)
        burst = Burst(header, np.zeros(9, np.uint8), first, 0, np.zeros(1, np.int64))
        return UnwrittenBurst(burst, common, 80)

    for first in (3, -1, 2**40):
        with pytest.raises(OSError, match="Success"):
            own.send(1, unwritten(first))
    own.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        own.send(1, unwritten(0))


FULL = 3
"""Datagrams of a shard before the last one, which holds a part only."""
REMAINDER = 30
datagram_numbers = st.integers(0, FULL + 1)
offsets_within = st.sampled_from([0, 0, 0, 1])
lengths = st.sampled_from([PAYLOAD, PAYLOAD, REMAINDER])


def _shard_rows(key, operation, datagrams, dice):
    """From rank 1, uint8 [datagrams, bytes]: of each (number, bytes past its offset, length)."""
    rows = []
    for number, bytes_past, length in datagrams:
        offset = number * PAYLOAD + bytes_past
        header = PACKED.pack(
            MAGIC,
            VERSION,
            2 * Type.DATA,
            1,  # sender
            0,  # receiver
            SESSION,
            operation,
            offset,
            length,
            int(dice.choice([0, LAST])),
            3,  # incast
            77,  # expected_us
            offset,  # passed
            0,  # the tag
        )
        payload = dice.integers(0, 256, PAYLOAD, np.uint8).tobytes()
        row = np.frombuffer(header + payload, np.uint8).copy()
        NUMPY.codec(SESSION, 1, 3, SIZE, key)._seal(row[None])
        rows.append(row)
    return np.stack(rows)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(datagram_numbers, offsets_within, lengths), min_size=1, max_size=20),
    st.booleans(),
    st.sampled_from([b"", KEY]),
    st.sampled_from(["before", "after", "closed"]),
)
def test_what_is_placed_and_told_is_the_same(datagrams, in_order, key, opened):
    """Also beyond the shard, twice, at odd offsets, of wrong lengths, too early and too late."""
    if in_order:
        count = min(len(datagrams), FULL + 1)
        datagrams = [(number, 0, PAYLOAD) for number in range(count)]
        if count > FULL:
            datagrams[FULL] = (FULL, 0, REMAINDER)
    operation = 7
    dice = np.random.default_rng(len(datagrams))
    rows = _shard_rows(key, operation, datagrams, dice)

    def outcome(path):
        placer = path.placer(path.codec(SESSION, 0, 3, SIZE, key))
        arrived = np.zeros(FULL + 1, bool)
        into = np.zeros(FULL * PAYLOAD + REMAINDER, np.uint8)
        shard = ExpectedShard(stage=0, sender=1, arrived=arrived, into=into)
        events = []
        if opened == "after":
            events += placer.read(rows[:5])
            assert not events
        events += placer.open(operation, [shard])
        if opened == "closed":
            placer.close(operation, 0)
        for part in (rows[:5], rows[5:], rows[:1]):
            events += placer.read(part)
        assert arrived.sum() == sum(event.fresh for event in events)
        return events, arrived.tolist(), into.tobytes(), +placer.dropped, placer.dropped_from

    assert outcome(NUMPY) == outcome(COMPILED)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]),
    st.integers(1, 90),
    st.integers(2, 5),
    st.integers(0, 2**31),
    st.sampled_from([0.0, 0.4]),
    st.booleans(),
)
def test_every_bit_of_a_mean_is_the_same(dtype, numel, size, seed, share, mean):
    dice = np.random.default_rng(seed)
    per_datagram = 32 // dtype.itemsize
    own = torch.from_numpy(dice.standard_normal(numel)).to(dtype)
    datagrams = -(-numel // per_datagram)
    skipped = int(dice.integers(0, 3))
    shape = (size - 1, (skipped + datagrams) * per_datagram)
    received = torch.from_numpy(dice.standard_normal(shape)).to(dtype)
    received[:, 0] = -0.0
    own[0] = -0.0
    pieces = received.view(torch.uint8).numpy().reshape(size - 1, skipped + datagrams, 32)
    arrived = dice.random((size - 1, datagrams)) >= share

    def bits(path):
        result = own.clone()
        raw = result.view(torch.uint8).numpy()
        path.average(raw, dtype, seed % size, pieces.copy(), skipped, arrived, mean)
        return raw.tolist()

    assert bits(NUMPY) == bits(COMPILED)


def _attacked(path, data, guard=lambda array: array):
    """What an attack leaves behind by this path."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "PATH", path)
        return attack(data, guard)


@settings(max_examples=80, deadline=None)
@given(st.binary(min_size=20, max_size=600), st.booleans())
def test_an_attack_leaves_the_same_behind_and_touches_nothing_beside_the_buffers(data, at_end):
    GUARDS.reset(at_end)
    assert _attacked(NUMPY, data) == _attacked(COMPILED, data, GUARDS)


@pytest.mark.long
@settings(max_examples=8000, deadline=None)
@given(st.binary(min_size=20, max_size=3000))
def test_long_attacks_leave_the_same_behind(data):
    assert _attacked(NUMPY, data) == _attacked(COMPILED, data)


@pytest.mark.long
def test_with_every_index_checked_both_paths_are_the_same(tmp_path):
    """Compiles for some ten seconds; as many programs as hypothesis runs above, and more."""
    for number in range(3):
        file = tmp_path / f"{number}"
        file.write_bytes(random.Random(number).randbytes(100_000))
        completed = python("-m", "tests.fuzz.datagrams", "--compiled", str(file))
        assert completed.returncode == 0, completed.stderr[-2000:]


@pytest.mark.parametrize(("at_end", "first", "killed"), [(1, 1, 1), (0, -1, 1), (1, 0, 0)])
def test_memory_beside_a_guarded_array_kills(at_end, first, killed):
    """It is read from so many bytes after its beginning on, as many as it has."""
    completed = python(
        "-c",
        "import ctypes, numpy as np\n"
        "from tests.runtime.optireduce.compiled.guards import Guards\n"
        f"guards = Guards(rooms=2); guards.reset(at_end={at_end})\n"
        "array = guards(np.ones(100, np.uint8))\n"
        f"ctypes.string_at(array.ctypes.data + {first}, 100)",
    )
    expected = -signal.SIGSEGV if killed else 0
    assert completed.returncode == expected, completed.stderr
