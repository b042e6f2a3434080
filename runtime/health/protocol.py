"""Ranks ask each other where they stand when something is wrong: questions, answers and verdicts.

Silent in normal operation, but for a goodbye: a rank that has finished says so before it closes, so
that nobody takes it for dead; it repeats that until all who stay have heard it. A rank that notices
a failure asks everybody; each answers with its status. A question may be an alarm, which makes the
others give up too. The first verdict reached is sent to all, so that all name the same ranks. Each
acknowledges it, and to those that have not it is sent again, a few times: it may be lost on the
way, or where a socket is full. A rank that has decided stays as long, and no longer: who waits in
vain for its verdict would take it for dead, but who is dead never acknowledges anything. Where a
rank is proved gone (:meth:`HealthProtocol.prove_gone`) nobody waits for its answers.

Two ranks that give up at the same moment may have heard different answers, where another one stops
between two of its own. So after an alarm the lowest of the ranks that answer decides, and the
others wait for its verdict a little longer than they do for answers. If it has answered, and gives
no sign of life when it is asked again for its verdict, it has stopped since: it counts as silent,
and the next one decides. Whoever hears a verdict passes it on to those that have asked, since who
has reached it may be gone by then.

Each message is one datagram, so words are shortened until they fit, and what is left out is marked;
which ranks failed always goes whole, as a bit for each rank of the group.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from latecomer.runtime.health.diagnosis import RankStatus
from latecomer.runtime.network.protocol import Protocol
from latecomer.verify.errors import RankFailure

ASK_AGAIN_S = 0.1  # questions and goodbyes may be lost
TRIES = 4  # of a question, however short the time for answers is
ASKS = 10  # of the rank that is to decide, while its verdict is waited for; of these
SILENT_ASKS = 8  # so many without an answer say that it has stopped,
SILENT_S = 0.25  # if they are no mere pause of its process
TELLS = 5  # of a verdict, at most: of ten datagrams one may be lost, and seldom five in a row
DEFER_SHARE = 0.1  # of the time in which ranks may answer: so much longer the lowest may decide

# Bytes. A verdict has a text and evidence, a status up to three texts: either has to be less than
# ``latecomer.runtime.network.control_channel.MAX_PAYLOAD``, with the bits of the ranks. A message
# that was simply cut was no message: a verdict was lost, and a rank with a long exception taken for
# dead.
MAX_TEXT = 16_000
MAX_EVIDENCE = 30_000
MAX_LINES = 64
CUT = " [...]"


class HealthMessage(msgspec.Struct, omit_defaults=True):
    """``status`` answers; ``asks`` demands an answer; ``failed`` makes it a verdict.

    A status that says ``closed`` is a goodbye, whatever it answers; ``heard`` is the reply to it,
    and ``knows`` the reply to a verdict.

    An answer has the number of its question: one that comes late or twice is known. ``failed``
    has bit ``r % 8`` of byte ``r // 8`` set for each rank ``r`` that failed.
    """

    asks: bool = False
    alarm: bool = False
    heard: bool = False
    knows: bool = False
    question: int = 0
    status: RankStatus | None = None
    failed: bytes | None = None
    text: str = ""
    evidence: list[str] = []

    @property
    def verdict(self) -> RankFailure | None:
        """The failure it speaks of, if it is a verdict."""
        if self.failed is None:
            return None
        return RankFailure(list(_ranks(self.failed)), self.text, self.evidence)


@dataclass
class Question:
    """A question to all ranks; over when all have answered, time is up, or there is a verdict.

    Where all answer an alarm, the lowest of them decides as soon as it has their answers; for the
    others the question stays open until its verdict comes, or time is up.
    """

    number: int
    alarm: bool
    left_s: float  # still open; time in which this process itself did not run does not count
    asked_s: float
    answers: dict[int, RankStatus]  # this rank's, too
    again_s: float  # between two times that it is asked
    defers_s: float  # so much longer a rank waits for the verdict of a lower one that answers
    is_over: bool = False
    unanswered: int = 0  # times in a row that the rank that is to decide was asked for its verdict

    def decider(self, rank: int) -> int:
        """The lowest of ``rank``, who asks, and of those that answer and have not finished."""
        there = [peer for peer, status in self.answers.items() if not status.closed]
        return min([rank, *there])

    def defers(self, rank: int) -> bool:
        """Whether ``rank``, who asks, leaves the decision to another one."""
        return self.alarm and self.decider(rank) != rank

    def time_s(self, rank: int) -> float:
        """How long it is still open for ``rank``, who asks."""
        return self.left_s + (self.defers_s if self.defers(rank) else 0.0)

    def pass_over(self, rank: int) -> bool:
        """Let the next one decide where the decider of ``rank`` is silent by now; whether it is."""
        is_enough = self.unanswered >= SILENT_ASKS and self.defers_s >= SILENT_S
        if not self.defers(rank) or not is_enough:
            return False
        del self.answers[self.decider(rank)]
        self.left_s = 0.0
        self.unanswered = 0
        return self.defers(rank)

    def due_s(self, rank: int) -> float:
        """When to ask again, or to end it."""
        again_s = self.again_s if self.left_s > 0 else self.defers_s / ASKS
        return self.asked_s + min(self.time_s(rank), again_s)


class HealthProtocol(Protocol[bytes, str]):
    """One rank's end of it; the only event is that another rank has raised the alarm, once."""

    def __init__(self, rank: int, world_size: int, status: Callable[[], RankStatus]) -> None:
        super().__init__()
        self.rank = rank
        self.world_size = world_size
        self.verdict: RankFailure | None = None  # once a rank has found out who failed
        self._status = status
        self._numbers = itertools.count()
        self._open: dict[int, Question] = {}
        self._is_alarmed = False
        self._askers: set[int] = set()  # ranks that have asked this one, and wait for a verdict
        self._closed: dict[int, RankStatus] = {}  # ranks that have said goodbye, and how
        self.gone: set[int] = set()  # ranks without a goodbye whose processes exist no more
        self._unaware: set[int] = set()  # ranks that have not heard this rank's goodbye
        self._goodbye_due_s: float | None = None  # None: this rank stays
        # ranks that may not know a verdict yet: they have acknowledged none, and sent none
        self._unknowing = set(range(world_size)) - {rank}
        self._tells = 0  # times that this rank has sent its verdict to those
        self._tell_due_s: float | None = None  # when it is to be sent again

    @property
    def has_told(self) -> bool:
        """Whether all know its verdict, if it has decided, or it has been sent often enough."""
        return self._tell_due_s is None

    @property
    def has_left(self) -> bool:
        """Whether nobody is left who has to hear this rank's goodbye."""
        return self.verdict is not None or not self._unaware

    def leave(self, now_s: float) -> None:
        """Say goodbye to all who stay; see :attr:`has_left`."""
        self._unaware = set(range(self.world_size)) - {self.rank} - set(self._closed)
        self._goodbye_due_s = now_s
        self._say_goodbye(now_s)

    def ask(self, grace_s: float, now_s: float, *, alarm: bool = False) -> Question:
        """Ask everybody for a status, for ``grace_s`` seconds; with the alarm: to give up, too."""
        self._is_alarmed |= alarm
        answers = {**self._closed, self.rank: self._own_status()}  # a goodbye answers all
        question = Question(
            number=next(self._numbers),
            alarm=alarm,
            left_s=grace_s,
            asked_s=now_s,
            answers=answers,
            again_s=min(ASK_AGAIN_S, grace_s / TRIES),
            defers_s=DEFER_SHARE * grace_s,
        )
        self._open[question.number] = question
        self._send_question(question)
        self._end_questions()
        return question

    def prove_gone(self, rank: int, now_s: float) -> None:
        """The process of ``rank`` does not exist any more, and never will again.

        No silence is a proof: only what the rank's own host says. Who had said goodbye before it
        ended has not failed.
        """
        if rank in self._closed:
            return
        self.gone.add(rank)
        self._unaware.discard(rank)
        self._count_as_knowing(rank)
        for question in self._open.values():
            question.answers.pop(rank, None)
        self._end_questions()

    def unanswered(self, question: Question) -> set[int]:
        """Ranks that have not answered a question, and are not proved gone."""
        return set(range(self.world_size)) - set(question.answers) - self.gone

    def decide(self, verdict: RankFailure, now_s: float) -> RankFailure:
        """Send the verdict to all, or the one that was reached before, which is what counts."""
        self.verdict = self.verdict or verdict
        self._end_questions()
        if self._tells == 0:  # else they are being told already
            self._tell(self.verdict, now_s)
        return self.verdict

    def receive_message(self, message: bytes, sender: int, now_s: float) -> None:
        """Take a message of another rank; a ValueError if :func:`unpack` refuses it."""
        received = unpack(message, self.world_size)
        if received.asks:
            if self.verdict is not None:  # whoever asks because this rank gives up learns why
                self._send(sender, pack_verdict(self.verdict))
            self._askers.add(sender)
            self._send(sender, pack_answer(received.question, self._own_status()))
        if received.heard:
            self._unaware.discard(sender)
        if received.knows:
            self._count_as_knowing(sender)
        if received.status is not None:
            self._take_status(received.question, sender, received.status)
        if received.failed is not None:
            self._count_as_knowing(sender)
            self._send(sender, _KNOWS)
        if self.verdict is None and received.verdict is not None:
            self.verdict = received.verdict
            for asker in sorted(self._askers - {sender}):
                self._send(asker, pack_verdict(self.verdict))
        if (received.alarm or received.failed is not None) and not self._is_alarmed:
            self._is_alarmed = True
            self._events.append(f"told by rank {sender}")
        self._end_questions()

    def get_timer(self) -> float | None:
        """When :meth:`handle_timer` is due."""
        due_s = [question.due_s(self.rank) for question in self._open.values()]
        if self._goodbye_due_s is not None and not self.has_left:
            due_s.append(self._goodbye_due_s)
        if self._tell_due_s is not None:
            due_s.append(self._tell_due_s)
        return min(due_s, default=None)

    def handle_timer(self, now_s: float) -> None:
        """Ask again whoever has not answered, or give it up."""
        for question in self._open.values():
            if now_s >= question.due_s(self.rank):
                # what is more than that, this process was not running
                question.left_s -= min(now_s - question.asked_s, 2 * question.again_s)
                question.asked_s = now_s
                self._send_question(question)
        if self._goodbye_due_s is not None and now_s >= self._goodbye_due_s:
            self._say_goodbye(now_s)
        if self._tell_due_s is not None and now_s >= self._tell_due_s:
            assert self.verdict is not None
            self._tell(self.verdict, now_s)
        self._end_questions()

    def _tell(self, verdict: RankFailure, now_s: float) -> None:
        """Send the verdict to all that may not know it, and again unless that was the last time."""
        packed = pack_verdict(verdict)
        self._outbox += [(peer, packed) for peer in sorted(self._unknowing)]
        self._tells += 1
        if self._unknowing and self._tells < TELLS:
            self._tell_due_s = now_s + ASK_AGAIN_S
        else:
            self._tell_due_s = None

    def _count_as_knowing(self, peer: int) -> None:
        """Never send the verdict again to ``peer``, unless it asks."""
        self._unknowing.discard(peer)
        if not self._unknowing:
            self._tell_due_s = None

    def _own_status(self) -> RankStatus:
        is_closed = self._goodbye_due_s is not None
        return msgspec.structs.replace(self._status(), closed=is_closed)

    def _take_status(self, number: int, sender: int, status: RankStatus) -> None:
        """An answer to one question, or a goodbye, which answers all."""
        if status.closed:
            self._closed[sender] = status
            self._unaware.discard(sender)  # it needs no goodbye any more,
            self._count_as_knowing(sender)  # and no verdict: it waits for nobody
            self._send(sender, _HEARD)
            for question in self._open.values():
                question.answers[sender] = status
        elif number in self._open and sender not in self.gone:
            question = self._open[number]
            question.answers[sender] = status
            if sender == question.decider(self.rank):
                question.unanswered = 0

    def _say_goodbye(self, now_s: float) -> None:
        if not self.has_left:
            goodbye = pack_answer(question=0, status=self._own_status())
            self._outbox += [(peer, goodbye) for peer in sorted(self._unaware)]
            self._goodbye_due_s = now_s + ASK_AGAIN_S

    def _send_question(self, question: Question) -> None:
        message = HealthMessage(asks=True, alarm=question.alarm, question=question.number)
        data = msgspec.msgpack.encode(message)
        asked = self.unanswered(question)
        if not asked or question.left_s <= 0:
            asked = {question.decider(self.rank)} - {self.rank}  # for its verdict
            if question.left_s <= 0:
                question.unanswered += 1
        if self.verdict is None:
            self._outbox += [(peer, data) for peer in sorted(asked)]

    def _end_questions(self) -> None:
        for question in list(self._open.values()):
            is_answered = not self.unanswered(question) and not question.defers(self.rank)
            is_late = question.time_s(self.rank) <= 0
            if is_late and self.verdict is None and question.pass_over(self.rank):
                continue
            if is_answered or is_late or self.verdict is not None:
                question.is_over = True
                del self._open[question.number]


