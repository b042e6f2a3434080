"""Who is blamed, given what the ranks said; and the board that carries what they say."""

from __future__ import annotations

import math
import socket
import threading
import time
from datetime import timedelta

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._C._distributed_c10d import TCPStore

from runtime.health import messages
from runtime.health.diagnosis import RankStatus, WaitFor, diagnose, patience_s
from runtime.health.messages import Message
from runtime.health.old_protocol import HealthProtocol
from runtime.network.control_channel import HEADER, MAX_PAYLOAD, ControlChannel
from verify.errors import RankFailure


def _waits(peer, operation=3):
    return WaitFor(operation, "completion", 1, peer)


def test_the_silent_are_blamed_first():
    said = {0: RankStatus(4, _waits(2)), 3: RankStatus(1)}
    failure = diagnose(4, said, 0, "noticed", 2.0)
    assert failure.ranks == (1, 2)
    assert "dead or stopped" in str(failure)
    assert "rank 3 has entered 1 operation(s)" in str(failure)


def test_then_whoever_has_not_entered():
    said = {0: RankStatus(4, _waits(2)), 1: RankStatus(4, _waits(2)), 2: RankStatus(3)}
    failure = diagnose(3, said, 0, "noticed", 2.0)
    assert failure.ranks == (2,)
    assert "has not entered operation 3" in str(failure)


def test_but_not_whoever_is_behind_others_and_not_needed_yet():
    said = {
        0: RankStatus(9, _waits(2)),
        1: RankStatus(5),  # slower than rank 0, but in operation 3
        2: RankStatus(3),
        3: RankStatus(4, _waits(0, operation=3)),
    }
    assert diagnose(4, said, 0, "noticed", 2.0).ranks == (2,)
    assert diagnose(4, said, 3, "noticed", 2.0).ranks == (2,)


def test_whoever_broke_is_blamed_before_the_late():
    said = {0: RankStatus(4, _waits(2)), 1: RankStatus(4, broken="OSError('x')"), 2: RankStatus(3)}
    failure = diagnose(3, said, 0, "noticed", 2.0)
    assert failure.ranks == (1,)
    assert "OSError('x')" in str(failure)


def test_ranks_that_differ_are_both_named_with_what_they_have():
    said = {
        0: RankStatus(4, _waits(2)),
        1: RankStatus(4, differs_from=3, doing="a sum of 3 x float32"),
        2: RankStatus(4, broken="OSError('x')"),
        3: RankStatus(4, _waits(1)),
    }
    failure = diagnose(4, said, 0, "noticed", 2.0)
    assert failure.ranks == (1, 3)
    assert "rank 1 has a sum of 3 x float32" in str(failure)


def test_then_the_end_of_the_chain_of_waits():
    said = {0: RankStatus(4, _waits(1)), 1: RankStatus(4, _waits(2)), 2: RankStatus(4)}
    assert diagnose(3, said, 0, "noticed", 2.0).ranks == (2,)


def test_or_its_cycle():
    said = {0: RankStatus(4, _waits(1)), 1: RankStatus(4, _waits(2)), 2: RankStatus(4, _waits(1))}
    failure = diagnose(3, said, 0, "noticed", 2.0)
    assert failure.ranks == (1, 2)
    assert "wait for each other" in str(failure)


def test_nobody_is_blamed_without_evidence():
    said = {0: RankStatus(4), 1: RankStatus(4)}
    assert diagnose(2, said, 0, "noticed", 2.0).ranks == ()


def test_a_wait_goes_on_while_the_end_of_its_chain_is_in_the_operation_and_moves():
    chain = {0: RankStatus(4, _waits(1), idle_s=9), 1: RankStatus(4, _waits(2), idle_s=9)}
    assert patience_s({**chain, 2: RankStatus(4, idle_s=2)}, 0, 5) == 3
    assert patience_s({**chain, 2: RankStatus(4, idle_s=6)}, 0, 5) < 0
    assert patience_s({**chain, 2: RankStatus(3, idle_s=0)}, 0, 5) == 0  # it has not entered
    assert patience_s({**chain, 2: RankStatus(4, _waits(0), idle_s=6)}, 0, 5) < 0  # a cycle
    assert patience_s({**chain, 2: RankStatus(4, _waits(0), idle_s=1)}, 0, 5) == 4  # of what was
    assert patience_s({**chain, 0: RankStatus(4)}, 0, 5) == 5  # no longer waits


