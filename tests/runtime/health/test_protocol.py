"""Questions, answers and verdicts between ranks: no socket and no clock; what is lost, is lost."""

from __future__ import annotations

import math
import re

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from latecomer.runtime.health import protocol
from latecomer.runtime.health.diagnosis import RankStatus, WaitFor
from latecomer.runtime.network.control_channel import MAX_PAYLOAD
from latecomer.verify.errors import RankFailure


class Group:
    """Protocols of a group; :meth:`settle` carries what they send, except to and from the deaf."""

    def __init__(self, size):
        self.ranks = []
        for rank in range(size):
            status = RankStatus(rank + 1)
            self.ranks.append(protocol.HealthProtocol(rank, size, lambda status=status: status))
        self.deaf = set()
        self.now_s = 0.0

    def settle(self):
        while sent := self._sent():
            for sender, peer, payload in sent:
                if not {sender, peer} & self.deaf:
                    self.ranks[peer].receive_message(payload, sender, self.now_s)

    def _sent(self):
        """(sender, receiver, payload) of what the ranks have to send now."""
        sent = []
        for sender, rank in enumerate(self.ranks):
            for peer, payload in rank.messages_to_send(self.now_s):
                sent.append((sender, peer, payload))
        return sent

    def turn(self, seconds):
        self.now_s += seconds
        for rank in self.ranks:
            rank.handle_timer(self.now_s)
        self.settle()

    def events(self):
        return [rank.next_event() for rank in self.ranks]


def test_a_question_is_over_when_all_have_answered_and_is_no_alarm():
    group = Group(3)
    question = group.ranks[0].ask(5.0, 0.0)
    assert not question.is_over
    group.settle()
    assert question.is_over
    entered = {rank: status.entered for rank, status in question.answers.items()}
    assert entered == {0: 1, 1: 2, 2: 3}
    assert group.events() == [None] * 3
    assert group.ranks[0].get_timer() is None
    assert all(rank.has_told and rank.get_timer() is None for rank in group.ranks)


def test_a_rank_that_has_said_goodbye_is_not_silent():
    group = Group(3)
    group.ranks[2].leave(group.now_s)
    assert not group.ranks[2].has_left
    group.settle()
    assert group.ranks[2].has_left
    assert group.ranks[2].get_timer() is None

    group.deaf = {2}
    question = group.ranks[0].ask(1.0, group.now_s)
    group.settle()
    assert question.is_over
    assert question.answers[2] == RankStatus(3, closed=True)
    assert not question.answers[1].closed
    assert group.events() == [None] * 3


def test_a_goodbye_is_repeated_until_all_who_stay_have_heard_it():
    group = Group(3)
    group.deaf = {0}
    group.ranks[2].leave(group.now_s)
    group.settle()
    group.ranks[0].ask(1.0, group.now_s)  # nobody hears it
    assert not group.ranks[2].has_left
    assert group.ranks[2].get_timer() == protocol.ASK_AGAIN_S

    group.deaf = set()
    group.turn(protocol.ASK_AGAIN_S)
    assert group.ranks[2].has_left
    question = group.ranks[0].ask(1.0, group.now_s)
    assert question.answers[2].closed


def test_nobody_waits_for_a_rank_that_leaves_too():
    group = Group(2)
    group.deaf = {0}
    group.ranks[1].leave(group.now_s)
    group.settle()
    goodbye = protocol.pack_answer(0, RankStatus(1, closed=True))
    group.ranks[1].receive_message(goodbye, 0, group.now_s)
    assert group.ranks[1].has_left


def test_whoever_does_not_answer_is_asked_again_until_the_time_is_up():
    group = Group(3)
    group.deaf = {2}
    question = group.ranks[0].ask(1.0, 0.0)
    group.settle()
    assert group.ranks[0].get_timer() == protocol.ASK_AGAIN_S

    group.deaf = {1, 2}
    group.turn(protocol.ASK_AGAIN_S)
    group.deaf = {1}
    assert not question.is_over
    group.turn(protocol.ASK_AGAIN_S)  # rank 2 hears the third, rank 1 has heard the first
    assert question.is_over

    lost = group.ranks[0].ask(1.0, group.now_s)
    for _ in range(11):
        group.turn(protocol.ASK_AGAIN_S)
    assert lost.is_over
    assert lost.answers.keys() == {0, 2}


def _give_up(first, second):
    """Both have asked with the alarm for a second; rank 2 has answered the first alone and stopped.

    Rank 3 is dead. Returns the group, shortly after that second, and the questions by rank.
    """
    group = Group(4)
    group.deaf = {3}
    questions = {first: group.ranks[first].ask(1.0, group.now_s, alarm=True)}
    group.settle()
    group.deaf = {2, 3}
    questions[second] = group.ranks[second].ask(1.0, group.now_s, alarm=True)
    group.settle()
    assert set(questions[first].answers) == {0, 1, 2}
    assert set(questions[second].answers) == {0, 1}

    for _ in range(10):
        group.turn(protocol.ASK_AGAIN_S + 1e-6)
    return group, questions


