"""Adaptation: measure every step, notice a link that changed, plan again, change over together.

On every rank a worker thread writes this rank's report of each step to the store and proves what
is proposed, so the training thread only looks at a key or two between steps. On rank 0 the worker
also gathers the reports, judges every link (``runtime.pipeline.detector``), has a schedule planned
for what was measured, and proposes it if the verifier's makespan says that it pays
(``runtime.pipeline.replan``). The change itself is ``runtime.pipeline.switch``.

Every decision is an event with its reason, also where nothing is done.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from runtime.network.store_exchange import within
from runtime.pipeline import timing as measure
from runtime.pipeline.adaptation import Adaptation, Event
from runtime.pipeline.load import VerifiedPipeline, load, require_same_shape
from runtime.pipeline.recorder import StepRecord
from runtime.pipeline.replan import Replanner
from runtime.pipeline.switch import COORDINATOR, Proposal, SwitchMember
from runtime.torch_versions import Store
from verify.errors import LatecomerError
from verify.pipeline import decode

RING = 4
"""Reports of so many steps are kept in the store."""
POLL_S = 0.002
GATHER_S = 5.0

logger = logging.getLogger("latecomer")


class StoreKeys:
    """Keys and values in a torch store.

    Args:
        limit_s: how long the store may take to answer.

    Both raise RankFailure, which names no rank, where it is gone.
    """

    def __init__(self, store: Store, limit_s: float) -> None:
        self._store, self._limit_s = store, limit_s

    def put(self, key: str, value: bytes) -> None:
        """Write."""
        text: Any = b"=" + value  # an empty value is no value; the stub knows strings only
        within(self._limit_s, lambda: self._store.set(key, text))

    def see(self, key: str) -> bytes | None:
        """What is written, if it is."""
        store = self._store
        return within(
            self._limit_s,
            lambda: bytes(store.get(key))[1:] if store.check([key]) else None,
        )


class Adapter:
    """One rank's part of the adaptation.

    Args:
        adaptation: how.
        store: of the pipeline, under a prefix of its own.
        rank, size: place in the pipeline.
        verified: the schedule that runs.
        failed: why the pipeline has failed, if it has.
        decision_s: how long to wait for the coordinator's decision, and for the store.
    """

    def __init__(
        self,
        adaptation: Adaptation,
        store: Store,
        rank: int,
        size: int,
        verified: VerifiedPipeline,
        failed: Callable[[], LatecomerError | None],
        decision_s: float,
    ) -> None:
        self.events: list[Event] = []
        self._rank, self._size = rank, size
        self._keys = StoreKeys(store, decision_s)
        self._verified, self._failed, self._decision_s = verified, failed, decision_s
        self._member = SwitchMember(self._keys, rank)
        self._lock = threading.Lock()
        self._prepared: dict[int, VerifiedPipeline] = {}
        self._replanner = (
            Replanner(adaptation, self._keys, size, lambda: self._verified, self.tell)
            if rank == COORDINATOR
            else None
        )
        self._jobs: queue.SimpleQueue[StepRecord | Proposal | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="latecomer-adapt", daemon=True)
        self._thread.start()

    def boundary(self, step: int) -> VerifiedPipeline | None:
        """Before step ``step`` begins, on the training thread: the schedule to change to, if any.

        Raises:
            LatecomerError: the pipeline failed while this rank waited for the decision, or the
                store is gone.
            TimeoutError: the coordinator did not decide.
        """
        if self._replanner is not None:
            self._replanner.boundary(step)
        proposal = self._member.notice(step)
        if proposal is not None:
            self._jobs.put(proposal)
        with self._lock:
            proposal = self._member.change(step, self._await)
        if proposal is None:
            return None
        self._verified = self._prepared.pop(proposal.number)
        self._prepared.clear()
        self.tell(step, "switched", f"all ranks run {self._verified.name} from step {step} on")
        if self._replanner is not None:
            self._replanner.switched()
        return self._verified

    def after(self, record: StepRecord) -> None:
        """A step is over."""
        self._jobs.put(record)

    def close(self) -> None:
        """End the worker."""
        self._jobs.put(None)
        self._thread.join(timeout=GATHER_S)

    def tell(self, step: int, kind: str, text: str) -> None:
        """Add an event."""
        self.events.append(Event(step, kind, text, time.monotonic()))
        logger.info("rank %d, step %d: %s: %s", self._rank, step, kind, text)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                if isinstance(job, Proposal):
                    self._prove(job)
                else:
                    self._report(job)
            except Exception as error:  # adaptation is a service: training goes on without it
                if self._failed() is None:
                    self.tell(-1, "refused", f"adaptation failed: {error!r}")
                    logger.exception("rank %d: adaptation", self._rank)

    def _prove(self, proposal: Proposal) -> None:
        """Vote on a proposal, after proving it here."""
        problem = ""
        try:
            verified = load(decode(proposal.schedule, f"proposal {proposal.number}"))
            require_same_shape(verified, self._verified)
            # the same object that was proved, under the name by which events call it
            self._prepared[proposal.number] = VerifiedPipeline(
                verified.schedule, verified.report, f"proposal {proposal.number}"
            )
            _ = self._prepared[proposal.number].complete  # lowered here, not between steps
        except LatecomerError as error:
            problem = str(error)
        with self._lock:
            self._member.vote(proposal, problem)

    def _report(self, record: StepRecord) -> None:
        told = msgspec.msgpack.encode(measure.report(record, self._rank))
        self._keys.put(f"report/{record.step % RING}/{self._rank}", told)
        if self._replanner is not None:
            reports = self._gather(record.step)
            if reports is not None:
                self._replanner.look(record.step, self._verified.digest, reports)

    def _gather(self, step: int) -> dict[int, measure.Report] | None:
        """All ranks' reports of a step; None if they do not come, or have been overwritten."""
        found: dict[int, measure.Report] = {}
        deadline = time.monotonic() + GATHER_S
        while len(found) < self._size and time.monotonic() < deadline:
            for rank in range(self._size):
                text = None if rank in found else self._keys.see(f"report/{step % RING}/{rank}")
                told = msgspec.msgpack.decode(text, type=measure.Report) if text else None
                if told is not None and told.step > step:
                    return None
                if told is not None and told.step == step:
                    found[rank] = told
            if len(found) < self._size:
                if self._failed() is not None:
                    return None
                time.sleep(POLL_S)
        return found if len(found) == self._size else None

    def _await(self, decision: Callable[[], bytes | None]) -> bytes:
        deadline = time.monotonic() + self._decision_s
        while (found := decision()) is None:
            if (failure := self._failed()) is not None:
                raise failure
            if time.monotonic() > deadline:
                raise TimeoutError(f"rank {COORDINATOR} has not decided on a schedule in time")
            time.sleep(POLL_S)
        return found
