"""Who is late and what was lost, as a table: watches this job's all-reduces in a ``with`` block.

    with runtime.watch() as w:
        train()
    print(w.summary())

All ranks enter and leave the block. At its end they send each other, through the store, what they
remember of the operations meanwhile; nothing is sent for it before, but for pings that align the
clocks. Every rank gets the whole.
"""

from __future__ import annotations

import itertools
import logging
import os
from dataclasses import replace

import msgspec

from runtime.telemetry import export
from runtime.telemetry.recorder import LIVE, Recorder, Watchable
from runtime.telemetry.records import RANK, Rank
from runtime.telemetry.summary import Summary, summarize
from verify.errors import ArgumentError, RankFailure

REQUIREMENT = "is one at a time, with a mode or by OptiReduce"
REMEDY = "Name one: watch(attachment.reducer), watch(group.reducer), watch(attachment.engine)"
NOTHING = (
    "watch: there is nothing to watch, so the block runs without: what runs by a schedule file is "
    "not seen (attach with mode=...), and a process group is there from its first all-reduce on "
    "(or name it: watch(dist.group.WORLD.reducer))"
)
logger = logging.getLogger("latecomer")
_watches = itertools.count()  # all ranks count alike


class Watch:
    """A stretch of a job under watch; ``ranks`` is what each remembers, after the block."""

    def __init__(self, of: Recorder | None, rounds: range, wait_s: float) -> None:
        self.ranks: tuple[Rank, ...] = ()
        self._recorder = of
        self._rounds = rounds
        self._wait_s = wait_s
        self._is_over = False

    def __enter__(self) -> Watch:
        self._number = next(_watches)
        self._recorder = self._recorder or _only_one()
        if self._recorder is None:
            # To observe is no reason to end a training that would go well without.
            logger.warning(NOTHING)
        else:
            self._recorder.begin(self._rounds)
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        recorder = self._recorder
        if recorder is None:
            self._is_over = error is None
            return
        remembered = recorder.end()
        if error is not None:
            return  # the others may not come: no waiting for them
        own_text = msgspec.json.encode(remembered).decode()
        received: dict[int, str] = {}
        group = replace(recorder.group, timeout_s=self._wait_s)
        try:
            received = group.gather(f"watch/{self._number}", own_text)
        except RankFailure as failure:  # the block is over: what this rank knows is still good
            logger.warning("rank %d: receives nothing from the others: %s", group.rank, failure)
        received[group.rank] = own_text
        self.ranks = tuple(RANK.decode(text) for text in received.values())
        self._is_over = True

    def summary(self) -> Summary:
        """The tables; ArgumentError before the block is over, or when an exception has left it."""
        if not self._is_over:
            raise ArgumentError("watch", "not over", "has a summary after its block")
        world_size = 0 if self._recorder is None else self._recorder.group.world_size
        return summarize(self.ranks, world_size)

    def write_prometheus(self, path: str | os.PathLike[str]) -> None:
        """Write the summary as a Prometheus text file."""
        export.write_prometheus(self.summary(), path)

    def write_trace(self, path: str | os.PathLike[str], operations: range | None = None) -> None:
        """Write a trace for Perfetto or chrome://tracing; ``operations`` count from the block's."""
        export.write_trace(self.ranks, path, operations)


def _only_one() -> Recorder | None:
    """What there is to watch, if there is something; ArgumentError if it is not clear what."""
    if len(LIVE) > 1:
        raise ArgumentError("models and groups to watch", len(LIVE), REQUIREMENT, REMEDY)
    return LIVE[0] if LIVE else None


def watch(of: Watchable | None = None, *, rounds: range = range(0), wait_s: float = 30.0) -> Watch:
    """Watch the all-reduces of a model or group in a mode or by OptiReduce. Collective.

    Args:
        of: ``attachment.reducer``, ``group.reducer``, by OptiReduce ``.engine``; default: the one.
        rounds: operations of which the rounds are recorded for traces, counted from the beginning
            of the block (OptiReduce: the stages are always recorded).
        wait_s: how long to wait at the end for what the other ranks have to tell.

    Raises:
        ArgumentError: there are several to watch, and none is named. Where there is none, as under
            a schedule file, a warning in the log says so, and the summary is empty.

    Examples:
        On every rank of ``torchrun``, here with two of them:

        >>> import runtime, torch, torch.distributed as dist
        >>> dist.init_process_group("gloo")
        >>> model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
        >>> attachment = runtime.ddp.attach(model, mode="auto")
        >>> with runtime.watch(attachment.reducer) as watched:  # of an AllReduceDispatcher: a Watch
        ...     for step in range(3):
        ...         model(torch.ones(2, 4)).sum().backward()
        >>> summary = watched.summary()  # a Summary, of a Line per rank; print it
        >>> sorted((line.rank, line.operations) for line in summary.lines)
        [(0, 3), (1, 3)]
        >>> watched.write_trace(f"trace{dist.get_rank()}.json")
        >>> attachment.close()
        >>> dist.destroy_process_group()
    """
    return Watch(None if of is None else of.source, rounds, wait_s)
