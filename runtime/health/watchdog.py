"""The watchdog: waits have no time-out of their own, it knows when one has been long enough.

When this rank's oldest wait has lasted long, it asks the others where they stand, and gives more
time or gives up. Giving up is done once: the ranks find out who has failed, and all that was
registered here ends with that error, within ``timeout_s`` of the wait that failed, or, where the
rank that is waited for is alive and has entered the operation, of its last sign of going on.

It looks on the control loop, which must go on all the while: other ranks' questions are answered
there, and the answers to this rank's are read there. Giving up waits for those answers, and then
calls what may take long (connections are closed, the program's own callbacks run): so a rank that
gives up has a thread more for it.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Mapping

from latecomer.runtime.health.checks import (
    LOOK_SHARE,
    LifeCheck,
    Limits,
    SilenceCheck,
    Trouble,
    WaitCheck,
    WaitSource,
)
from latecomer.runtime.health.diagnosis import RankStatus, diagnose
from latecomer.runtime.health.protocol import HealthProtocol, Question
from latecomer.runtime.host import Thread, host
from latecomer.runtime.network.control_channel import ControlChannel
from latecomer.runtime.network.protocol import ProtocolRunner, T
from latecomer.runtime.network.store_exchange import IsGone
from latecomer.verify.errors import LatecomerError, RankFailure

TICK_S = 0.25  # it looks this often,
TICKS = 20  # and at least so many times within the longest wait
GONE_LOOK_S = 0.02  # between two looks whether a rank that does not answer is proved gone
CLOSE_S = 5.0  # how long closing waits for what a failure calls
GOODBYE_S = 0.5  # how long closing waits until ranks are told of it, and know of a failure
FAILURE_THREAD = "latecomer-failure"

logger = logging.getLogger("latecomer")


class Watchdog(ProtocolRunner[bytes, str]):
    """Looks after one rank's waits; finds out, with all ranks, who failed; fails once.

    ``channel`` is closed by its owner, after this; ``timeout_s``, ``silence_s``, ``is_gone``: see
    :class:`latecomer.Executor`.
    """

    def __init__(
        self,
        channel: ControlChannel,
        timeout_s: float,
        silence_s: float | None = None,
        is_gone: IsGone | None = None,
    ) -> None:
        self.rank = channel.rank
        self.world_size = channel.size
        self.failure: RankFailure | None = None  # of the group; closing is no failure
        self.entered = 0  # operations that this rank has entered
        self.broken = ""  # what has gone wrong on this rank alone; the others learn it if they ask
        self.describe: Callable[[], str] = str  # what this rank takes its oldest operation to be
        self.limits = Limits(timeout_s, silence_s)  # may be changed at any time, on all ranks
        self._is_gone = is_gone
        self._differs: tuple[int, str] | None = None
        self._moved_s = host.monotonic()
        self._health = HealthProtocol(self.rank, self.world_size, self.status)
        self._never_heard = channel.never_heard
        self._waits = WaitCheck(
            self.rank,
            self.world_size,
            self.limits,
            never_heard=self._never_heard,
            gone=self._health.gone,
        )
        self._checks: list[WaitCheck | LifeCheck | SilenceCheck] = [self._waits]
        if silence_s is not None:
            life = LifeCheck(
                self.rank,
                self.world_size,
                self.limits,
                self._waits.oldest,
                never_heard=self._never_heard,
                gone=self._health.gone,
            )
            self._checks.append(life)
        self._questions: dict[int, Question] = {}  # by check
        self._looks: Thread | None = None  # the last one that looked who is gone
        self._aborts: list[Callable[[], None]] = []
        self._stops: list[Callable[[LatecomerError], None]] = []
        self._news = host.Condition()  # something was received or is due; guards the flags
        self._failing = host.Lock()
        self._is_over = False  # given up, or closed
        self._has_stopped = False  # who was to be told of the failure is being told
        self._stopping: Thread | None = None  # tells them
        self._loop = channel.loop
        super().__init__(self._health, channel, "health", bytes)
        self._ticks = self._loop.timer(self._tick, self.handle_error)
        self._ticks.set(host.monotonic())

    def add(self, source: WaitSource) -> None:
        """Look after the waits of ``source``, too."""
        self._waits.sources.append(source)

    def suspect(
        self, find: Callable[[float], Iterable[int]], noticed: str, grace_s: float | None = None
    ) -> None:
        """Fail if a rank that ``find`` names gives no sign of life (see :class:`SilenceCheck`)."""
        check = SilenceCheck(
            self.rank,
            self.world_size,
            self.limits,
            find,
            noticed,
            grace_s,
            never_heard=self._never_heard,
            gone=self._health.gone,
        )
        self._checks.append(check)

    def on_trouble(self, abort: Callable[[], None]) -> None:
        """Call ``abort`` once when something is wrong, before the verdict.

        On the thread that gives up: any but the control loop's.
        """
        with self._news:
            self._aborts.append(abort)
            is_late = self._is_over
        if is_late:
            self._call(abort)

    def on_failure(self, stop: Callable[[LatecomerError], None]) -> None:
        """Call ``stop`` once with :attr:`failure`; all in order, on a thread of their own."""
        with self._news:
            self._stops.append(stop)
            is_late = self._has_stopped
        if is_late and self.failure is not None:
            self._call(stop, self.failure)

    def enter(self, number: int) -> None:
        """This rank has come to operation ``number``, wherever and however it will run."""
        self.entered = max(self.entered, number + 1)
        self._moved_s = host.monotonic()

    def fail(self, noticed: str, verdict: RankFailure | None = None) -> None:
        """Give up, here and everywhere; then :attr:`failure` is set (unless this is closed).

        Without a ``verdict`` on who has failed the ranks find out. On the control loop, which has
        to read what they answer, it returns before that.
        """
        trouble = Trouble(noticed, self.limits.grace_s, verdict)
        if self._loop.is_current_thread:
            self._fail_apart(trouble)
        else:
            self._fail(trouble)

    def broke(self, error: BaseException, noticed: str = "it broke") -> None:
        """An exception ended this rank's work: fail, and be named for it."""
        self.broken = repr(error)
        self.fail(f"rank {self.rank}: {noticed}")

    def abort(self, reason: str) -> None:
        """Give up, here and everywhere, and be named for it; returns at once."""
        text = f"rank {self.rank}: has aborted, {reason}"
        verdict = RankFailure([self.rank], text)
        trouble = Trouble(text, self.limits.grace_s, verdict)
        if not self._is_over and self._start_thread(self._fail, trouble) is None:
            self._fail(trouble)  # better late than never

    def differs(self, peer: int, doing: str, noticed: str) -> None:
        """``peer`` has something else than ``doing`` as the same operation: fail."""
        self._differs = peer, doing
        self.fail(noticed)

    def find_silent(self, noticed: str) -> LatecomerError | None:
        """Ask all for a sign of life; if some give none, the failure everywhere that names them.

        Ranks that have closed are named, too.
        """
        if not self._is_over:
            answers = self._ask(self.limits.grace_s)
            closed = [rank for rank, status in answers.items() if status.closed]
            all_are_there = len(answers) == self.world_size and not closed
            if all_are_there and not self._is_over:
                return None
            self._fail(self._waits.diagnosed(answers, noticed, suspects=closed))
        with self._failing:
            return self.failure

    def close(self) -> None:
        """Say goodbye, and look no more; what is noticed from now on is no failure."""
        if not self._is_over:
            self._say_goodbye()
        with self._failing:
            self._is_over = True
        self._wait_until(lambda: self._health.has_told)
        self._ticks.cancel()
        stopping = self._stopping
        if stopping is not None and stopping is not host.current_thread():
            stopping.join(CLOSE_S)
        super().close()

    def _say_goodbye(self) -> None:
        """Tell all who stay that this rank has finished; a rank that is dead never hears it."""
        self.run(self._health.leave)
        self._wait_until(lambda: self._health.has_left or self._is_over)

    def _wait_until(self, is_told: Callable[[], bool]) -> None:
        """Wait until all are told, but not for long."""
        with self._news:
            self._news.wait_for(is_told, GOODBYE_S)

    def status(self) -> RankStatus:
        """Where this rank stands; any thread."""
        try:
            wait = self._waits.oldest()
            moved_s = max([self._moved_s, *(source.moved_s for source in self._waits.sources)])
            peer, doing = self._differs or (None, self.describe())
        except Exception as error:  # an answer all the same: a silent rank is taken for dead
            return RankStatus(self.entered, broken=self.broken or repr(error))
        idle_s = host.monotonic() - moved_s
        return RankStatus(self.entered, wait[0] if wait else None, idle_s, self.broken, peer, doing)

    def run(self, act: Callable[[float], T]) -> T:
        """As for all protocols; questions may be over now."""
        result = super().run(act)
        with self._news:
            self._news.notify_all()
        return result

    def handle_event(self, event: str) -> None:
        """Another rank has raised the alarm."""
        self._fail_apart(Trouble(event, self.limits.grace_s))

    def handle_error(self, error: Exception) -> None:
        """Without it no wait would ever end."""
        self.fail(f"rank {self.rank} broke its watchdog, {error!r}")

    def _tick(self) -> None:
        """Look after the waits, and look again soon."""
        if self._is_over:
            self._ticks.set(None)
            return
        self._check()
        tick_s = min(TICK_S, self.limits.wait_s / TICKS)
        if self.limits.silence_s is not None:
            tick_s = min(tick_s, LOOK_SHARE * self.limits.silence_s / 2)
        self._ticks.set(host.monotonic() + tick_s)

    def _check(self) -> None:
        for number, check in enumerate(self._checks):
            now_s = host.monotonic()
            question = self._questions.get(number)
            if question is None:
                if check.is_due(now_s):
                    self._questions[number] = self._begin(check.grace_s)
            elif question.is_over:
                del self._questions[number]
                if trouble := check.judge(question.answers, now_s):
                    self._fail_apart(trouble)
            elif self._is_gone is not None and not self._is_looking:
                self._looks = self._start_thread(self._look_while_open, question)

    @property
    def _is_looking(self) -> bool:
        return self._looks is not None and self._looks.is_alive()

    def _look_while_open(self, question: Question) -> None:
        """Look who of the silent is gone, on a thread of its own: their hosts may be slow."""
        while not question.is_over and not self._is_over:
            self._look_who_is_gone(question)
            with self._news:
                self._news.wait_for(lambda: question.is_over, GONE_LOOK_S)

    def _fail_apart(self, trouble: Trouble) -> None:
        """Give up on a thread of its own: where messages are read nothing may wait for them."""
        if self._is_over:
            return
        if self._start_thread(self._fail, trouble) is None:  # a wait that lasts is seen again
            logger.error("rank %d has no thread to give up on: %s", self.rank, trouble.noticed)

    def _fail(self, trouble: Trouble) -> None:
        """The first caller finds out why, everybody else waits for that."""
        noticed, grace_s, verdict = trouble
        with self._failing:
            if self._is_over:
                return
            with self._news:
                self._is_over = True
                aborts = list(self._aborts)
            if verdict is not None:
                self.run(lambda now_s: self._health.decide(verdict, now_s))
            for abort in aborts:
                self._call(abort)

            # asked also where there is a verdict: the alarm makes the others give up
            answers = self._ask(grace_s, alarm=True)
            diagnosis = diagnose(
                self.world_size,
                answers,
                self.rank,
                noticed,
                grace_s,
                never_heard=self._never_heard(),
                gone=self._health.gone,
            )
            self.failure = self.run(lambda now_s: self._health.decide(diagnosis, now_s))
            self._stopping = self._start_thread(self._stop, self.failure)
        if self._stopping is None:
            self._stop(self.failure)  # better here than never

    def _stop(self, failure: RankFailure) -> None:
        """Tell all who are to be told of the failure."""
        with self._news:
            self._has_stopped = True
            stops = list(self._stops)
        for stop in stops:
            self._call(stop, failure)

    def _start_thread(self, run: Callable[..., None], *args: object) -> Thread | None:
        """A thread that runs this, if there is one to be had."""
        thread = host.Thread(target=run, args=args, name=FAILURE_THREAD, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return None
        return thread

    def _call(self, call: Callable[..., None], *args: LatecomerError) -> None:
        try:
            call(*args)
        except Exception:
            logger.exception("rank %d: could not stop after a failure", self.rank)

    def _ask(self, grace_s: float, *, alarm: bool = False) -> Mapping[int, RankStatus]:
        """The status of each rank that answers within ``grace_s`` seconds."""
        question = self._begin(grace_s, alarm=alarm)
        look_s = TICK_S if self._is_gone is None else GONE_LOOK_S
        while not question.is_over:
            with self._news:
                self._news.wait_for(lambda: question.is_over, look_s)
            self.run(self._health.handle_timer)  # whatever holds up the control loop
            self._look_who_is_gone(question)
        return question.answers

    def _look_who_is_gone(self, question: Question) -> None:
        """Wait no longer for the answers of those whose processes have ended."""
        if self._is_gone is None or question.is_over:
            return
        unanswered = self.run(lambda now_s: self._health.unanswered(question))
        for rank in filter(self._is_gone, sorted(unanswered)):
            self.run(functools.partial(self._health.prove_gone, rank))

    def _begin(self, grace_s: float, *, alarm: bool = False) -> Question:
        return self.run(lambda now_s: self._health.ask(grace_s, now_s, alarm=alarm))