@pytest.mark.parametrize("ranks", [(0, 1), (1, 0)])
def test_of_ranks_that_have_heard_different_answers_the_lowest_decides(ranks):
    group, questions = _give_up(*ranks)
    assert questions[0].is_over
    assert not questions[1].is_over  # it waits for rank 0's verdict
    group.ranks[0].decide(RankFailure([2, 3], "silent"), group.now_s)
    group.settle()
    assert questions[1].is_over
    assert group.ranks[1].decide(RankFailure([3], "silent"), group.now_s).ranks == (2, 3)


def test_a_verdict_that_does_not_come_is_asked_for():
    group, questions = _give_up(0, 1)
    group.ranks[0].decide(RankFailure([3], "silent"), group.now_s)
    assert group._sent()  # all of it is lost
    group.turn(protocol.ASK_AGAIN_S)
    assert questions[1].is_over
    assert group.ranks[1].verdict.ranks == (3,)


def test_a_verdict_that_never_comes_is_not_waited_for():
    group, questions = _give_up(0, 1)
    group.deaf = {0, 2, 3}
    group.turn(protocol.ASK_AGAIN_S)
    assert questions[1].is_over
    assert group.ranks[1].verdict is None


@pytest.mark.parametrize("hears", [True, False], ids=["hears it", "asks for it"])
def test_where_all_answer_the_lowest_decides_at_once_and_the_others_wait_for_it(hears, monkeypatch):
    """Both have all answers, given at different moments: what each makes of them may differ."""
    group = Group(3)
    questions = {}
    for rank in (1, 0):
        questions[rank] = group.ranks[rank].ask(1.0, group.now_s, alarm=True)
    group.settle()
    assert set(questions[1].answers) == set(questions[0].answers) == {0, 1, 2}
    assert questions[0].is_over
    assert not questions[1].is_over

    verdict = RankFailure([2], "others wait for it")
    if hears:
        group.ranks[0].decide(verdict, group.now_s)
    else:
        monkeypatch.setattr(protocol, "TELLS", 1)  # and it is lost
        group.ranks[0].decide(verdict, group.now_s)
        group.ranks[0].messages_to_send(group.now_s)
        assert group.ranks[0].has_told
        group.turn(protocol.ASK_AGAIN_S)
    group.settle()
    assert questions[1].is_over
    assert group.ranks[1].verdict.ranks == (2,)


def test_a_decision_that_the_lowest_never_reaches_is_not_waited_for():
    group = Group(3)
    question = group.ranks[1].ask(1.0, group.now_s, alarm=True)
    group.settle()
    assert not question.is_over
    group.deaf = {0}
    for _ in range(12):
        group.turn(protocol.ASK_AGAIN_S)
    assert question.is_over
    assert group.ranks[1].verdict is None


def test_who_has_answered_and_stops_before_it_decides_is_silent_and_the_next_one_decides():
    """Others, whom rank 0 has not answered, name it; so does rank 2, by waiting for rank 1."""
    group = Group(4)
    question = group.ranks[2].ask(5.0, group.now_s, alarm=True)
    group.settle()
    assert set(question.answers) == {0, 1, 2, 3}
    group.deaf = {0}
    for _ in range(49):
        group.turn(protocol.ASK_AGAIN_S)
    for _ in range(15):
        group.turn(0.05)
    assert not question.is_over
    assert set(question.answers) == {1, 2, 3}  # rank 0 has not said what it decides

    group.ranks[1].decide(RankFailure([0], "silent"), group.now_s)
    group.settle()
    assert question.is_over
    assert group.ranks[2].verdict.ranks == (0,)


def test_who_is_only_slow_to_decide_is_not_passed_over():
    group = Group(3)
    question = group.ranks[1].ask(5.0, group.now_s, alarm=True)
    group.settle()
    for _ in range(70):
        group.turn(protocol.ASK_AGAIN_S)
    assert question.is_over
    assert set(question.answers) == {0, 1, 2}


def test_a_verdict_is_passed_on_to_those_that_have_asked():
    """Rank 2 has reached it, told rank 0 alone, and is gone."""
    group = Group(4)
    group.deaf = {2, 3}
    question = group.ranks[1].ask(1.0, group.now_s, alarm=True)
    group.settle()
    assert not question.is_over

    verdict = protocol.pack_verdict(RankFailure([3], "silent"))
    group.ranks[0].receive_message(verdict, 2, group.now_s)
    group.settle()
    assert question.is_over
    assert group.ranks[1].verdict.ranks == (3,)


