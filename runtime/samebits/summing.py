"""Sums of floats as sums of integers, over whatever runs all-reduces.

    submit ── exponents known? ──> integers ──> the engine's all-reduce ──> words ──┬─> floats
                 │ no: behind the sum                    (late ranks, any mode)     │
                 └ that will tell them                                              └─> again, then
                                                                                        floats

Every decision here follows from the sums of the words, which all ranks hold alike: whether a tensor
is summed again, and by which exponents the next sum of it goes. Sums are handed to the engine in
the order in which they are submitted, and are repeated in that order, too; so all ranks run the
same operations in the same order, although results arrive in another order on each.

A sum whose exponents still depend on one that is under way is held up, with all behind it. Nobody
waits for that on the caller's thread: it is handed over by this module's own thread, which also
repeats sums, and converts large results.

On a device with streams contributions are converted on the caller's current stream, as all that it
enqueues. What comes after the engine's sum needs the words on the host: so it is done by this
module's thread, on a stream of its own, and the caller's thread waits there for exponents.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import numpy as np
import torch

from latecomer.runtime.at_exit import close_at_exit, has_closed
from latecomer.runtime.executor.nccl.streams import Device, StreamEvent, device_of
from latecomer.runtime.health.watchdog import Watchdog
from latecomer.runtime.host import SimpleQueue, host
from latecomer.runtime.samebits.again import RepeatedTensors
from latecomer.runtime.samebits.blocks import (
    Exponents,
    Flags,
    Layout,
    Precision,
    Scales,
    exponents_of,
    misfits,
    next_exponents,
    wide_exponents,
)
from latecomer.runtime.samebits.contributions import Contributions, TensorExponents
from latecomer.runtime.samebits.conversion import DTYPES, holding, precision_of, to_floats
from latecomer.runtime.samebits.option import require_contributions
from latecomer.runtime.samebits.repetition import Repetition
from latecomer.runtime.samebits.travelling import Spare, Travelling, layout_of
from latecomer.runtime.work import AllReduceWork, CollectiveWork, require_summable
from latecomer.verify.errors import ArgumentError, LatecomerError

SMALL = 2**18  # elements that are converted at once on the thread that completes the all-reduce
CLOSE_S = 5.0  # how long closing waits for the sums that are under way
logger = logging.getLogger("latecomer")

T = TypeVar("T")
Start = Callable[[torch.Tensor], CollectiveWork]
"""Starts an all-reduce of a tensor of integers: the engine's ``submit``."""


@dataclass(eq=False)
class _Sum:
    """A sum from its submission to its result."""

    number: int
    work: CollectiveWork  # the caller's
    given: Contributions
    tensors: Sequence[TensorExponents]
    start: Start
    layout: Layout
    precision: Precision
    exponents: Exponents = field(init=False)  # with which it goes
    travelling: Travelling = field(init=False)
    converted: StreamEvent | None = None  # on a device: this rank's contributions are converted
    operation: int = 0  # the engine's number of it
    repeated: Flags = field(init=False)  # by tensor
    following: Exponents = field(init=False)  # of the next sum, where this one is not repeated


