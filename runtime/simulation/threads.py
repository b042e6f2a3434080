"""Threads, and what they wait for, of a simulated host; as those of ``threading`` and ``queue``.

Every call is a point at which others may go first. Where real threads could meet between any two
lines, these can only meet here: at calls of the host.
"""

from __future__ import annotations

import functools
import math
import queue
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from latecomer.runtime.simulation.world import SimulationError, Task, World


class Waiters:
    """Tasks that wait for the same thing, in the order in which they came."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._tasks: deque[Task] = deque()

    def wait(self, timeout_s: float | None, waits_for: str) -> bool:
        """Wait until woken (true) or so long (false)."""
        task = self._world.current
        assert task is not None
        until_s = math.inf if timeout_s is None else self._world.now_s + max(0.0, timeout_s)
        self._tasks.append(task)
        try:
            return self._world.park(until_s, waits_for)
        finally:
            if task in self._tasks:
                self._tasks.remove(task)

    def wait_until(
        self, holds: Callable[[], object], timeout_s: float | None, waits_for: str
    ) -> bool:
        """Wait until something holds (true), looking whenever woken, or so long (false)."""
        until_s = math.inf if timeout_s is None else self._world.now_s + timeout_s
        while not holds():
            if self._world.now_s >= until_s:
                return False
            self.wait(None if timeout_s is None else until_s - self._world.now_s, waits_for)
        return True

    def wake(self, count: int | None = None) -> None:
        """Wake so many of them, or all."""
        left = len(self._tasks) if count is None else count
        while self._tasks and left > 0:
            self._world.wake(self._tasks.popleft())
            left -= 1


def _limit_s(blocking: bool, timeout: float) -> float | None:
    """How long a lock is waited for, from the arguments of ``acquire``; None: for ever."""
    if not blocking:
        return 0.0
    return None if timeout < 0 else timeout


class Threads:
    """What a simulated host has in place of the modules ``threading`` and ``queue``."""

    def __init__(self, world: World) -> None:
        self._world = world

    def attributes(self) -> dict[str, Any]:
        """By the names that the host has for them."""
        world = self._world
        return {
            "Thread": lambda *args, **named: Thread(world, *args, **named),
            "Lock": lambda: Lock(world),
            "RLock": lambda: RLock(world),
            "Condition": lambda lock=None: Condition(world, lock),
            "Event": lambda: Event(world),
            "Queue": lambda: Queue(world),
            "SimpleQueue": lambda: SimpleQueue(world),
            "ThreadLocal": lambda: ThreadLocal(world),
            "current_thread": self.current_thread,
            "thread_number": self.thread_number,
        }

    def current_thread(self) -> Any:
        """The thread that runs."""
        task = self._world.current
        return None if task is None else task.thread

    def thread_number(self) -> int:
        """Its number."""
        task = self._world.current
        return 0 if task is None else task.number


class Thread:
    """As ``threading.Thread``."""

    def __init__(
        self,
        world: World,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        assert target is not None
        self._world = world
        self._call: Callable[[], object] = functools.partial(target, *args, **(kwargs or {}))
        self._task: Task | None = None
        self.name = name or "thread"
        self.daemon = daemon

    def start(self) -> None:
        """Begin; on the rank of who starts it."""
        starter = self._world.current
        assert starter is not None
        self.start_on(starter.rank)
        self._world.perhaps_switch()

    def start_on(self, rank: int) -> Task:
        """Begin on a rank."""
        self._task = self._world.start(rank, self.name, self._run)
        self._task.thread = self
        return self._task

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, or so long."""
        assert self._task is not None
        world = self._world
        until_s = math.inf if timeout is None else world.now_s + timeout
        waiter = world.current
        assert waiter is not None
        while not self._task.is_over and world.now_s < until_s:
            self._task.waiters.append(waiter)
            try:
                world.park(until_s, f"the end of {self.name}")
            finally:
                self._task.waiters.remove(waiter)

    def is_alive(self) -> bool:
        """Whether it has begun and not ended."""
        return self._task is not None and not self._task.is_over

    @property
    def ident(self) -> int | None:
        """Its number, once it has begun."""
        return None if self._task is None else self._task.number

    def _run(self) -> None:
        self._call()


class Lock:
    """As ``threading.Lock``."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._is_held = False
        self._waiters = Waiters(world)

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take it; false if it is not to be had."""
        world = self._world
        world.perhaps_switch()
        is_free = self._waiters.wait_until(
            lambda: not self._is_held or world.is_over, _limit_s(blocking, timeout), "a lock"
        )
        if is_free:
            self._is_held = True
        return is_free

    def release(self) -> None:
        """Let another have it."""
        self._is_held = False
        self._waiters.wake(1)

    def locked(self) -> bool:
        """Whether somebody has it."""
        return self._is_held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