def _verdicts_sent(group):
    """To whom rank 0 sends a verdict now; what it sends is lost."""
    receivers = []
    for peer, payload in group.ranks[0].messages_to_send(group.now_s):
        if protocol.unpack(payload, len(group.ranks)).verdict is not None:
            receivers.append(peer)
    return receivers


def test_a_verdict_that_all_have_acknowledged_is_not_sent_again():
    group = Group(4)
    assert group.ranks[0].has_told  # there is nothing to tell
    group.ranks[0].decide(RankFailure([2], "others wait for it"), group.now_s)
    assert not group.ranks[0].has_told
    group.settle()
    assert group.ranks[0].has_told
    assert [rank.verdict.ranks for rank in group.ranks] == [(2,)] * 4
    assert group.ranks[0].get_timer() is None
    assert group._sent() == []


def test_a_verdict_is_sent_again_to_those_that_have_not_acknowledged_it():
    group = Group(4)
    group.deaf = {1, 2}  # for a moment, rank 2 for ever
    group.ranks[0].decide(RankFailure([2], "silent"), group.now_s)
    group.settle()
    assert group.ranks[1].verdict is None

    for _ in range(protocol.TELLS - 2):
        group.now_s += protocol.ASK_AGAIN_S
        group.ranks[0].handle_timer(group.now_s)
        assert not group.ranks[0].has_told
        assert _verdicts_sent(group) == [1, 2]

    group.deaf = {2}
    group.turn(protocol.ASK_AGAIN_S)
    assert group.ranks[1].verdict.ranks == (2,)
    assert group.ranks[0].has_told  # often enough: rank 2 will never know
    assert group.ranks[0].get_timer() is None


def test_whoever_sends_a_verdict_or_says_goodbye_is_not_told():
    group = Group(4)
    group.ranks[0].receive_message(protocol.pack_verdict(RankFailure([3], "x")), 1, 0.0)
    group.ranks[0].receive_message(protocol.pack_answer(0, RankStatus(1, closed=True)), 2, 0.0)
    group.ranks[0].messages_to_send(0.0)
    group.ranks[0].decide(RankFailure([3], "x"), 0.0)
    assert _verdicts_sent(group) == [3]


def test_a_verdict_is_acknowledged_each_time():
    """An acknowledgement may be lost, too."""
    group = Group(2)
    verdict = protocol.pack_verdict(RankFailure([0], "x"))
    for _ in range(3):
        group.ranks[1].receive_message(verdict, 0, 0.0)
        ((peer, payload),) = group.ranks[1].messages_to_send(0.0)
        assert peer == 0
        assert protocol.unpack(payload, 2).knows


def test_deciding_again_sends_nothing_more():
    group = Group(3)
    group.ranks[0].decide(RankFailure([2], "first"), 0.0)
    assert _verdicts_sent(group) == [1, 2]
    assert group.ranks[0].decide(RankFailure([1], "second"), 0.0).ranks == (2,)
    assert group._sent() == []
    assert group.ranks[0].get_timer() == protocol.ASK_AGAIN_S


def test_time_in_which_this_rank_did_not_run_is_not_held_against_the_others():
    group = Group(2)
    group.deaf = {1}
    question = group.ranks[0].ask(1.0, 0.0)
    group.turn(600.0)
    assert not question.is_over


def test_answers_to_another_question_do_not_count():
    group = Group(2)
    group.ranks[0].receive_message(protocol.pack_answer(77, RankStatus(9)), 1, 0.0)
    question = group.ranks[0].ask(1.0, 0.0)
    group.ranks[0].receive_message(protocol.pack_answer(77, RankStatus(9)), 1, 0.0)
    assert question.answers.keys() == {0}


def test_an_alarm_or_a_verdict_is_an_event_once():
    group = Group(3)
    group.ranks[0].ask(1.0, 0.0, alarm=True)
    group.settle()
    group.ranks[1].ask(1.0, 0.0, alarm=True)
    group.settle()
    assert group.events() == [None, "told by rank 0", "told by rank 0"]
    group.ranks[0].decide(RankFailure([2], "first"), group.now_s)
    group.settle()
    assert group.events() == [None] * 3

    group = Group(2)
    group.ranks[0].decide(RankFailure([1], "first"), group.now_s)
    group.settle()
    assert group.events() == [None, "told by rank 0"]