_HEARD = msgspec.msgpack.encode(HealthMessage(heard=True))
_KNOWS = msgspec.msgpack.encode(HealthMessage(knows=True))


def pack_answer(question: int, status: RankStatus) -> bytes:
    """Where a rank stands."""
    texts = {"broken": shortened(status.broken), "doing": shortened(status.doing)}
    status = msgspec.structs.replace(status, **texts)
    if (waiting := status.waiting) is not None:
        waiting = msgspec.structs.replace(waiting, phase=shortened(waiting.phase))
        status = msgspec.structs.replace(status, waiting=waiting)
    return msgspec.msgpack.encode(HealthMessage(question=question, status=status))


def pack_verdict(failure: RankFailure) -> bytes:
    """Who failed, and why; at most ``MAX_PAYLOAD`` bytes of the control channel."""
    bits = sum(1 << rank for rank in set(failure.ranks))
    failed = bits.to_bytes(-(-bits.bit_length() // 8), "little")
    text = shortened(str(failure).split("\n", 1)[0])
    evidence = list(_first_lines(failure.evidence))
    return msgspec.msgpack.encode(HealthMessage(failed=failed, text=text, evidence=evidence))


def unpack(payload: bytes, world_size: int) -> HealthMessage:
    """The message in a datagram; a ValueError if it is none, or of ranks that do not exist."""
    try:
        message = _decoder.decode(payload)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from None
    if message.failed is not None and int.from_bytes(message.failed, "little") >> world_size:
        raise ValueError(f"a verdict on ranks beyond {world_size - 1}")
    if (status := message.status) is not None:
        peer = status.waiting.peer if status.waiting is not None else None
        if not {peer, status.differs_from} <= {None, *range(world_size)}:
            raise ValueError("a status that speaks of a rank that does not exist")
        if not math.isfinite(status.idle_s):
            raise ValueError("a status since a time that is none")
    return message


def shortened(text: str, most: int = MAX_TEXT) -> str:
    """``text`` in at most ``most`` bytes of UTF-8; what UTF-8 does not have is escaped."""
    data = text.encode("utf-8", "backslashreplace")
    if len(data) <= most:
        return data.decode()
    return data[: most - len(CUT)].decode("utf-8", "ignore") + CUT


def _first_lines(lines: Sequence[str]) -> Iterable[str]:
    """As many lines as fit, and how many more there are."""
    left = MAX_EVIDENCE
    for number, line in enumerate(lines):
        short = shortened(line)
        left -= len(short.encode())
        if left < 0 or number == MAX_LINES:
            yield f"and {len(lines) - number} line(s) more"
            return
        yield short


def _ranks(bits: bytes) -> Iterator[int]:
    for position, byte in enumerate(bits):
        for bit in range(8):
            if byte >> bit & 1:
                yield 8 * position + bit


# made with the module: see latecomer.verify.core.format
_decoder = msgspec.msgpack.Decoder(HealthMessage)
