"""Who is blamed, given what the ranks said; and the board that carries what they say."""

from __future__ import annotations

import json
import socket
import threading
import time
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch._C._distributed_c10d import TCPStore

from runtime.blame import Position, Waiting, blame, patience_s
from runtime.board import Board
from runtime.datagrams import HEADER, Datagrams


def _waits(peer, operation=3):
    return Waiting(operation, "completion", 1, peer)


def test_the_silent_are_blamed_first():
    said = {0: Position(4, _waits(2)), 3: Position(1)}
    failure = blame(4, said, 0, "noticed", 2.0)
    assert failure.ranks == (1, 2)
    assert "dead or stopped" in str(failure)
    assert "rank 3 has entered 1 operation(s)" in str(failure)


def test_then_whoever_has_not_entered():
    said = {0: Position(4, _waits(2)), 1: Position(4, _waits(2)), 2: Position(3)}
    failure = blame(3, said, 0, "noticed", 2.0)
    assert failure.ranks == (2,)
    assert "has not entered operation 3" in str(failure)


def test_but_not_whoever_is_behind_others_and_not_needed_yet():
    said = {
        0: Position(9, _waits(2)),
        1: Position(5),  # slower than rank 0, but in operation 3
        2: Position(3),
        3: Position(4, _waits(0, operation=3)),
    }
    assert blame(4, said, 0, "noticed", 2.0).ranks == (2,)
    assert blame(4, said, 3, "noticed", 2.0).ranks == (2,)


def test_whoever_broke_is_blamed_before_the_late():
    said = {0: Position(4, _waits(2)), 1: Position(4, broken="OSError('x')"), 2: Position(3)}
    failure = blame(3, said, 0, "noticed", 2.0)
    assert failure.ranks == (1,)
    assert "OSError('x')" in str(failure)


def test_ranks_that_differ_are_both_named_with_what_they_have():
    said = {
        0: Position(4, _waits(2)),
        1: Position(4, differs_from=3, doing="a sum of 3 x float32"),
        2: Position(4, broken="OSError('x')"),
        3: Position(4, _waits(1)),
    }
    failure = blame(4, said, 0, "noticed", 2.0)
    assert failure.ranks == (1, 3)
    assert "rank 1 has a sum of 3 x float32" in str(failure)


def test_then_the_end_of_the_chain_of_waits():
    said = {0: Position(4, _waits(1)), 1: Position(4, _waits(2)), 2: Position(4)}
    assert blame(3, said, 0, "noticed", 2.0).ranks == (2,)


def test_or_its_cycle():
    said = {0: Position(4, _waits(1)), 1: Position(4, _waits(2)), 2: Position(4, _waits(1))}
    failure = blame(3, said, 0, "noticed", 2.0)
    assert failure.ranks == (1, 2)
    assert "wait for each other" in str(failure)


def test_nobody_is_blamed_without_evidence():
    said = {0: Position(4), 1: Position(4)}
    assert blame(2, said, 0, "noticed", 2.0).ranks == ()


def test_a_wait_goes_on_while_the_end_of_its_chain_is_in_the_operation_and_moves():
    chain = {0: Position(4, _waits(1), idle_s=9), 1: Position(4, _waits(2), idle_s=9)}
    assert patience_s({**chain, 2: Position(4, idle_s=2)}, 0, 5) == 3
    assert patience_s({**chain, 2: Position(4, idle_s=6)}, 0, 5) < 0
    assert patience_s({**chain, 2: Position(3, idle_s=0)}, 0, 5) == 0  # it has not entered
    assert patience_s({**chain, 2: Position(4, _waits(0), idle_s=6)}, 0, 5) < 0  # a cycle
    assert patience_s({**chain, 2: Position(4, _waits(0), idle_s=1)}, 0, 5) == 4  # of what was
    assert patience_s({**chain, 0: Position(4)}, 0, 5) == 5  # no longer waits


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
        rank: Position(entered, None if peer is None else _waits(peer))
        for rank, (entered, peer) in {0: (1, None), **said}.items()
    }
    failure = blame(size, positions, 0, "noticed", 1.0)
    assert set(failure.ranks) <= set(range(size))
    missing = set(range(size)) - set(positions)
    assert set(failure.ranks) == missing or not missing


@pytest.fixture
def boards():
    """Two boards of one group in this process, and the alarms that rang."""
    store = TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=10))
    rang: list[tuple[int, str]] = []
    made: dict[int, Board] = {}

    def make(rank):
        made[rank] = Board(
            Datagrams(store.clone(), rank, 2, start_timeout_s=10),
            position=lambda: Position(rank + 1),
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
    old = {"question": 77, "position": {"entered": 9}}
    for _ in range(3):
        made[1].datagrams.send(0, "board", json.dumps(old).encode())
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
    alarm = json.dumps({"alarm": True}).encode()
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
            HEADER.pack(token, 0, 5) + b"board" + json.dumps({"alarm": 3}).encode(),
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
