"""One rank's watchdog among ranks that a script plays: when it fails, when not, and for whom."""

from __future__ import annotations

import contextlib
import queue
import threading
import time

import msgspec
import pytest

from latecomer.runtime.health.diagnosis import RankStatus, WaitFor
from latecomer.runtime.health.protocol import (
    ASK_AGAIN_S,
    TELLS,
    HealthMessage,
    pack_answer,
    pack_verdict,
)
from latecomer.runtime.health.watchdog import GOODBYE_S, Watchdog
from latecomer.runtime.network.control_loop import ControlLoop
from latecomer.verify.errors import RankFailure

SOON_S = 1.0
LONG_S = 600.0
"""Time-outs: of which a test waits for the end, and does not."""
PATIENCE_S = 60.0  # against hangs, no claim on speed


class Peers:
    """A control channel to ranks that answer as ``statuses`` says; the silent are missing."""

    def __init__(self, size):
        self.rank = 0
        self.size = size
        self.statuses = {rank: RankStatus(1) for rank in range(1, size)}
        self.unreached = []  # ranks of which no datagram has ever come
        self.sent = []  # (to which rank, message), by the watchdog
        self.loop = ControlLoop({})
        self._sent = queue.SimpleQueue()
        threading.Thread(target=self._answer, daemon=True).start()

    def listen(self, channel, handler):
        self.receive = handler

    def never_heard(self):
        return self.unreached

    def send(self, peer, channel, payload):
        self._sent.put((peer, msgspec.msgpack.decode(payload, type=HealthMessage)))

    def _answer(self):
        while True:
            peer, message = self._sent.get()
            self.sent.append((peer, message))
            if message.status is not None and message.status.closed and peer in self.statuses:
                self.receive(peer, msgspec.msgpack.encode(HealthMessage(heard=True)))
            if message.verdict is not None and peer in self.statuses:
                self.receive(peer, msgspec.msgpack.encode(HealthMessage(knows=True)))
            if message.asks and peer in self.statuses:
                self.receive(peer, pack_answer(message.question, self.statuses[peer]))

    def asked(self):
        return [peer for peer, message in self.sent if message.asks]


def _break(*args):
    raise KeyError("injected")


class Source:
    """Waits for a rank in operation 0, or for none."""

    def __init__(self, peer=None):
        self.moved_s = time.monotonic()
        self.wait = None if peer is None else (WaitFor(0, "reduce", 2, peer), self.moved_s)

    def waiting(self):
        return self.wait


@pytest.fixture
def peers():
    scripted = Peers(3)
    yield scripted
    scripted.loop.close()


@pytest.fixture
def watch(peers):
    """Makes a watchdog; what it calls when it fails is in ``ended``, in order."""
    closing = contextlib.ExitStack()

    def make(timeout_s, *sources, silence_s=None, is_gone=None):
        watchdog = Watchdog(peers, timeout_s, silence_s, is_gone)
        closing.callback(watchdog.close)
        watchdog.enter(0)
        for source in sources:
            watchdog.add(source)
        watchdog.ended = []
        watchdog.over = threading.Event()
        watchdog.on_trouble(lambda: watchdog.ended.append(watchdog.failure))
        watchdog.on_failure(watchdog.ended.append)
        watchdog.on_failure(lambda failure: watchdog.over.set())
        return watchdog

    with closing:
        yield make


def _until(condition):
    deadline = time.monotonic() + PATIENCE_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert condition()


def _failure(watchdog):
    """The failure, once all has been called that is to be called then."""
    assert watchdog.over.wait(PATIENCE_S)
    assert watchdog.ended == [None, watchdog.failure]  # stopped first, then told; each once
    return watchdog.failure


def test_a_silent_rank_ends_a_long_wait_and_the_others_are_told(peers, watch):
    del peers.statuses[2]
    failure = _failure(watch(SOON_S, Source(peer=2)))
    assert failure.ranks == (2,)
    assert "rank 0 waits for rank 2 in operation 0, reduce round 2 for more than" in str(failure)
    assert "dead or stopped" in str(failure)

    def is_told():
        verdicts = [message.verdict for _, message in peers.sent if message.verdict]
        return any(verdict.ranks == (2,) for verdict in verdicts)

    _until(is_told)


def test_a_rank_whose_host_says_that_it_has_ended_is_not_waited_for(peers, watch):
    del peers.statuses[2]
    watchdog = watch(LONG_S, silence_s=LONG_S / 2, is_gone=lambda rank: rank == 2)
    watchdog.fail("a connection was closed")
    failure = _failure(watchdog)
    assert failure.ranks == (2,)
    assert "rank 2: dead, the process has ended (a connection was closed)" in str(failure)


