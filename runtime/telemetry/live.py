"""Tells of a watch while it goes on: writes what is new to files, and counts it for Prometheus.

    the threads that move data ── append ──> Feed <── twice a second ── latecomer-live ──> files

It has a thread of its own, which lives as long as the watch. None of a rank's three could do it: a
write to a disk that is full, slow or far away can take seconds, in which the control thread must
answer the other ranks, and the two that move data must move it. Nor could the program's thread,
which may be within one step for minutes. The thread sleeps between its looks, and no other waits
for it: what happens is appended to a queue that forgets the oldest if nobody reads it.

What goes wrong here is told once, in the log ``latecomer``, and ends nothing.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping

from latecomer.runtime.at_exit import close_at_exit, has_closed
from latecomer.runtime.host import host
from latecomer.runtime.telemetry.files import Line, State, encode
from latecomer.runtime.telemetry.recorder import Event, OperationRecorder
from latecomer.runtime.telemetry.records import Collective, Record, Round, Stage, UbtStep
from latecomer.runtime.telemetry.writer import RankFiles

PERIOD_S = 0.5  # between two looks: what a killed job has not told is younger than about a second
STATE_S = 2.0  # between two lines on where the rank stands, also while nothing happens
CLOSE_S = 5.0  # how long the end of the watch waits for the last look

logger = logging.getLogger("latecomer")


class Periodic:
    """Calls ``looks`` in turn every now and then on a thread, and once more when it is closed.

    Each is told whether it is the last one, and has a name for the log, where its first exception
    is told; it goes on with the next look.
    """

    def __init__(self, name: str, looks: Mapping[str, Callable[[bool], None]]) -> None:
        self._looks = dict(looks)
        self._failed: set[str] = set()
        self._closing = host.Event()
        self._thread = host.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin; it ends at the latest with the program."""
        self._thread.start()
        close_at_exit(self)

    def close(self, *, at_once: bool = False) -> None:
        """Look once more and end the thread; ``at_once`` does not wait for it for long."""
        has_closed(self)
        self._closing.set()
        self._thread.join(PERIOD_S if at_once else CLOSE_S)
        if self._thread.is_alive():
            names = ", ".join(self._looks)
            logger.warning("%s: not done after %g s; the end may be missing", names, CLOSE_S)

    def _run(self) -> None:
        while not self._closing.wait(PERIOD_S):
            self._look(is_last=False)
        self._look(is_last=True)

    def _look(self, *, is_last: bool) -> None:
        for name, look in self._looks.items():
            try:
                look(is_last)
            except Exception as error:
                self._tell_once(name, error)

    def _tell_once(self, name: str, error: Exception) -> None:
        if name in self._failed:
            return
        self._failed.add(name)
        logger.warning(
            "%s: %s: %s. It is tried again, without another word; training goes on",
            name,
            type(error).__name__,
            error,
        )


class Journal:
    """Writes what is new in one recorder to the rank's files."""

    def __init__(self, recorder: OperationRecorder, files: RankFiles) -> None:
        self._recorder = recorder
        self._files = files
        self._feed = recorder.feed()
        self._done = 0
        self._groups_written = 0
        self._unwritten = 0
        self._next_state_s = -math.inf
        self.error = ""  # the exception that has left the block, in words

    def look(self, is_last: bool) -> None:
        """Write what has happened since the last look, and where the rank stands; OSError."""
        events, steps = self._recorder.news(self._feed)
        self._done += sum(isinstance(event, Record) for event in events)
        groups = self._recorder.groups()
        lines = [encode(Line(group=group)) for group in groups[self._groups_written :]]
        self._groups_written = len(groups)
        lines += [_encoded(event) for event in (*events, *steps)]
        now_s = host.monotonic()
        open_now = self._recorder.open_collectives()  # which matters most if the rank hangs
        if is_last or open_now or now_s >= self._next_state_s:
            self._next_state_s = now_s + STATE_S
            lines.append(encode(Line(state=self._state(open_now, is_over=is_last))))
        if not (lines or is_last):
            return

        try:
            self._files.write(lines)
        except OSError:
            self._unwritten += len(events) + len(steps)
            raise
        finally:
            if is_last:
                self._files.close()
                self._recorder.unfeed(self._feed)

    def _state(self, open_now: tuple[Collective, ...], *, is_over: bool) -> State:
        alignment = self._recorder.alignment()
        return State(
            unix_s=host.unix_time(),
            clock_s=host.monotonic() + alignment.offset_s,
            uncertainty_s=alignment.uncertainty_s,
            entered=self._recorder.entered,
            done=self._done,
            messages=self._recorder.messages,
            unwritten=self._unwritten + self._feed.lost,
            over=is_over,
            error=self.error,
            open=open_now,
        )


def _encoded(event: Event | UbtStep) -> bytes:
    match event:
        case Record():
            return encode(Line(operation=event))
        case Collective():
            return encode(Line(collective=event))
        case Round():
            return encode(Line(round=event))
        case Stage():
            return encode(Line(stage=event))
        case UbtStep():
            return encode(Line(step=event))
