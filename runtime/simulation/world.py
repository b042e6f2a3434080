"""Virtual time, the events that are due at it, and tasks: threads that run one at a time.

A task runs until it waits for something, which takes two microseconds of a processor, whatever it
does; every host has as many processors as it needs, unless all are told to share some. Then the hub
decides, by the seed, which of those that can go on does; where none can, time jumps to the next
event. So nothing ever waits for the machine, and a second of virtual time takes as long as what
happens in it.

Tasks are greenlets. Source of the idea: FoundationDB's simulation (Zhou et al., SIGMOD 2021).
Deviation: the code that is simulated has threads, not actors; each is a task.
"""

from __future__ import annotations

import hashlib
import heapq
import math
import random
import struct
from collections.abc import Callable
from typing import Any

import greenlet

BEGIN_S = 1000.0  # when a world begins: no code may take 0 for the beginning of time
MOST_CALLS = 1000  # of the host in a row: who makes more takes
SPIN_S = 0.001  # so much time, as a thread does that keeps a processor busy
STEP_S = 2e-6
MANY = 1_000_000  # processors
STAMP = struct.Struct("<dI")


class SimulationError(Exception):
    """The simulation itself can't go on."""


class Stuck(SimulationError):
    """No task can go on, no event is due, and not all ranks are done."""


class TooLong(SimulationError):
    """More steps than allowed: something spins."""


class Dice:
    """Random numbers for one concern: another concern that draws more or less changes none here.

    Only ``random()`` of Python's generator is used, whose numbers are the same in all versions.
    """

    def __init__(self, seed: int, concern: str) -> None:
        digest = hashlib.blake2b(f"{seed} {concern}".encode(), digest_size=8).digest()
        self.random = random.Random(int.from_bytes(digest)).random

    def happens(self, probability: float) -> bool:
        """Whether something with this probability happens."""
        return probability > 0.0 and self.random() < probability

    def below(self, count: int) -> int:
        """One of 0 .. count - 1."""
        return int(self.random() * count)

    def between(self, low: float, high: float) -> float:
        """A number between both."""
        return low + self.random() * (high - low)

    def one_of(self, choices: Any) -> Any:
        """One of several."""
        return choices[self.below(len(choices))]

    def exponential(self, mean: float) -> float:
        """A number of the exponential distribution."""
        return -mean * math.log(1.0 - self.random())


class Task:
    """A thread of one rank; or of none, such as a fault that waits for its time."""

    def __init__(
        self, number: int, rank: int, name: str, body: Callable[[], None], hub: Any
    ) -> None:
        self.number = number
        self.rank = rank
        self.name = name
        self.error: BaseException | None = None  # that ended it
        self.is_over = False
        self.ran_s = 0.0  # of a processor
        self.is_parked = False
        self.parkings = 0
        self.was_woken = False
        self.thread: Any = None  # what the code that runs in it knows it by
        self.waiters: list[Task] = []  # for its end
        self.waits_for = ""  # for who looks at a world that is stuck
        self._body = body
        self.greenlet = greenlet.greenlet(self._run, parent=hub)  # it goes on when this ends

    def _run(self) -> None:
        try:
            self._body()
        except greenlet.GreenletExit:
            pass  # the world is over, or its rank has been killed
        except BaseException as error:
            self.error = error
        self.is_over = True

    def __repr__(self) -> str:
        waits = f", waits for {self.waits_for}" if self.waits_for and self.is_parked else ""
        return f"rank {self.rank} {self.name}{waits}"