def test_a_rank_whose_host_says_nothing_is_waited_for(peers, watch):
    del peers.statuses[2]
    watchdog = watch(LONG_S, silence_s=SOON_S, is_gone=lambda rank: False)
    watchdog.fail("a connection was closed")
    assert "no sign of life for 1 s" in str(_failure(watchdog))


def test_who_waits_learns_that_a_rank_has_ended_before_its_silence_says_so(peers, watch):
    del peers.statuses[2]
    watchdog = watch(LONG_S, Source(peer=1), silence_s=SOON_S, is_gone=lambda rank: rank == 2)
    failure = _failure(watchdog)
    assert failure.ranks == (2,)
    assert "rank 2: dead, the process has ended (rank 0 waits for rank 1" in str(failure)


def test_a_silent_rank_that_was_never_heard_of_may_be_behind_a_firewall(peers, watch):
    del peers.statuses[2]
    peers.unreached = [2]
    failure = _failure(watch(SOON_S, Source(peer=2)))
    assert failure.ranks == (2,)
    assert "UDP from rank(s) 2 has not arrived once: is a firewall between?" in str(failure)


def test_a_wait_for_a_rank_that_goes_on_is_granted_time_again_and_again(peers, watch):
    watchdog = watch(SOON_S, Source(peer=1))
    _until(lambda: peers.asked().count(1) >= 3)
    assert watchdog.failure is None
    peers.statuses[1] = RankStatus(1, idle_s=SOON_S)
    assert _failure(watchdog).ranks == (1,)


def test_where_silence_has_a_limit_a_silent_rank_is_named_long_before_the_time_out(peers, watch):
    del peers.statuses[2]
    failure = _failure(watch(LONG_S, Source(peer=1), silence_s=0.2))
    assert failure.ranks == (2,)
    assert "no sign of life for 0.2 s" in str(failure)


def test_a_rank_that_answers_may_be_late_however_short_silence_may_be(peers, watch):
    watchdog = watch(LONG_S, Source(peer=1), silence_s=0.05)
    _until(lambda: peers.asked().count(1) >= 5)
    assert watchdog.failure is None


def test_silence_is_no_trouble_once_the_wait_has_ended(peers, watch):
    peers.statuses.clear()
    source = Source(peer=1)
    watchdog = watch(LONG_S, source, silence_s=1.0)
    _until(lambda: peers.asked().count(1) >= 1)
    source.wait = None
    time.sleep(1.5)  # until the question is over
    assert watchdog.failure is None


def test_who_aborts_names_itself_and_waits_for_nobody(peers, watch):
    peers.statuses.clear()
    watchdog = watch(LONG_S, Source(peer=2))
    watchdog.abort("the loss is nan")
    failure = _failure(watchdog)
    assert failure.ranks == (0,)
    assert str(failure) == "rank 0: has aborted, the loss is nan"

    def named():
        return {peer: message.verdict.ranks for peer, message in peers.sent if message.verdict}

    _until(lambda: named() == {1: (0,), 2: (0,)})


def test_without_a_wait_nobody_is_asked(peers, watch):
    del peers.statuses[1]
    watchdog = watch(0.1, Source())
    assert watchdog.find_silent("noticed").ranks == (1,)
    assert watchdog.entered == 1
    _, first_message = peers.sent[0]
    assert first_message.asks
    assert first_message.question == 0  # the first question of all is that of find_silent


def test_an_error_of_this_rank_or_a_difference_is_its_failure(peers, watch):
    watchdog = watch(LONG_S)
    watchdog.broke(ValueError("x"))
    assert _failure(watchdog).ranks == (0,)
    assert "broke, ValueError('x')" in str(watchdog.failure)

    watchdog = watch(LONG_S)
    watchdog.differs(2, "a sum of 9", "noticed")
    assert _failure(watchdog).ranks == (0, 2)
    assert "rank 0 has a sum of 9" in str(watchdog.failure)


def test_another_s_alarm_or_verdict_is_followed(peers, watch):
    watchdog = watch(LONG_S)
    del peers.statuses[2]
    peers.statuses[1] = RankStatus(1, broken="x")
    peers.receive(1, msgspec.msgpack.encode(HealthMessage(asks=True, alarm=True)))
    peers.receive(1, pack_verdict(RankFailure([2], "rank 1 has noticed")))
    assert _failure(watchdog).ranks == (2,)
    assert watchdog.fail("too late", RankFailure([1], "another")) is None
    assert watchdog.failure.ranks == (2,)