@given(
    st.integers(2, 6).flatmap(
        lambda size: st.tuples(
            st.just(size),
            st.dictionaries(
                st.integers(0, size - 1),
                st.tuples(st.integers(1, 3), st.none() | st.integers(0, size - 1)),
            ),
        )
    )
)
def test_blame_always_ends_and_names_ranks_of_the_group(case):
    size, said = case
    positions = {
        rank: RankStatus(entered, None if peer is None else _waits(peer))
        for rank, (entered, peer) in {0: (1, None), **said}.items()
    }
    failure = diagnose(size, positions, 0, "noticed", 1.0)
    assert set(failure.ranks) <= set(range(size))
    missing = set(range(size)) - set(positions)
    assert set(failure.ranks) == missing or not missing


@pytest.fixture
def boards():
    """Two boards of one group in this process, and the alarms that rang."""
    store = TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=10))
    rang: list[tuple[int, str]] = []
    made: dict[int, HealthProtocol] = {}

    def make(rank):
        made[rank] = HealthProtocol(
            ControlChannel(store.clone(), rank, 2, start_timeout_s=10),
            position=lambda: RankStatus(rank + 1),
            alarmed=lambda told: rang.append((rank, told)),
        )

    threads = [threading.Thread(target=make, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=20)
    yield made, rang
    for board in made.values():
        board.datagrams.close()


def _eventually(condition):
    deadline = time.monotonic() + 10
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return condition()


def test_a_survey_is_no_alarm(boards):
    made, rang = boards
    positions = made[0].survey(5.0)
    assert {rank: position.entered for rank, position in positions.items()} == {0: 1, 1: 2}
    assert made[1].survey(5.0).keys() == {0, 1}
    assert not rang


def test_answers_to_another_question_do_not_count(boards):
    made, _ = boards
    old = messages.pack(messages.answer(77, RankStatus(9)))
    for _ in range(3):
        made[1].datagrams.send(0, "board", old)
    made[1].datagrams.close()
    assert made[0].survey(0.5).keys() == {0}


def test_both_ends_reach_the_same_verdict(boards):
    made, rang = boards
    first = made[0].diagnose("noticed by 0", 5.0)
    second = made[1].diagnose("noticed by 1", 5.0)
    assert first.ranks == second.ranks == (0,)  # it has entered one operation less
    assert "noticed by 0" in str(second)
    assert _eventually(lambda: [rank for rank, _ in rang] == [1])


def test_strangers_and_rubbish_are_ignored(boards):
    made, rang = boards
    address, token = made[1].datagrams._peers[1], made[1].datagrams.token
    alarm = messages.pack(Message(alarm=True))
    verdict = messages.pack(messages.verdict(RankFailure([0], "x" * 100, ["y" * 100])))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        foreign = [
            b"",
            b"\xff" * 500,
            b"[" * 50_000,
            HEADER.pack(b"x" * 16, 0, 5) + b"board" + alarm,  # another token
            HEADER.pack(token, 7, 5) + b"board" + alarm,  # no such rank
            HEADER.pack(token, 0, 5) + b"other" + alarm,  # nobody listens
            HEADER.pack(token, 0, 50) + b"board",  # cut off
            HEADER.pack(token, 0, 5) + b"board[",
            HEADER.pack(token, 0, 5) + b"board" + msgspec.msgpack.encode({"alarm": 3}),
            HEADER.pack(token, 0, 5) + b"board" + verdict[:-1],  # cut off
            HEADER.pack(token, 0, 5) + b"board" + messages.pack(Message(failed=b"\x04")),
            HEADER.pack(token, 0, 5) + b"board" + messages.pack(Message(failed=b"\xff" * 60_000)),
            HEADER.pack(token, 0, 5) + b"board" + b"\x91" * 60_000,
            *(
                HEADER.pack(token, 0, 5) + b"board" + messages.pack(messages.answer(0, position))
                for position in (
                    RankStatus(1, _waits(2)),
                    RankStatus(1, _waits(-1)),
                    RankStatus(1, differs_from=2),
                    RankStatus(1, idle_s=math.nan),
                )
            ),
        ]
        for data in foreign:
            stranger.sendto(data, address)
    assert _eventually(lambda: made[1].datagrams.dropped == len(foreign))
    assert not rang
    assert made[0].diagnose("noticed", 5.0).ranks == (0,)  # the listener still answers
    assert _eventually(lambda: len(rang) == 1)


def test_a_closed_board_counts_as_silent(boards):
    made, _ = boards
    made[1].datagrams.close()
    failure = made[0].diagnose("noticed", 0.5)
    assert failure.ranks == (1,)
    assert "no sign of life for 0.5 s" in str(failure)


LARGEST = 2**16
"""Ranks: a datagram's header has two bytes for its sender."""
ANYTHING = st.text(st.characters(), max_size=50)


@st.composite
def _failures(draw):
    """Verdicts of every size; text and evidence of every kind."""
    size = draw(st.sampled_from([1, 2, 9, 500, LARGEST]))
    ranks = range(draw(st.integers(0, size - 1)), size, draw(st.integers(1, 9)))
    text = draw(ANYTHING).replace("\n", " ") * draw(st.sampled_from([1, 3000]))
    lines = draw(st.lists(ANYTHING, max_size=3)) * draw(st.sampled_from([1, 20, 900]))
    return size, RankFailure(ranks, text, [line * draw(st.sampled_from([1, 40])) for line in lines])


def _encodable(text):
    return text.encode("utf-8", "backslashreplace").decode()


@settings(deadline=None)  # verdicts on 65,536 ranks, on a busy machine
@given(_failures())
def test_a_verdict_of_any_size_is_one_datagram_and_names_all_ranks(case):
    size, told = case
    packed = messages.pack(messages.verdict(told))
    assert len(packed) <= MAX_PAYLOAD
    heard = messages.failure(messages.unpack(packed, size))
    assert heard.ranks == told.ranks
    if len(str(told)) < 1000:  # it fits, so nothing is left out
        assert str(heard).split("\n", 1)[0] == _encodable(str(told).split("\n", 1)[0])
        assert heard.evidence == tuple(map(_encodable, told.evidence))


@settings(deadline=None)
@given(_failures(), st.data())
def test_what_is_cut_or_changed_on_the_way_is_refused_or_a_message(case, data):
    size, told = case
    packed = messages.pack(messages.verdict(told))
    cut = packed[: data.draw(st.integers(0, len(packed) - 1))]
    with pytest.raises(ValueError, match=r"."):
        messages.unpack(cut, size)
    at = data.draw(st.integers(0, len(packed) - 1))
    changed = packed[:at] + data.draw(st.binary(max_size=3)) + packed[at + 1 :]
    try:
        heard = messages.failure(messages.unpack(changed, size))
    except ValueError:
        return
    assert heard is None or all(rank in range(size) for rank in heard.ranks)


LONG = "rank 7 has operation 3: sum of 9 x float32 by schedule 0, late [5]; " * 1000
LARGE = {
    "hundreds of ranks": RankFailure(range(2, 900), "noticed by 0", [LONG[:900]] * 80),
    "a long text": RankFailure([1], "noticed by 0: " + LONG),
    "long evidence": RankFailure([1], "noticed by 0", [LONG] * 900),
    "all of it": RankFailure(range(1, 900, 2), "noticed by 0: " + LONG, [LONG] * 900),
    "what takes more room when escaped": RankFailure([1], "noticed by 0: " + '\x01"' * 20_000),
    "what can't be encoded": RankFailure([1], "noticed by 0: \udcff", ["\ud800"]),
}


@pytest.fixture
def crowd(boards):
    """The same boards in a group of 900, of which nobody else lives."""
    made, rang = boards
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mute:
        mute.bind(("127.0.0.1", 0))
        for board in made.values():
            board.datagrams._peers.update(dict.fromkeys(range(2, 900), mute.getsockname()))
            board.size = 900
        yield made, rang


@pytest.mark.parametrize("what", LARGE)
def test_a_large_verdict_reaches_the_others(crowd, what):
    made, rang = crowd
    first = made[0].diagnose("", 0.0, LARGE[what])
    assert first is LARGE[what]
    assert _eventually(lambda: [rank for rank, _ in rang] == [1])
    second = made[1].diagnose("noticed by 1", 0.5)
    assert second.ranks == first.ranks
    assert str(second).startswith("noticed by 0")


def test_a_rank_with_much_to_say_is_not_taken_for_silent(boards):
    made, _ = boards
    told = RankStatus(4, WaitFor(3, LONG, 1, 0), 0.0, "\udcff" + LONG, doing=LONG)
    made[1]._position = lambda: told
    position = made[0].survey(5.0)[1]
    assert (position.entered, position.waiting.peer) == (4, 0)
    for words in (position.broken, position.doing, position.waiting.phase):
        assert "rank 7 has operation 3" in words
        assert words.endswith("[...]")