class SameBits:
    """Sums tensors of floats so that the bits depend on nothing but the contributions.

    Args:
        contributions: how many each sum has, over all ranks: 1 to 2,047.
        device: on which the tensors are: the CPU, or one with streams.
        repetition: how sums are done again.
        watchdog: is told what goes wrong here; the engine's.

    Raises:
        ArgumentError: too many contributions.
    """

    def __init__(
        self,
        contributions: int,
        device: Device | torch.device | str,
        repetition: Repetition,
        watchdog: Watchdog | None,
    ) -> None:
        require_contributions(contributions)
        self.contributions = contributions
        self.sums = 0  # submitted so far
        self.repeated = 0  # of these, how many had a tensor that was summed again
        self._streams = device_of(device)
        self._device = self._streams.tensors if self._streams else torch.device(str(device))
        self._stream = self._streams.stream() if self._streams else None
        self._repetition = repetition
        self._watchdog = watchdog
        self._order = host.RLock()  # held while a sum, or what is not one, goes to the engine
        self._state = host.Condition()  # guards all that follows
        self._held_up: deque[Callable[[], bool]] = deque()  # false: it has to wait on
        self._open: dict[int, _Sum] = {}
        self._most_open = 0  # at once
        self._spare = Spare()
        self._arrived: dict[int, _Sum | None] = {}  # whose words are known; None: failed
        self._next_to_judge = 0
        self._is_closed = False
        self._tasks: SimpleQueue[Callable[[], None] | None] = host.SimpleQueue()
        self._thread = host.Thread(target=self._run, name="latecomer-bits", daemon=True)
        self._thread.start()
        close_at_exit(self)

    def submit(
        self,
        given: Contributions,
        tensors: Sequence[TensorExponents],
        start: Start,
        *,
        average: bool,
    ) -> CollectiveWork:
        """Start the sum of all ranks' contributions, in place of ``given.flat``; returns at once.

        All ranks submit the same tensors in the same order. The average divides by the number of
        contributions, once, in the end.

        Raises:
            TensorError: a tensor that can't be summed so.
            RankFailure: the engine has failed before.
            LatecomerError: this is closed. The work fails with it where the number of contributions
                is another than was agreed on.
        """
        require_summable(given.flat, self._device, average, DTYPES)
        if self._streams is not None and self._streams.is_capturing():
            requirement = "needs the host for each sum, which the replay of a CUDA graph leaves out"
            raise ArgumentError("bits", "same", requirement, "Sum outside of the capture")
        with self._order:
            self._require_open()
            if self._streams is not None:
                with self._state:
                    self._state.wait_for(lambda: all(tensor.are_known for tensor in tensors))
            number = self.sums
            self.sums += 1
            precision = precision_of(given.flat.dtype, self.contributions)
            new = _Sum(
                number=number,
                work=AllReduceWork(number, given.flat, average),
                given=given,
                tensors=tensors,
                start=start,
                layout=layout_of(given.sizes, precision.block),
                precision=precision,
            )
            with self._state:
                self._open[number] = new
                self._most_open = max(self._most_open, len(self._open))
            self._in_order(partial(self._begin, new))
        return new.work

    def pass_on(self, tensor: torch.Tensor, start: Start) -> CollectiveWork:
        """Start what is no sum of floats as it is, behind the sums before it."""
        with self._order:
            self._require_open()
            with self._state:
                is_free = not self._held_up
            if is_free:
                return start(tensor)
            work = AllReduceWork(self.sums, tensor, average=False)

            def hand_over() -> bool:
                try:
                    start(tensor).then(work.settle)
                except LatecomerError as error:
                    work.settle(error)
                return True

            self._in_order(hand_over)
        return work

    def close(self, *, at_once: bool = False) -> None:
        """Release the thread; call it before the engine's. What is not done after a while fails."""
        has_closed(self)
        with self._order:
            if self._is_closed:
                return
            self._is_closed = True
        if not at_once:
            with self._state:
                self._state.wait_for(lambda: not self._open, CLOSE_S)
        self._tasks.put(None)
        self._thread.join(0.0 if at_once else CLOSE_S)
        if self._thread.is_alive():
            self._repetition.abort()
            self._thread.join(CLOSE_S)
        self._repetition.close()
        closed = LatecomerError("the sum was not done when bits='same' was closed")
        for each in list(self._open.values()):
            self._end(each, closed)

    def _require_open(self) -> None:
        if self._watchdog is not None and self._watchdog.failure is not None:
            raise self._watchdog.failure
        if self._is_closed:
            raise LatecomerError("bits='same' was closed: nothing can be summed any more")

    def _in_order(self, hand_over: Callable[[], bool]) -> None:
        """Hand it to the engine now, or behind what is held up; who calls holds ``_order``."""
        with self._state:
            if self._held_up:
                self._held_up.append(hand_over)
                return
        if not hand_over():
            with self._state:
                self._held_up.append(hand_over)
            self._tasks.put(self._release)  # its exponents may have become known meanwhile

    def _release(self) -> None:
        """Hand over what is held up no longer."""
        with self._order:
            while self._held_up:
                if not self._held_up[0]():
                    return
                with self._state:
                    self._held_up.popleft()

    def _begin(self, new: _Sum) -> bool:
        """Convert a sum's contributions and start it; false if its exponents are not known yet."""
        if not all(tensor.are_known for tensor in new.tensors):
            return False
        for tensor in new.tensors:
            tensor.enter()
        try:
            self._start(new)
        except LatecomerError as error:
            self._failed(new, error)
        except Exception as error:
            self._broke(new, error)
        return True

    def _start(self, new: _Sum) -> None:
        given = new.given
        new.exponents = np.concatenate([tensor.values for tensor in new.tensors])
        with self._state:
            new.travelling = self._spare.take(
                new.layout, new.precision, given.flat.dtype, given.flat.device
            )
        if self._streams is None:
            self._convert(new)
        else:
            current = self._streams.current()
            current.launch(partial(self._convert, new))
            new.converted = current.record()
        inner = new.start(new.travelling.flat)
        new.operation = inner.number
        inner.then(partial(self._summed, new))

    def _convert(self, new: _Sum) -> None:
        """Put this rank's contributions into what travels."""
        given = new.given
        new.travelling.put(given.flat, new.exponents, given.count)
        for tensor, others in given.others.items():
            for other in others:
                new.travelling.add(other, tensor, new.exponents)

    def _summed(self, done: _Sum, error: LatecomerError | None) -> None:
        """The engine has a sum's integers, or has failed; on a thread of the engine's."""
        if error is not None:
            self._failed(done, error)
        elif self._streams is None:
            self._guarded(done, self._read)
        else:
            self._tasks.put(partial(self._guarded, done, self._read))

    def _read(self, done: _Sum) -> None:
        """Read what the words say, and do what follows from it."""
        words, count = self._run_behind(done, done.travelling.words_and_count)
        if count != self.contributions:
            self._failed(done, _miscounted(count, self.contributions))
            return
        done.repeated = misfits(words, done.exponents, done.layout, done.precision)
        done.following = next_exponents(words, done.exponents, done.layout, done.precision)
        self._judge(done.number, done)
        if done.repeated.any():
            return  # its turn comes
        if done.layout.elements <= SMALL or self._streams is not None:
            self._finish(done)
        else:
            self._tasks.put(partial(self._guarded, done, self._finish))

    def _run_behind(self, done: _Sum, call: Callable[[], T]) -> T:
        """Call it, on a device on our stream, behind the conversion of what was contributed."""
        if self._stream is None:
            return call()
        results: list[T] = []
        self._stream.wait(done.converted)
        self._stream.launch(lambda: results.append(call()))
        self._stream.keep(done.travelling.flat)
        self._stream.keep(done.given.flat)
        self._stream.synchronize()
        return results[0]

    def _judge(self, number: int, done: _Sum | None) -> None:
        """It is known whether a sum is repeated: so those are, in order, for which all is known."""
        with self._state:
            if number < self._next_to_judge:
                return  # it broke later
            self._arrived[number] = done
            while self._next_to_judge in self._arrived:
                each = self._arrived.pop(self._next_to_judge)
                self._next_to_judge += 1
                if each is not None and each.repeated.any():
                    self._tasks.put(partial(self._guarded, each, self._repeat))

    def _repeat(self, done: _Sum) -> None:
        """Sum the tensors that did not fit once more, with as many bits as can be."""
        chosen = RepeatedTensors(done.given, done.layout, np.flatnonzero(done.repeated).tolist())
        greatest = self._run_behind(done, chosen.magnitudes)
        self._repetition.maximum(greatest, done.operation)

        tops = greatest.view(holding(done.given.flat.dtype)).numpy()
        is_finite = np.isfinite(tops)
        _, lengths = np.frexp(np.where(is_finite, tops, 0.0))
        magnitudes = lengths.astype(np.int64)
        exponents = wide_exponents(magnitudes, done.precision)
        scales = np.where(is_finite, np.ldexp(1.0, exponents), 0.0)

        totals = self._run_behind(done, partial(chosen.wide_integers, scales))
        self._repetition.total(totals, done.operation)
        self.repeated += 1
        logger.debug("bits='same': sum %d was done again", done.number)

        before = np.concatenate([done.tensors[tensor].values for tensor in chosen.tensors])
        is_known = is_finite & (tops > 0)
        learned = exponents_of(magnitudes, is_known, before, chosen.layout, done.precision)
        for of_blocks, of_chosen_blocks in chosen.blocks():
            done.following[of_blocks] = learned[of_chosen_blocks]
        factors = np.where(is_finite, self._factors(exponents, done.work.average), np.nan)
        self._finish(done, partial(chosen.put, totals, factors))

    def _finish(self, done: _Sum, put_repeated: Callable[[], None] = lambda: None) -> None:
        """Put the result in place, and let the next sum of these tensors have its exponents."""
        factors = self._factors(done.exponents, done.work.average)

        def put() -> None:
            to_floats(done.travelling.integers(), done.layout, factors, done.given.flat)
            put_repeated()

        self._run_behind(done, put)
        for index, tensor in enumerate(done.tensors):
            _, of_blocks = done.layout.of_tensor(index)
            tensor.values = done.following[of_blocks].copy()
        with self._state:  # what has failed is not given back: it may still be written to
            self._spare.give_back(done.travelling, self._most_open)
        self._end(done)

    def _factors(self, exponents: Exponents, average: bool) -> Scales:
        divisor = self.contributions if average else 1
        factors: Scales = np.ldexp(1.0 / divisor, -exponents)
        return factors

    def _failed(self, failed: _Sum, error: LatecomerError) -> None:
        self._judge(failed.number, None)
        self._end(failed, error)

    def _broke(self, failed: _Sum, error: Exception) -> None:
        """Something that must not happen did: this rank is to blame, and all learn of it."""
        problem = LatecomerError(f"bits='same' broke: {error!r}")
        problem.__cause__ = error
        self._failed(failed, problem)
        if self._watchdog is not None:
            self._watchdog.broke(error)

    def _end(self, ended: _Sum, error: LatecomerError | None = None) -> None:
        """Settle a sum, once, and let go on what was held up behind it."""
        with self._state:
            if self._open.pop(ended.number, None) is None:
                return
            for tensor in ended.tensors:
                tensor.is_under_way = False
            if self._held_up:
                self._tasks.put(self._release)
            self._state.notify_all()
        ended.work.settle(error)

    def _guarded(self, done: _Sum, act: Callable[..., None], *args: object) -> None:
        try:
            act(done, *args)
        except LatecomerError as error:
            self._end(done, error)
        except Exception as error:
            self._broke(done, error)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()


def _miscounted(count: int, contributions: int) -> LatecomerError:
    text = f"{count} contributions were summed, and {contributions} were agreed on"
    remedy = (
        "contributions= counts the microbatches of all ranks in a step; all but the last of each "
        "rank run forward and backward within model.no_sync()"
    )
    return LatecomerError(f"{text}: {remedy}")