@pytest.mark.parametrize(
    ("breaks", "ranks", "message"),
    [("a check", (), "rank 0 broke its watchdog, KeyError"), ("a source", (0,), "injected")],
)
def test_a_watchdog_that_breaks_ends_the_wait(watch, breaks, ranks, message):
    source = Source()
    if breaks == "a source":
        source.waiting = _break
    watchdog = watch(LONG_S, source)
    if breaks == "a check":
        watchdog.suspect(_break, "")
    failure = _failure(watchdog)
    assert failure.ranks == ranks
    assert message in str(failure)


def test_a_protocol_beside_it_that_is_always_busy_does_not_hold_up_the_verdict(peers, watch):
    timeout_s = 4.0
    began_s = time.monotonic()
    busy = peers.loop.timer(lambda: time.sleep(0.005), lambda error: None)
    busy.set(0.0)
    del peers.statuses[2]

    failure = _failure(watch(timeout_s, Source(peer=2)))

    assert failure.ranks == (2,)
    assert time.monotonic() - began_s < 3 * timeout_s  # on a busy machine, too


def test_what_a_failure_calls_does_not_hold_up_the_control_loop(peers, watch):
    watchdog = watch(LONG_S)
    may_end = threading.Event()
    watchdog.on_trouble(lambda: may_end.wait(PATIENCE_S))
    returned = threading.Event()

    def give_up():
        timer.set(None)
        watchdog.fail("noticed")
        returned.set()

    timer = peers.loop.timer(give_up, lambda error: None)
    timer.set(0.0)

    assert returned.wait(PATIENCE_S)
    assert watchdog.failure is None
    may_end.set()
    _failure(watchdog)


def test_a_verdict_reached_on_the_control_loop_counts_the_answers_that_it_reads(watch, peers):
    del peers.statuses[2]
    watchdog = watch(SOON_S)
    timer = peers.loop.timer(lambda: watchdog.broke(ValueError("x")), lambda error: None)
    timer.set(0.0)

    assert _failure(watchdog).ranks == (2,)  # rank 1 was heard, or it would be named, too


def test_a_stop_that_fails_does_not_keep_the_next_from_being_called(watch, caplog):
    watchdog = watch(LONG_S)
    went_on = threading.Event()
    watchdog.on_failure(_break)
    watchdog.on_failure(lambda failure: went_on.set())
    watchdog.fail("noticed", RankFailure([1], "known"))
    assert went_on.wait(PATIENCE_S)
    assert "injected" in caplog.text

    calls = []
    watchdog.close()
    watchdog.on_failure(calls.append)  # whoever comes after the failure is told at once
    watchdog.on_trouble(lambda: calls.append("trouble"))
    assert calls == [watchdog.failure, "trouble"]


def test_a_rank_that_has_closed_is_not_named_beside_a_silent_one(peers, watch):
    del peers.statuses[2]
    watchdog = watch(SOON_S, Source(2))
    del peers.statuses[1]
    peers.receive(1, pack_answer(0, RankStatus(1, closed=True)))
    failure = _failure(watchdog)
    assert failure.ranks == (2,)
    assert "rank 1 has closed after 1 operation(s)" in str(failure)


def test_closing_tells_all_who_stay_and_waits_for_none_that_is_dead(peers, watch):
    del peers.statuses[2]
    watchdog = watch(LONG_S)
    watchdog.close()
    goodbyes = [peer for peer, message in peers.sent if message.status and message.status.closed]
    assert goodbyes.count(1) == 1
    assert goodbyes.count(2) > 1  # again and again, since it may have been lost on the way


def test_closing_after_a_failure_tells_who_lives_once_and_waits_for_none_that_is_dead(peers, watch):
    assert (TELLS - 1) * ASK_AGAIN_S < GOODBYE_S  # closing has the time for all
    del peers.statuses[2]
    watchdog = watch(SOON_S, Source(peer=2))
    assert _failure(watchdog).ranks == (2,)
    watchdog.close()
    told = [peer for peer, message in peers.sent if message.verdict is not None]
    assert told.count(1) == 1
    assert 1 < told.count(2) <= TELLS


def test_closing_is_no_failure(peers, watch):
    watchdog = watch(LONG_S)
    watchdog.close()
    watchdog.fail("too late")
    peers.receive(1, pack_verdict(RankFailure([2], "noticed")))
    assert watchdog.find_silent("too late") is None
    assert watchdog.failure is None
    assert watchdog.ended == []
