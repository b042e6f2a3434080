"""A receive stage, explored exhaustively for small cases; and what comes before it is there."""

from __future__ import annotations

import copy
from collections import Counter

import numpy as np

from runtime.optireduce.udp import reassembly
from runtime.optireduce.udp.datagram import LAST, Batch, Type
from runtime.optireduce.udp.reassembly import EarlyBuffer, End, StageReceiver

PAYLOAD = 8
SIZES = {1: 12, 2: 8}  # two datagrams (8 and 4 bytes) from rank 1, one from rank 2
ABSENCE_S = 2.0
ALLOWED_S = 4.0
GRACE_S = 1.0
GENUINE = [(1, 0, 8, 0), (1, 8, 4, LAST), (2, 0, 8, LAST)]
WRONG = [(1, 8, 8, 0), (1, 16, 8, 0), (1, 3, 8, 0), (2, 8, 0, 0), (3, 0, 8, 0)]
ACTS = [*GENUINE, *WRONG, "tick", "busy", "sent 1", "sent 2"]
WRAP = 2**64


def _batch(sender, offsets, lengths, flags, operation=0, payload=None):
    each = [np.array(values) for values in (offsets, lengths, flags)]
    return Batch(Type.DATA, 0, sender, operation, *each, payload, 1, 0, 0)


def _early(sender, operation, rows=1, fill=0):
    payload = np.full((rows, 64), fill, np.uint8)
    return _batch(sender, [0] * rows, [0] * rows, [0] * rows, operation, payload)


def _into(counter):
    return lambda kind, count: counter.update({kind: count})


def _explore(stage, now, depth, placed, seen):
    """Every sequence of ``depth`` events: arrivals (right, wrong, repeated), ticks, ends."""
    marked = tuple(s.marked for s in stage.senders.values())
    state = (depth, now, stage.end, stage.quiet_s, tuple(stage.absent), stage.hard_s, marked)
    if (*state, tuple(placed)) in seen:
        return
    seen.add((*state, tuple(placed)))
    assert stage.hard_s <= ABSENCE_S + ALLOWED_S
    assert stage.lost == len(GENUINE) - len(placed)
    if now > ABSENCE_S + ALLOWED_S:
        assert stage.end is not None
    if depth == 0:
        return
    for act in ACTS:
        after = copy.deepcopy(stage)
        then = now
        fresh = list(placed)
        if act in ("tick", "busy"):
            then += 1.0
            end = after.handle_timer(then, GRACE_S, socket_empty=act == "tick")
            if end is End.EARLY:
                assert all(s.marked or s.complete for s in after.senders.values())
            if end is End.COMPLETE and stage.end is None:
                assert len(placed) == len(GENUINE)
            if stage.end is not None:
                assert end is stage.end
        elif isinstance(act, str):
            after.all_sent(int(act[-1]), now)
        else:
            sender, *fields = act
            refused = Counter()
            batch = _batch(sender, *([field] for field in fields))
            _, _, count = after.take(batch, now, _into(refused))
            place = act in GENUINE and act not in placed and stage.end is None
            assert (count, refused.total()) == (int(place), int(not place))
            fresh += [act] * place
        _explore(after, then, depth - 1, sorted(fresh), seen)


def test_every_history_ends_in_time_and_places_each_datagram_once():
    seen = set()
    stage = StageReceiver(SIZES, PAYLOAD, 0.0, ABSENCE_S, ALLOWED_S)
    _explore(stage, 0.0, 9, [], seen)
    assert len(seen) > 2000
    assert {state[2] for state in seen} == {None, *End}


def test_a_batch_is_split_into_new_repeated_and_wrong():
    stage = StageReceiver({1: 80}, PAYLOAD, 0.0, 0.0, 1.0)
    drops = Counter()
    batch = _batch(1, [16, 0, 16, 5, 72, 80], [8] * 6, [0] * 6)
    rows, numbers, count = stage.take(batch, 0.1, _into(drops))
    assert (list(numbers), list(rows), count) == ([2, 0, 9], [0, 1, 4], 3)
    assert drops == {"duplicate": 1, "out of range": 2}


def test_what_comes_after_the_marks_does_not_make_t_c_longer():
    """Marks at 1 s, the missing datagram at 3 s."""
    stage = StageReceiver({1: 3 * PAYLOAD}, PAYLOAD, 0.0, 0.0, 10.0)
    for now_s, number, flags in [(0.5, 0, 0), (1.0, 2, LAST), (3.0, 1, 0)]:
        stage.take(_batch(1, [number * PAYLOAD], [PAYLOAD], [flags]), now_s, _into(Counter()))
        end = stage.handle_timer(now_s, 5.0, socket_empty=True)
    assert (end, stage.elapsed_s, stage.reached_s) == (End.COMPLETE, 1.0, 3.0)


def test_batches_are_copied_and_come_back_in_order_once_across_the_wrap():
    early = EarlyBuffer()
    batch = _early(1, WRAP - 1, fill=3)
    assert early.keep(batch)
    batch.payload[:] = 9  # the receive buffer is used again
    assert early.keep(_early(2, WRAP - 1, fill=4))
    assert early.keep(_early(1, 1))
    assert [(b.sender, int(b.payload[0, 0])) for b in early.take(WRAP - 1)] == [(1, 3), (2, 4)]
    assert early.keep(_early(1, WRAP - 1))
    assert early.take(0) == []
    assert early.take(WRAP - 1) == []  # it is older, and forgotten
    assert len(early.take(1)) == 1


def test_a_sender_fills_its_own_room_only_and_gets_it_back():
    early = EarlyBuffer()
    rows = reassembly.EARLY_BYTES // (64 + 48)
    assert early.keep(_early(1, 7, rows))
    assert not early.keep(_early(1, 7))
    assert early.keep(_early(2, 7))
    early.take(8)
    assert early.keep(_early(1, 9, rows))


def test_operations_are_limited():
    early = EarlyBuffer()
    most = reassembly.EARLY_OPERATIONS
    assert all(early.keep(_early(1, number)) for number in range(most))
    assert not early.keep(_early(1, most))
    assert early.keep(_early(1, 0))
