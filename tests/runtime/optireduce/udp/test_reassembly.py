"""A receive stage and what places its data, explored exhaustively for small cases."""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np

from latecomer.runtime.optireduce.udp.datagram import LAST, Batch
from latecomer.runtime.optireduce.udp.events import ExpectedShard, Type
from latecomer.runtime.optireduce.udp.placement import Placer
from latecomer.runtime.optireduce.udp.reassembly import End, StageReceiver

PAYLOAD = 8
OPERATION = 0
SIZES = {1: 12, 2: 8}  # two datagrams (8 and 4 bytes) from rank 1, one from rank 2
ABSENCE_S = 2.0
ALLOWED_S = 4.0
GRACE_S = 1.0
GENUINE = [(1, 0, 8, 0), (1, 8, 4, LAST), (2, 0, 8, LAST)]  # sender, offset, length, flags
WRONG = [(1, 8, 8, 0), (1, 16, 8, 0), (1, 3, 8, 0), (2, 8, 0, 0), (3, 0, 8, 0)]
ACTS = [*GENUINE, *WRONG, "tick", "busy", "sent 1", "sent 2"]


def _batch(sender, offsets, lengths, flags):
    return Batch(
        type=Type.DATA,
        stage=0,
        sender=sender,
        operation=OPERATION,
        offsets=np.array(offsets),
        lengths=np.array(lengths),
        flags=np.array(flags),
        payload=np.zeros((len(offsets), PAYLOAD), np.uint8),
        incast=1,
        expected_us=0,
        passed=0,
    )


class Receiver:
    """A stage, and a placer that puts the data of it in place."""

    def __init__(self, sizes, bound_s, absence_s=0.0):
        counts = {sender: -(-nbytes // PAYLOAD) for sender, nbytes in sizes.items()}
        self.stage = StageReceiver(counts, now_s=0.0, absence_s=absence_s, bound_s=bound_s)
        self.into = {sender: np.zeros(nbytes, np.uint8) for sender, nbytes in sizes.items()}
        codec = SimpleNamespace(payload_bytes=PAYLOAD, read=lambda batches, drops: batches)
        self.placer = Placer(codec)
        shards = []
        for sender, into in self.into.items():
            arrived = np.zeros(counts[sender], bool)
            shards.append(ExpectedShard(stage=0, sender=sender, arrived=arrived, into=into))
        self.placer.open(OPERATION, shards)

    def receive(self, batch, now_s):
        """How many were new."""
        (event,) = self.placer.read([batch])
        if event.peer in self.stage.senders:
            self.stage.placed(event.peer, event.fresh, marked=event.marked, now_s=now_s)
        return event.fresh

    def handle_timer(self, now_s, grace_s, socket_empty=True):
        if end := self.stage.handle_timer(now_s, grace_s, socket_empty):
            self.placer.close(OPERATION, 0)
        return end


class State(NamedTuple):
    """What decides what may happen yet: a state that was explored is not explored again."""

    depth: int
    now_s: float
    end: End | None
    quiet_s: float | None
    absent: tuple
    hard_s: float
    marked: tuple
    placed: tuple

    @classmethod
    def of(cls, stage, now_s, depth, placed):
        return cls(
            depth,
            now_s,
            stage.end,
            stage.quiet_s,
            absent=tuple(stage.absent),
            hard_s=stage.hard_s,
            marked=tuple(progress.marked for progress in stage.senders.values()),
            placed=tuple(placed),
        )


def _explore(receiver, now_s, depth, placed, explored):
    """Every sequence of ``depth`` events: arrivals (right, wrong, repeated), ticks, ends."""
    stage = receiver.stage
    state = State.of(stage, now_s, depth, placed)
    if state in explored:
        return
    explored.add(state)
    assert stage.hard_s <= ABSENCE_S + ALLOWED_S
    assert stage.lost == len(GENUINE) - len(placed)
    if now_s > ABSENCE_S + ALLOWED_S:
        assert stage.end is not None
    if depth == 0:
        return

    for act in ACTS:
        after = copy.deepcopy(receiver)
        now_after_s = now_s
        placed_after = placed
        if act in ("tick", "busy"):
            now_after_s += 1.0
            _tick(stage, after, now_after_s, socket_empty=act == "tick", placed=placed)
        elif isinstance(act, str):
            after.stage.all_sent(int(act[-1]), now_s)
        elif _arrive(stage, after, now_s, act, placed):
            placed_after = [*placed, act]
        _explore(after, now_after_s, depth - 1, sorted(placed_after), explored)


def _arrive(before, after, now_s, datagram, placed):
    """A datagram comes; whether it was placed: only if it is genuine, and in time, and once."""
    sender, offset, length, flags = datagram
    dropped_before = after.placer.dropped.total()
    fresh = after.receive(_batch(sender, [offset], [length], [flags]), now_s)
    is_right = datagram in GENUINE and datagram not in placed and before.end is None
    assert fresh == int(is_right)
    assert after.placer.dropped.total() - dropped_before == int(not is_right)
    return is_right


def _tick(before, after, now, socket_empty, placed):
    """The clock moves on: a stage ends only where it may, and stays ended."""
    end = after.handle_timer(now, GRACE_S, socket_empty=socket_empty)
    if end is End.EARLY:
        for sender in after.stage.senders.values():
            assert sender.marked or sender.complete
    if end is End.COMPLETE and before.end is None:
        assert len(placed) == len(GENUINE)
    if before.end is not None:
        assert end is before.end


def test_every_history_ends_in_time_and_places_each_datagram_once():
    explored = set()
    receiver = Receiver(SIZES, bound_s=ALLOWED_S, absence_s=ABSENCE_S)

    _explore(receiver, 0.0, 9, [], explored)

    assert len(explored) > 2000
    assert {state.end for state in explored} == {None, *End}


def test_a_batch_is_split_into_new_repeated_and_wrong():
    receiver = Receiver({1: 80}, bound_s=1.0)
    batch = _batch(1, [16, 0, 16, 5, 72, 80], [8] * 6, [0] * 6)
    batch.payload[:] = np.arange(1, 7)[:, None]

    fresh = receiver.receive(batch, 0.1)

    assert fresh == 3
    assert receiver.into[1][::PAYLOAD].tolist() == [2, 0, 1, 0, 0, 0, 0, 0, 0, 5]
    assert receiver.placer.dropped == {"duplicate": 1, "out of range": 2}
    assert receiver.placer.dropped_from == {(1, "duplicate"): 1, (1, "out of range"): 2}


def test_what_comes_after_the_marks_does_not_make_t_c_longer():
    """Marks at 1 s, the missing datagram at 3 s."""
    receiver = Receiver({1: 3 * PAYLOAD}, bound_s=10.0)
    for now_s, number, flags in [(0.5, 0, 0), (1.0, 2, LAST), (3.0, 1, 0)]:
        receiver.receive(_batch(1, [number * PAYLOAD], [PAYLOAD], [flags]), now_s)
        end = receiver.handle_timer(now_s, 5.0)
    assert end == End.COMPLETE
    assert receiver.stage.elapsed_s == 1.0
    assert receiver.stage.reached_s == 3.0