def test_the_first_verdict_counts_and_ends_all_questions():
    group = Group(3)
    group.deaf = {2}
    question = group.ranks[1].ask(90.0, 0.0)
    group.ranks[0].decide(RankFailure([2], "first"), group.now_s)
    group.settle()
    assert question.is_over
    assert group.ranks[1].ask(90.0, 0.0).is_over
    group.ranks[1].decide(RankFailure([0], "second"), group.now_s)
    group.settle()
    assert group.ranks[0].verdict.ranks == (2,)
    assert group.ranks[1].verdict.ranks == (2,)
    assert group.ranks[2].verdict is None


RUBBISH = [
    b"",
    b"\xff" * 500,
    b"\x91" * 60_000,
    b"[",
    msgspec.msgpack.encode({"alarm": 3}),
    msgspec.msgpack.encode(protocol.HealthMessage(failed=b"\x04")),
    msgspec.msgpack.encode(protocol.HealthMessage(failed=b"\xff" * 60_000)),
    protocol.pack_verdict(RankFailure([0], "x" * 100, ["y" * 100]))[:-1],
    protocol.pack_answer(0, RankStatus(1, WaitFor(3, "completion", 1, 2))),
    protocol.pack_answer(0, RankStatus(1, WaitFor(3, "completion", 1, -1))),
    protocol.pack_answer(0, RankStatus(1, differs_from=2)),
    protocol.pack_answer(0, RankStatus(1, idle_s=math.nan)),
]


@pytest.mark.parametrize("payload", RUBBISH)
def test_rubbish_is_refused(payload):
    group = Group(2)
    with pytest.raises(ValueError, match=r"."):
        group.ranks[0].receive_message(payload, 1, 0.0)
    assert group.ranks[0].verdict is None
    assert group.events() == [None, None]


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
    evidence = [line * draw(st.sampled_from([1, 40])) for line in lines]
    return size, RankFailure(ranks, text, evidence)


LONG = "rank 7 has operation 3: sum of 9 x float32 by schedule 0, late [5]; " * 1000


@settings(deadline=None)  # verdicts on 65,536 ranks, on a busy machine
@given(_failures())
@example((900, RankFailure(range(2, 900), "noticed by 0", [LONG[:900]] * 80)))
@example((900, RankFailure([1], "noticed by 0: " + LONG)))
@example((900, RankFailure(range(1, 900, 2), "noticed by 0: " + LONG, [LONG] * 900)))
@example((900, RankFailure([1], "noticed by 0: " + '\x01"' * 20_000)))  # more room when escaped
@example((900, RankFailure([1], "noticed by 0: \udcff", ["\ud800"])))  # can't be encoded
@example((1, RankFailure([], "", ["0000\ud800"])))  # nor at the end of what is compared
def test_a_verdict_of_any_size_is_one_datagram_and_names_all_ranks(case):
    size, failure = case
    text = str(failure)

    packed = protocol.pack_verdict(failure)
    assert len(packed) <= MAX_PAYLOAD
    received = protocol.unpack(packed, size).verdict
    received_text = str(received)

    assert received.ranks == failure.ranks
    # What can't be encoded is escaped, which makes it longer.
    assert received_text[:12] == protocol.shortened(text[:12])[:12]
    if len(text) > 60_000:  # it says what is left out
        assert "[...]" in received_text or "line(s) more" in received_text
    if len(text) < 1000:  # it fits, so nothing is left out
        first_line = protocol.shortened(text.split("\n", 1)[0])
        assert received_text.split("\n", 1)[0] == first_line
        assert received.evidence == tuple(map(protocol.shortened, failure.evidence))


@settings(deadline=None)
@given(_failures(), st.data())
def test_what_is_cut_or_changed_on_the_way_is_refused_or_a_message(case, data):
    size, failure = case
    packed = protocol.pack_verdict(failure)

    cut = packed[: data.draw(st.integers(0, len(packed) - 1))]
    with pytest.raises(ValueError, match=r"."):
        protocol.unpack(cut, size)

    position = data.draw(st.integers(0, len(packed) - 1))
    changed = packed[:position] + data.draw(st.binary(max_size=3)) + packed[position + 1 :]
    try:
        verdict = protocol.unpack(changed, size).verdict
    except ValueError:
        return
    assert verdict is None or all(rank in range(size) for rank in verdict.ranks)


def test_a_rank_with_much_to_say_is_not_taken_for_silent():
    status = RankStatus(4, WaitFor(3, LONG, 1, 0), 0.0, "\udcff" + LONG, doing=LONG)

    packed = protocol.pack_answer(5, status)
    assert len(packed) <= MAX_PAYLOAD
    received = protocol.unpack(packed, 2).status

    assert received.entered == 4
    assert received.waiting.peer == 0
    for text in (received.broken, received.doing, received.waiting.phase):
        assert re.search(r"(?s)rank 7 has operation 3.*\[\.\.\.\]$", text)
