"""Whether the others are still there: deadlines on every wait, and one verdict on who failed.

The board and its verdict are the executor's (``runtime.health.protocol``,
``runtime.health.diagnosis``). A wait here has one more excuse: two stages may wait for each other
while their messages are on a slow link, so a cycle of waits is no deadlock (the schedule is proved
to have none) until nobody on it has moved for the whole time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from runtime.health.diagnosis import RankStatus, WaitFor
from runtime.health.old_protocol import HealthProtocol
from runtime.network.control_channel import ControlChannel
from runtime.pipeline.messages import Name
from verify.errors import LatecomerError, RankFailure

LONGEST_GRACE_S = 5.0
SURVEY_SHARE = 0.25  # of the grace period: to ask around before giving up
WAIT_SHARE = 0.9  # of the time left for waits: the rest is for reacting
TICKS = 20  # looks within the longest wait


def patience_s(positions: Mapping[int, RankStatus], me: int, limit_s: float) -> float:
    """How much longer rank ``me`` should wait; 0 or less if it is time to give up.

    Args:
        positions: what all ranks said.
        me: a rank that has waited for ``limit_s`` or longer.
        limit_s: how long a rank may keep others waiting.
    """
    chain, needed = [me], 0
    while (waiting := positions[chain[-1]].waiting) and waiting.peer not in chain:
        chain.append(waiting.peer)
        needed = waiting.operation
    if len(chain) == 1:
        return limit_s  # the wait is over meanwhile
    if waiting is None and positions[chain[-1]].entered <= needed:
        return 0.0  # whoever is waited for has not begun the step
    return limit_s - min(positions[rank].idle_s for rank in chain[1:])


class Liveness:
    """Watches the waits of this rank's compute thread and finds out who failed.

    Args:
        datagrams: of the pipeline's ranks.
        timeout_s: a rank that keeps others waiting for so long, without beginning the step or
            without going on in it, is given up; every survivor has raised by then.
        stop: called once, on any thread, when the pipeline has failed: ends all waits.
    """

    def __init__(
        self, datagrams: ControlChannel, timeout_s: float, stop: Callable[[RankFailure], None]
    ) -> None:
        self.failure: LatecomerError | None = None
        self._rank, self._size, self._stop = datagrams.rank, datagrams.size, stop
        self._grace_s = min(LONGEST_GRACE_S, timeout_s / 3)
        self._limit_s = (timeout_s - (1 + SURVEY_SHARE) * self._grace_s) * WAIT_SHARE
        self._entered, self._broken = 0, ""
        self._wait: tuple[WaitFor, float] | None = None  # and since when
        self._moved_s = time.monotonic()
        self._failing = threading.Lock()
        self._over = threading.Event()
        self._board = HealthProtocol(datagrams, position=self._position, alarmed=self.fail)
        self._thread = threading.Thread(
            target=self._run, name="latecomer-pipeline-watchman", daemon=True
        )
        self._thread.start()

    def enter(self, step: int) -> None:
        """This rank begins a step."""
        self._entered = step + 1
        self.moved()

    def moved(self) -> None:
        """This rank got on."""
        self._moved_s = time.monotonic()

    def waits_for(self, name: Name | None, peer: int = -1) -> None:
        """The compute thread waits for a message from ``peer``; None: it no longer does."""
        if name is None:
            self._wait = None
            self.moved()
            return
        microbatch = name.receive.microbatch
        assert microbatch is not None
        kind = "activation" if name.receive.kind == "RECV_F" else "gradient"
        phase = f"the {kind} for stage {name.receive.stage}, microbatch"
        self._wait = WaitFor(name.step, phase, microbatch, peer), time.monotonic()

    def fail(self, noticed: str) -> None:
        """Give up: find out why, with all others, and end all waits."""
        with self._failing:
            if self.failure is None:
                failure = self._board.diagnose(f"rank {self._rank}: {noticed}", self._grace_s)
                self.failure = failure
                self._stop(failure)

    def broke(self, error: BaseException) -> None:
        """An exception ended this rank's step, or a thread of it: the others are told so."""
        self._broken = f"{type(error).__name__}: {error}"[:300]
        self.fail("it broke")

    def end(self) -> None:
        """Stop watching."""
        self._over.set()
        self._thread.join(timeout=1.0)

    def _position(self) -> RankStatus:
        wait, idle_s = self._wait, time.monotonic() - self._moved_s
        return RankStatus(self._entered, wait[0] if wait else None, idle_s, self._broken)

    def _run(self) -> None:
        try:
            self._watch()
        except Exception as error:  # without it no wait would ever end
            self.broke(error)

    def _watch(self) -> None:
        granted_s = 0.0
        while not self._over.wait(self._limit_s / TICKS):
            wait = self._wait
            if wait is None or time.monotonic() < max(wait[1] + self._limit_s, granted_s):
                continue
            positions = self._board.survey(SURVEY_SHARE * self._grace_s)
            if self._wait is not wait:
                continue
            heard = len(positions) == self._size
            more_s = patience_s(positions, self._rank, self._limit_s) if heard else 0.0
            if more_s <= 0:
                self.fail(f"{wait[0]} for more than {self._limit_s:.3g} s")
                return
            granted_s = time.monotonic() + more_s
