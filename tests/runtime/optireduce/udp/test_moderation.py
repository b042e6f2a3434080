"""How long looks at the socket wait: against ports that are played, and for whatever is found."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from latecomer.runtime.optireduce.udp import moderation
from latecomer.runtime.optireduce.udp.moderation import Moderator

MBIT = 1e6 / 8
LOOK_S = 0.0001  # what a look itself takes
PLENTY = 2**30  # bytes that are still due


def play(rate, looks, due=PLENTY, moderator=None, began_s=0.0):
    """Look at a port that brings ``rate`` bytes per second: the pauses before each look."""
    moderator = moderator or Moderator()
    now_s = began_s
    pauses = []
    unread = 0.0
    for _ in range(looks):
        pause_s = moderator.pause_s(due)
        now_s += LOOK_S + pause_s
        unread += rate * (LOOK_S + pause_s)
        moderator.looked(int(unread), 0, now_s)
        unread = 0.0
        pauses.append(pause_s)
    return pauses


def test_a_slow_port_is_looked_at_when_it_has_brought_enough_or_the_longest_pause_is_over():
    for mbit in (10, 100, 300):
        assert set(play(mbit * MBIT, 40)[25:]) == {moderation.MOST_S}
    for pause_s in play(1000 * MBIT, 40)[-5:]:
        assert abs(pause_s * 1000 * MBIT - moderation.GATHERED_BYTES) < 10  # bytes are whole


def test_a_fast_port_is_not_waited_for():
    assert set(play(10_000 * MBIT, 40)) == {0.0}


def test_the_first_looks_do_not_wait_nor_those_after_nothing_or_much_was_found():
    moderator = Moderator()
    assert not any(play(100 * MBIT, 2, moderator=moderator))
    assert all(play(100 * MBIT, 20, moderator=moderator, began_s=0.01)[12:])
    moderator.looked(0, 0, 1.0)
    assert not moderator.is_called_for
    assert not any(play(100 * MBIT, 2, moderator=moderator, began_s=1.0))
    moderator.looked(moderation.FEW_BYTES, 0, 2.0)
    assert not any(play(100 * MBIT, 2, moderator=moderator, began_s=2.0))


def test_who_waits_for_little_waits_no_longer_than_that_takes():
    rate = 100 * MBIT
    moderator = Moderator()
    play(rate, 40, moderator=moderator)
    assert abs(moderator.pause_s(10_000) * rate - 10_000) < 10
    assert moderator.pause_s(0) == 0.0
    assert moderator.pause_s(1000) == 0.0  # to fall asleep would take longer


def test_what_goes_out_faster_than_what_comes_in_is_not_left_waiting():
    """The kernel may have sent all of it in the pause that the slow direction asks for."""
    now_s = 0.0
    moderator = Moderator()
    for _ in range(40):
        now_s += 0.001
        moderator.looked(1000, 125_000, now_s)
    assert abs(moderator.pause_s(PLENTY) - moderation.GATHERED_BYTES / 125e6) < 1e-9


def test_a_gap_is_no_measure_of_a_rate():
    """A peer that computes between two operations does not make the port a slow one."""
    moderator = Moderator()
    rate = 10_000 * MBIT
    now_s = 0.0
    for _ in range(50):
        now_s += 0.05
        moderator.looked(1000, 0, now_s)
        assert moderator.pause_s(PLENTY) == 0.0  # nothing is known
        play(rate, 3, moderator=moderator, began_s=now_s)
    moderator.looked(1000, 0, now_s + 0.05)
    moderator.looked(1000, 0, now_s + 0.0501)
    assert moderator.pause_s(PLENTY) == 0.0


FOUND = st.tuples(st.integers(0, 10**7), st.integers(0, 10**7), st.floats(0, 0.01))


@given(looks=st.lists(FOUND, max_size=60), due=st.integers(0, PLENTY))
def test_no_pause_is_longer_than_the_longest_or_follows_a_look_that_found_enough(looks, due):
    moderator = Moderator()
    now_s = 0.0
    for received, sent, passed_s in looks:
        now_s += passed_s
        moderator.looked(received, sent, now_s)
        pause_s = moderator.pause_s(due)
        assert pause_s == 0.0 or moderation.LEAST_S <= pause_s <= moderation.MOST_S
        if pause_s:
            assert moderator.is_called_for
            assert 0 < received < moderation.FEW_BYTES