class RLock:
    """As ``threading.RLock``."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._owner: Task | None = None
        self._count = 0
        self._waiters = Waiters(world)

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take it once more, or wait for it; false if it is not to be had."""
        world = self._world
        if self._owner is not None and self._owner is world.current:
            self._count += 1
            return True
        world.perhaps_switch()
        is_free = self._waiters.wait_until(
            lambda: self._owner is None or world.is_over, _limit_s(blocking, timeout), "a lock"
        )
        if is_free:
            self._owner = world.current
            self._count = 1
        return is_free

    def release(self) -> None:
        """Give it back once."""
        if self._owner is not self._world.current and not self._world.is_over:
            raise SimulationError("a lock is released by who does not have it")
        self._count -= 1
        if self._count == 0:
            self._owner = None
            self._waiters.wake(1)

    def give_up(self) -> int:
        """Give it back altogether; how often it was held."""
        count = self._count
        self._count = 0
        self._owner = None
        self._waiters.wake(1)
        return count

    def take_again(self, count: int) -> None:
        """Take it as often as it was held."""
        self.acquire()
        self._count = count

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()


class Condition:
    """As ``threading.Condition``."""

    def __init__(self, world: World, lock: RLock | None = None) -> None:
        self._world = world
        self._lock = lock or RLock(world)
        self._waiters = Waiters(world)
        self.acquire = self._lock.acquire
        self.release = self._lock.release

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until notified (true) or so long (false)."""
        count = self._lock.give_up()
        try:
            return self._waiters.wait(timeout, "a condition")
        finally:
            self._lock.take_again(count)

    def wait_for(self, holds: Callable[[], Any], timeout: float | None = None) -> Any:
        """Wait until something holds; what it is then."""
        world = self._world
        until_s = math.inf if timeout is None else world.now_s + timeout
        result = holds()
        while not result and world.now_s < until_s:
            self.wait(None if timeout is None else until_s - world.now_s)
            result = holds()
        return result

    def notify(self, n: int = 1) -> None:
        """Wake so many of those that wait."""
        self._waiters.wake(n)

    def notify_all(self) -> None:
        """Wake all that wait."""
        self._waiters.wake()

    def __enter__(self) -> bool:
        return self._lock.__enter__()

    def __exit__(self, *error: object) -> None:
        self._lock.__exit__(*error)


class Event:
    """As ``threading.Event``."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._is_set = False
        self._waiters = Waiters(world)
        world.perhaps_switch()

    def is_set(self) -> bool:
        """Whether it is set."""
        return self._is_set

    def set(self) -> None:
        """Set it, for all that wait."""
        self._is_set = True
        self._waiters.wake()
        self._world.perhaps_switch()

    def clear(self) -> None:
        """It is set no more."""
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set, or so long; whether it is."""
        self._world.perhaps_switch()
        return self._waiters.wait_until(self.is_set, timeout, "an event")


class SimpleQueue:
    """As ``queue.SimpleQueue``."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._items: deque[Any] = deque()
        self._waiters = Waiters(world)

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Append something."""
        self._items.append(item)
        self._waiters.wake(1)
        self._world.perhaps_switch()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """The oldest, when there is one; queue.Empty after so long."""
        self._world.perhaps_switch()
        limit_s = timeout if block else 0.0
        if not self._waiters.wait_until(lambda: self._items, limit_s, "a queue"):
            raise queue.Empty
        return self._items.popleft()

    def get_nowait(self) -> Any:
        """The oldest, or queue.Empty."""
        return self.get(block=False)

    put_nowait = put

    def empty(self) -> bool:
        """Whether there is nothing."""
        return not self._items

    def qsize(self) -> int:
        """How much there is."""
        return len(self._items)


class Queue(SimpleQueue):
    """As ``queue.Queue`` without a limit: it counts what is still being worked at."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.unfinished_tasks = 0
        self.all_tasks_done = Condition(world)

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        """Append something to work at."""
        self.unfinished_tasks += 1
        super().put(item)

    def task_done(self) -> None:
        """What was taken is worked off."""
        self.unfinished_tasks -= 1
        if not self.unfinished_tasks:
            self.all_tasks_done.notify_all()


class ThreadLocal:
    """As ``threading.local``."""

    def __init__(self, world: World) -> None:
        object.__setattr__(self, "_world", world)
        object.__setattr__(self, "_of_task", {})

    def _values(self) -> dict[str, Any]:
        task = self._world.current
        values: dict[str, Any] = self._of_task.setdefault(task, {})
        return values

    def __getattr__(self, name: str) -> Any:
        try:
            return self._values()[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self._values()[name] = value
