"""The board: ranks tell each other where they stand when something is wrong, over UDP.

Silent in normal operation. When a rank notices a failure it *asks* everybody; the others answer
with their position at once, from the thread that listens to datagrams
(``runtime.network.control_channel``), however busy or stuck the rest of the process is. A question
may be an alarm, which makes them give up too. The first verdict reached is told to all, so that all
name the same rank.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable

from runtime.health import messages
from runtime.health.diagnosis import RankStatus, diagnose
from runtime.health.messages import Message
from runtime.network.control_channel import ControlChannel
from verify.errors import RankFailure

CHANNEL = "board"
ASK_AGAIN_S = 0.1


class HealthProtocol:
    """One rank's end of the talk about failures, on the channel ``board``.

    Args:
        datagrams: carry what is said; closed by their owner.
        position: called from the listening thread to learn where this rank stands.
        alarmed: called once, on a thread of its own, when another rank raises the alarm.
    """

    def __init__(
        self,
        datagrams: ControlChannel,
        *,
        position: Callable[[], RankStatus],
        alarmed: Callable[[str], None],
    ) -> None:
        self.rank, self.size = datagrams.rank, datagrams.size
        self.datagrams = datagrams
        self._position, self._alarmed = position, alarmed
        self._numbers = itertools.count()
        self._answers: dict[int, dict[int, RankStatus]] = {}  # by question
        self._verdict: RankFailure | None = None
        self._news = threading.Condition()
        self._alarm_raised = False
        datagrams.listen(CHANNEL, self._hear)

    def survey(self, grace_s: float) -> dict[int, RankStatus]:
        """Ask everybody where they stand; what was answered within ``grace_s`` seconds."""
        with self._news:
            return self._ask(grace_s, alarm=False)

    def diagnose(
        self, noticed: str, grace_s: float, known: RankFailure | None = None
    ) -> RankFailure:
        """Raise the alarm and decide who failed, within ``grace_s`` seconds.

        Args:
            known: who did, if this rank knows.
        """
        with self._news:
            self._alarm_raised = True
            self._verdict = self._verdict or known
            answers = self._ask(grace_s, alarm=True)
            if self._verdict is None:
                self._verdict = diagnose(self.size, answers, self.rank, noticed, grace_s)
            verdict = self._verdict
        told = messages.verdict(verdict)
        for peer in range(self.size):
            if peer != self.rank:
                self._send(peer, told)
        return verdict

    def _ask(self, grace_s: float, *, alarm: bool) -> dict[int, RankStatus]:
        """Positions by rank; ends early when all have spoken or there is a verdict.

        The time in which this process itself did not get to run is not held against the others.
        """
        number = next(self._numbers)
        answers = self._answers[number] = {self.rank: self._position()}
        question = Message(asks=True, alarm=alarm, question=number)
        left_s = grace_s
        while self._verdict is None and len(answers) < self.size and left_s > 0:
            for peer in range(self.size):
                if peer not in answers:
                    self._send(peer, question)
            asked_s = time.monotonic()
            self._news.wait_for(
                lambda: self._verdict is not None or len(answers) == self.size,
                min(left_s, ASK_AGAIN_S),
            )
            left_s -= min(time.monotonic() - asked_s, 2 * ASK_AGAIN_S)
        del self._answers[number]
        return answers

    def _send(self, peer: int, message: Message) -> None:
        self.datagrams.send(peer, CHANNEL, messages.pack(message))

    def _hear(self, sender: int, payload: bytes) -> None:
        message = messages.unpack(payload, self.size)
        verdict = messages.failure(message)
        raise_alarm = False
        with self._news:
            if message.asks:
                self._send(sender, messages.answer(message.question, self._position()))
            if message.position is not None and message.question in self._answers:
                self._answers[message.question][sender] = message.position
            if self._verdict is None:
                self._verdict = verdict
            if (message.alarm or verdict is not None) and not self._alarm_raised:
                self._alarm_raised = raise_alarm = True
            self._news.notify_all()
        if raise_alarm:
            told = f"told by rank {sender}"
            threading.Thread(target=self._alarmed, args=(told,), daemon=True).start()
