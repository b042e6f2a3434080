"""Training that a replica's death does not end: the others finish the step, and go on.

    from latecomer import elastic

    job = elastic.Job(model, optimizer, store="10.0.0.1:29500", replica=2, replicas=4,
                      microbatches=8, bits="same")
    for step in job.steps(1000):
        for microbatch in step:                       # those that this replica has to compute
            inputs, targets = batch(step.number, microbatch)
            loss(model(inputs), targets).backward()
        optimizer.step()                              # gradients are averages over all of them

A step is done when its averages are there on all. If a replica dies before, the inner loop hands
out to the others what it owes, and all is summed again; a replica that comes back begins with the
parameters of the others. With ``bits="same"`` the parameters are those of a run in which nobody
died, bit for bit: what is summed, microbatch by microbatch, is the same, whoever has computed it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any, Protocol

import torch

from latecomer.runtime.at_exit import close_at_exit, has_closed
from latecomer.runtime.elastic.gradients import buckets_of
from latecomer.runtime.elastic.group import Group
from latecomer.runtime.elastic.state import give, pack, receive, unpack
from latecomer.runtime.elastic.succession import LeftBehind
from latecomer.runtime.elastic.sums import Exponents, FloatSums, SameBitsSums, Sums
from latecomer.runtime.elastic.view import Standing, View
from latecomer.runtime.host import host
from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.runtime.policy.engines import ModeEngine
from latecomer.runtime.policy.options import Mode, Options
from latecomer.runtime.samebits.conversion import conversions_on
from latecomer.runtime.samebits.option import Bits, require_contributions
from latecomer.runtime.torch_versions import Store
from latecomer.runtime.work import CollectiveWork
from latecomer.verify.errors import ArgumentError, LatecomerError, RankFailure

INTEGER_OF_SIZE = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes

logger = logging.getLogger("latecomer")


class Stateful(Protocol):
    """What training needs beside its data: a model, an optimizer, a scheduler."""

    def state_dict(self) -> dict[str, Any]:
        """All of it."""

    def load_state_dict(self, state: dict[str, Any]) -> Any:
        """Go on from it."""


class Step:
    """A step of the job: iterating over it gives the microbatches that this replica computes.

    When the iteration ends, the parameters' gradients are the averages over all microbatches.
    """

    def __init__(self, job: Job, number: int) -> None:
        self.number = number  # may change in the iteration, where others have gone on without this
        self._job = job

    def __iter__(self) -> Iterator[int]:
        return self._job._microbatches_of(self)


class Job:
    """One replica's part in a training.

    Args:
        model: not wrapped; the same parameters on all replicas in the beginning, in any precision.
        optimizer: whose state a replica that comes back needs.
        store: where replicas find each other: ``host:port`` of a ``torch.distributed.TCPStore``
            that outlives them, or a torch store. Nothing else uses it.
        replica: this one's number, 0 to ``replicas - 1``; a process that takes its place has it.
        replicas: how many there are at the start, and at most.
        microbatches: in each step, over all replicas.
        mode: as for ``ddp.attach``; not ``static``.
        bits: as for ``ddp.attach``.
        silence_s: a replica that gives no sign of life for so long counts as dead.
        timeout_s: how long a replica may be late, as long as it lives.
        join_timeout_s: how long replicas wait for each other when the group changes.
        also: what else has a state that replicas have in common, by name.

    Raises:
        ArgumentError: a bad argument.
        RankFailure: replicas that did not come in time.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        store: Store | str,
        replica: int,
        replicas: int,
        microbatches: int,
        mode: Mode = "auto",
        bits: Bits = "any",
        silence_s: float = 1.0,
        timeout_s: float = 300.0,
        join_timeout_s: float = 30.0,
        also: Mapping[str, Stateful] | None = None,
    ) -> None:
        require_contributions(microbatches)
        if not 0 <= replica < replicas:
            raise ArgumentError("replica", replica, f"must be in 0..{replicas - 1}")
        self._buckets = buckets_of(model)
        if not self._buckets:
            raise ArgumentError("model", type(model).__name__, "must have parameters to train")
        self._model = model
        self._states: dict[str, Stateful] = {
            "model": model,
            "optimizer": optimizer,
            **(also or {}),
        }
        self._device = self._buckets[0].parameters[0].device
        self._microbatches = microbatches
        self._bits = bits
        # sums of floats have none
        self._exponents = Exponents(microbatches, self._buckets if bits == "same" else [])
        self._exponents_when_done = self._exponents.as_tensor()
        if bits == "same":
            conversions_on(self._device)  # compiled now: in a step others would wait for that

        self._lock = host.Lock()  # guards what follows
        self._done = 0  # steps whose results this replica has
        self._results: list[torch.Tensor] = []  # of the last one, by bucket
        self._has_state = True
        self._ended = -1  # the number of the last view that has ended
        self._running: tuple[View, Sums] | None = None

        self._next = 0  # the step that comes next in :meth:`steps`
        self._unfinished = ""  # the step that has come, in words
        found = _opened(store, join_timeout_s)
        self._group = Group(
            found,
            replica,
            replicas,
            microbatches=microbatches,
            options=Options(mode),
            device=self._device,
            timeout_s=timeout_s,
            silence_s=silence_s,
            join_timeout_s=join_timeout_s,
            standing=self._standing,
            begins=self._begins,
        )
        try:
            self._view = self._group.join()
            self._wait_for_state()
        except BaseException:
            self.close()
            raise
        self._next = self._done - 1 if self._view.newcomers else 0

    @property
    def view(self) -> View:
        """Who takes part, as of the last step."""
        return self._view

    def steps(self, count: int) -> Iterator[Step]:
        """Steps until ``count`` are done, from the one at which the job is."""
        while self._next < count:
            step = Step(self, self._next)
            self._unfinished = f"step {step.number}"
            yield step
            if self._done <= step.number:
                requirement = "must be iterated over to its end: the others wait for it"
                raise ArgumentError("step", step.number, requirement)
            self._unfinished = ""
            self._next = step.number + 1

    def close(self, *, at_once: bool = False) -> None:
        """Leave, for good; in the midst of a step the others learn it, and do it without this one.

        ``at_once`` makes no difference: nothing is waited for that could take long.
        """
        has_closed(self)
        is_unfinished = bool(self._unfinished)
        if is_unfinished:
            replica = self._group.replica
            self._group.abort(f"replica {replica} ends in the midst of {self._unfinished}")
        with self._lock:
            running = self._running
        if running is not None:
            _, sums = running
            sums.close()
        self._group.close(at_once=is_unfinished)

    def _microbatches_of(self, step: Step) -> Iterator[int]:
        """What this replica has to compute, until the step is done."""
        kept: dict[int, list[torch.Tensor]] = {}
        while self._done <= step.number:
            view = self._view
            own = view.microbatches(self._group.replica, step.number)
            for microbatch in own:
                if microbatch in kept:
                    continue
                self._model.zero_grad(set_to_none=True)
                yield microbatch
                kept[microbatch] = [bucket.take() for bucket in self._buckets]
            try:
                grows = self._average(view, step.number, [kept[each] for each in own])
                if grows:
                    self._group.grow(view.number)
                    self._view = self._group.view_after(view.number)
            except LeftBehind:
                self._come_back(step)
            except LatecomerError as failure:
                # a rank's failure ends the view, though that may be heard of a moment later
                if not isinstance(failure, RankFailure) and not self._has_ended(view):
                    raise
                logger.warning("step %d is interrupted: %s", step.number, failure)
                self._change_view(step, view)
        for bucket, result in zip(self._buckets, self._results, strict=True):
            bucket.put(result)

    def _has_ended(self, view: View) -> bool:
        """Whether an operation of this view may have failed for that reason."""
        with self._lock:
            return self._ended >= view.number

    def _change_view(self, step: Step, view: View) -> None:
        try:
            self._view = self._group.view_after(view.number)
        except LeftBehind:
            self._come_back(step)

    def _come_back(self, step: Step) -> None:
        """The others have gone on: take part again, with the state that they have now."""
        with self._lock:
            self._has_state = False
        self._view = self._group.apply()
        self._wait_for_state()
        step.number = self._done - 1

    def _wait_for_state(self) -> None:
        """Apply again where a view ends that has taken this replica in and given it no state."""
        while not self._has_state:
            try:
                self._view = self._group.view_after(self._view.number)
            except LeftBehind:
                self._view = self._group.apply()

    def _average(self, view: View, step: int, kept: list[list[torch.Tensor]]) -> bool:
        """Average over all replicas; whether one waits to be taken in. RankFailure: not done."""
        with self._lock:
            running = self._running
        if running is None or running[0].number != view.number:
            raise RankFailure([], f"view {view.number} has ended")
        _, sums = running

        works: list[CollectiveWork] = []
        results = []
        for index, bucket in enumerate(self._buckets):
            result = bucket.empty()
            results.append(result)
            works.append(sums.average(bucket, [each[index] for each in kept], result))
        growing = torch.tensor([int(self._group.wants_to_grow)], dtype=torch.int32)
        growing = growing.to(self._device)
        works.append(sums.total(growing))
        for work in works:
            work.wait()

        with self._lock:
            if self._ended >= view.number:  # the others count this replica as behind
                raise RankFailure([], f"view {view.number} has ended")
            self._take(step + 1, results)
        return bool(growing.item())

    def _take(self, done: int, results: list[torch.Tensor]) -> None:
        """So many steps are done, the last one with these results; under the lock."""
        self._done = done
        self._results = results
        self._exponents_when_done = self._exponents.as_tensor()

    def _standing(self, number: int) -> Standing:
        with self._lock:
            self._ended = max(self._ended, number)
            return Standing(done=self._done, has_state=self._has_state, grows=False)

    def _begins(self, view: View, engine: ModeEngine, exchange: StoreExchange) -> None:
        """A view begins: who is behind in it gets what it lacks."""
        with self._lock:
            before = self._running
            self._running = None
        if before is not None:
            before[1].close()
        self._exponents.load_tensor(self._exponents_when_done)
        sums: Sums
        if self._bits == "same":
            sums = SameBitsSums(engine, exchange, self._exponents, self._device)
        else:
            sums = FloatSums(engine, self._microbatches)
        with self._lock:
            self._running = view, sums
        close_at_exit(self)  # before the view's engine
        if view.behind:
            self._hand_over(view, sums, exchange)

    def _hand_over(self, view: View, sums: Sums, exchange: StoreExchange) -> None:
        """The results of the last step, from one who has them to those behind.

        They are summed as integers, zeros from all but the giver: so not even a zero's sign
        changes.
        """
        rank = exchange.rank
        if rank in view.newcomers:
            with self._lock:
                self._has_state = False
        gives = rank == view.giver
        if gives and view.newcomers:
            state = {name: each.state_dict() for name, each in self._states.items()}
            give(pack(state), self._group.address, exchange, len(view.newcomers))

        handed = [bucket.zeros() for bucket in self._buckets]
        exponents = self._exponents.as_tensor()
        if gives:
            for tensor, result in zip(handed, self._results, strict=True):
                tensor.copy_(result)
        else:
            exponents.zero_()
        works = [sums.total(tensor.view(INTEGER_OF_SIZE[tensor.itemsize])) for tensor in handed]
        works.append(sums.total(exponents))
        if rank not in view.behind:
            return

        if rank in view.newcomers:
            received = unpack(receive(view.giver, exchange))
            for name, each in self._states.items():
                each.load_state_dict(received[name])
        for work in works:
            work.wait()
        self._exponents.load_tensor(exponents)
        with self._lock:
            self._has_state = True
            self._take(view.step, handed)


def _opened(store: Store | str, limit_s: float) -> Store:
    if not isinstance(store, str):
        return store
    host_name, _, port = store.rpartition(":")
    if not host_name or not port.isdecimal():
        raise ArgumentError("store", store, "must be HOST:PORT, or a torch store")
    try:
        opened: Store = host.open_store(store, timedelta(seconds=limit_s))
    except RuntimeError as error:
        reason = str(error).split("\n", 1)[0]
        raise LatecomerError(f"no store answers at {store}: {reason}") from None
    return opened