class World:
    """Time, events and tasks; ``seed`` decides the order of what could be in several.

    Args:
        switch: how often a task that goes on lets others go first, at a call of the host.
        pause: how often it pauses there, as a thread does that gets no processor;
        pause_s: for how long, on average.
        most_steps: of tasks and events together; TooLong is raised beyond it.
        step_s: a task runs so long until it waits: else who asks again and again would stop time;
        processors: so many run at the same time, all hosts together.
    """

    def __init__(
        self,
        seed: int,
        *,
        switch: float = 0.1,
        pause: float = 0.0,
        pause_s: float = 0.01,
        most_steps: int = 5_000_000,
        step_s: float = STEP_S,
        processors: int = MANY,
    ) -> None:
        self.seed = seed
        self.now_s = BEGIN_S
        self.steps = 0
        self._calls = 0  # of the host, by the current task since it goes on
        self.current: Task | None = None
        self.tasks: list[Task] = []
        self.is_over = False
        self.pause = pause
        self.pause_s = pause_s
        self.switch = switch
        self._most_steps = most_steps
        self._step_s = step_s
        self._processors = processors
        self._runnable: list[Task] = []
        self._stopped: dict[int, list[Task]] = {}  # by rank that is stopped: who could go on
        self._dead: set[int] = set()
        self._has_lost = False  # a task or a rank, since it was asked whether all is over
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._numbers = 0
        self._scheduling = Dice(seed, "scheduling")
        self._pausing = Dice(seed, "pausing")
        self._trace = hashlib.blake2b(digest_size=8)
        self._hub = greenlet.getcurrent()

    @property
    def trace(self) -> str:
        """A digest of all that has happened, in order."""
        return self._trace.hexdigest()

    @property
    def rank(self) -> int:
        """The rank whose thread runs now."""
        assert self.current is not None
        return self.current.rank

    def dice(self, concern: str) -> Dice:
        """Random numbers of this world's seed for one concern."""
        return Dice(self.seed, concern)

    def number(self) -> int:
        """The next number: of tasks, events, descriptors, ports."""
        self._numbers += 1
        return self._numbers

    def at(self, at_s: float, call: Callable[..., None], *args: Any) -> None:
        """Call it at a time, or at once if that is over; no task runs then."""
        heapq.heappush(self._events, (max(at_s, self.now_s), self.number(), call, args))

    def after(self, delay_s: float, call: Callable[..., None], *args: Any) -> None:
        """Call it after some time; no task runs then."""
        self.at(self.now_s + delay_s, call, *args)

    def start(self, rank: int, name: str, body: Callable[[], None]) -> Task:
        """A new task, which runs when the hub says so."""
        task = Task(self.number(), rank, name, body, self._hub)
        self.tasks.append(task)
        self._make_runnable(task)
        return task

    def park(self, until_s: float = math.inf, waits_for: str = "") -> bool:
        """Let the current task wait until it is woken (true), or until a time (false)."""
        task = self.current
        if self.is_over or task is None:
            raise greenlet.GreenletExit
        task.parkings += 1
        task.is_parked = True
        task.was_woken = False
        task.waits_for = waits_for
        if until_s != math.inf:
            self.at(until_s, self._time_out, task, task.parkings)
        self._hub.switch()
        if self.is_over:
            raise greenlet.GreenletExit
        return task.was_woken

    def wake(self, task: Task) -> None:
        """What the task waited for is there."""
        if task.is_parked:
            task.is_parked = False
            task.was_woken = True
            self._make_runnable(task)

    def perhaps_switch(self) -> None:
        """A point at which other threads may go first, or this one may pause."""
        task = self.current
        if task is None or self.is_over:
            return
        self._calls += 1
        if self._calls >= MOST_CALLS:
            self.park(self.now_s + SPIN_S, "the processor, which it keeps busy")
        elif self._pausing.happens(self.pause):
            self.park(self.now_s + self._pausing.exponential(self.pause_s), "the processor")
        elif self._pausing.happens(self.switch):
            self._make_runnable(task)
            self._hub.switch()
            if self.is_over:
                raise greenlet.GreenletExit

    def stop(self, rank: int) -> None:
        """No task of the rank goes on, as after SIGSTOP, until :meth:`go_on`."""
        self._stopped.setdefault(rank, [])

    def go_on(self, rank: int) -> None:
        """Its tasks go on."""
        for task in self._stopped.pop(rank, []):
            self._make_runnable(task)

    def kill(self, rank: int) -> None:
        """No task of the rank ever goes on."""
        self._dead.add(rank)
        self._has_lost = True
        self._stopped.pop(rank, None)

    def is_dead(self, rank: int) -> bool:
        """Whether it was killed."""
        return rank in self._dead

    def run(self, until: Callable[[], bool], longest_s: float) -> None:
        """Let everything happen until ``until()`` holds, or for so long; Stuck if nothing can.

        It is asked at first, after a task has ended, and after a rank has been killed.
        """
        assert self._hub is greenlet.getcurrent()
        self._has_lost = True
        end_s = self.now_s + longest_s
        while self.now_s <= end_s:
            if self._has_lost:
                self._has_lost = False
                if until():
                    return
            if self.steps >= self._most_steps:
                raise TooLong(f"after {self.steps} steps, at {self.now_s - BEGIN_S:.3f} s")
            self._step()

    def end(self) -> None:
        """End all tasks that are left: each is taken down from where it waits."""
        self.is_over = True
        for task in self.tasks:
            if not task.is_over and task.greenlet:
                self.current = task
                task.greenlet.throw(greenlet.GreenletExit)
        self.current = None

    def _step(self) -> None:
        self.steps += 1
        is_due = bool(self._events) and self._events[0][0] <= self.now_s
        task = None if is_due else self._next_task()
        if task is not None:
            at_once = min(self._processors, 1 + len(self._runnable))
            task.ran_s += self._step_s
            self.now_s += self._step_s / at_once
            self._trace.update(STAMP.pack(self.now_s, task.number))
            self.current = task
            self._calls = 0
            task.greenlet.switch()
            self.current = None
            if task.is_over:
                self._has_lost = True
                for waiter in list(task.waiters):
                    self.wake(waiter)
        elif self._events:
            at_s, number, call, args = heapq.heappop(self._events)
            self.now_s = max(self.now_s, at_s)
            self._trace.update(STAMP.pack(self.now_s, number))
            call(*args)
        else:
            waiting = [task for task in self.tasks if not task.is_over]
            alive = [task for task in waiting if task.rank not in self._dead]
            raise Stuck(f"at {self.now_s - BEGIN_S:.3f} s nothing can go on: {alive}")

    def _next_task(self) -> Task | None:
        """One of those that can go on; of a rank that is stopped or dead none can."""
        while self._runnable:
            index = self._scheduling.below(len(self._runnable))
            task = self._runnable[index]
            self._runnable[index] = self._runnable[-1]
            self._runnable.pop()
            if task.rank in self._dead:
                continue
            if task.rank in self._stopped:
                self._stopped[task.rank].append(task)
                continue
            return task
        return None

    def _make_runnable(self, task: Task) -> None:
        self._runnable.append(task)

    def _time_out(self, task: Task, parking: int) -> None:
        if task.is_parked and task.parkings == parking:
            task.is_parked = False
            self._make_runnable(task)
