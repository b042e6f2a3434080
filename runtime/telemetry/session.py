"""Who is late and what was lost, as a table: watches this job's collectives in a ``with`` block.

    with latecomer.watch() as w:
        train()
    print(w.summary())

or from one line on, until the program ends: ``latecomer.watch(directory="watched").start()``.

All ranks enter and leave the block. At its end they send each other, through the store, what they
remember of the operations meanwhile; nothing is sent for it before, but for pings that align the
clocks. Every rank gets the whole.

Watched is what runs by this package. Where nothing does, torch's own process groups are, all of
them, with Gloo or NCCL (:mod:`latecomer.runtime.telemetry.native`).

While the block runs, each rank by itself can write what happens to files, count it for Prometheus,
and tell it to a callback (:mod:`latecomer.runtime.telemetry.live`). Files and Prometheus can be had
without a block, too: :func:`watch_by_environment`.
"""

from __future__ import annotations

import itertools
import logging
import os
import sys
import traceback
import weakref
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist

from latecomer.runtime.at_exit import close_at_exit, has_closed
from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.runtime.telemetry import export
from latecomer.runtime.telemetry.files import Line, encode
from latecomer.runtime.telemetry.live import Journal, Periodic
from latecomer.runtime.telemetry.native.recorder import NativeRecorder
from latecomer.runtime.telemetry.origin import Origin, new_watch, origin
from latecomer.runtime.telemetry.recorder import LIVE, OperationRecorder, Watchable
from latecomer.runtime.telemetry.records import RANK, Rank
from latecomer.runtime.telemetry.served import Address, address, own_address, serve_if_possible
from latecomer.runtime.telemetry.steps import OnStep, Steps
from latecomer.runtime.telemetry.summary import Summary, summarize
from latecomer.runtime.telemetry.tally import Tally
from latecomer.runtime.telemetry.writer import RankFiles
from latecomer.runtime.torch_versions import HAS_HOOKS
from latecomer.verify.errors import ArgumentError, RankFailure

REQUIREMENT = "is one at a time, with a mode or by OptiReduce"
REMEDY = "Name one: watch(attachment.reducer), watch(group.reducer), watch(attachment.engine)"
NOTHING = (
    "watch: there is nothing to watch, so the block runs without: what runs by a schedule file is "
    "not seen (attach with mode=...), and a process group is there from its first all-reduce on "
    "(or name it: watch(dist.group.WORLD.reducer)); torch's own groups are watched after "
    "init_process_group(), with torch 2.14 and later: this is torch {torch}"
)
UNUSED = (
    "watch: what was made in %s has watched nothing: it begins with a block, "
    "`with latecomer.watch(...) as watched:`, or without one by latecomer.watch(...).start()"
)
DIRECTORY = "LATECOMER_WATCH"
FILE_BYTES = 16 * 2**20
FEWEST_BYTES = 4096  # of a file: its first line, and some more
FILES = 8
WAIT_S = 30.0  # for what the other ranks have to tell
OVERDUE_S = 60.0  # after so long in a native collective its rank writes a dump
LEAST_OVERDUE_S = 2.0  # what the others have entered is known within half of it
logger = logging.getLogger("latecomer")
_watches = itertools.count()  # all ranks count alike


@dataclass(frozen=True)
class Outlets:
    """What is told while a watch goes on, and where; see :func:`watch`."""

    directory: Path | None = None
    file_bytes: int = FILE_BYTES
    files: int = FILES
    prometheus: Address | None = None
    prometheus_ranks: Collection[int] | None = None
    on_step: OnStep | None = None
    overdue_s: float = OVERDUE_S


class Watch:
    """A stretch of a job under watch; ``ranks`` is what each remembers, after the block.

    The log warns if it is let go, or the program ends, before it has begun: ``made_in`` says
    where to look.
    """

    def __init__(
        self,
        of: OperationRecorder | None,
        rounds: range,
        wait_s: float,
        outlets: Outlets = Outlets(),
        made_in: str = "",
    ) -> None:
        self.ranks: tuple[Rank, ...] = ()
        self._recorder = of
        self._rounds = rounds
        self._wait_s = wait_s
        self._outlets = outlets
        self._is_under_way = False
        self._is_over = False
        self._is_native = False  # whether it watches torch's own groups
        self._origin: Origin | None = None
        self._group: StoreExchange | None = None  # since it has begun
        self._journal: Journal | None = None
        self._running: list[Periodic] = []
        self._stop_serving: Callable[[], None] | None = None
        self._until_exit: _UntilExit | None = None
        self._reminder = weakref.finalize(self, logger.warning, UNUSED, made_in)

    def __enter__(self) -> Watch:
        if self._is_under_way:
            raise ArgumentError("watch", "under way", "begins again only when it is over")
        self._note_begin()
        self._number = next(_watches)
        self._recorder = self._recorder or _only_one() or self._native()
        if self._recorder is None:
            return self  # as the log says

        self._recorder.end_watch_by_environment()
        self._begin(self._recorder, f"watch/{self._number}/name")
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._is_under_way = False
        recorder = self._recorder
        if recorder is None:
            self._is_over = error is None
            return

        remembered = self._end(recorder, error)
        if error is not None:
            return  # the others may not come: no waiting for them

        own_text = msgspec.json.encode(remembered).decode()
        received: dict[int, str] = {}
        assert self._group is not None
        group = replace(self._group, timeout_s=self._wait_s)
        try:
            received = group.gather(f"watch/{self._number}", own_text)
        except RankFailure as failure:  # the block is over: what this rank knows is still good
            logger.warning("rank %d: receives nothing from the others: %s", group.rank, failure)
        received[group.rank] = own_text
        self.ranks = tuple(RANK.decode(text) for text in received.values())
        self._is_over = True

    def start(self) -> Watch:
        """Watch without a block, until :meth:`stop` or else the end of the program. Collective.

        At the end of the program nothing is sent to other ranks, so that it may end at any time:
        files and Prometheus have all that this rank has seen, and there is no summary.
        """
        self.__enter__()
        self._until_exit = _UntilExit(self._end_by_exit)
        close_at_exit(self._until_exit)
        return self

    def stop(self) -> None:
        """End what :meth:`start` has begun, as the end of a block does. Collective."""
        if self._until_exit is None:
            raise ArgumentError("watch", "not started", "has to be, by start(), before stop()")
        has_closed(self._until_exit)
        self._until_exit = None
        self.__exit__(None, None, None)

    def step(self) -> None:
        """Say that a step has all its operations, for ``on_step``; any rank may, rank 0 counts.

        Under ``ddp.attach`` there is no need to: a step ends with the backward pass.
        """
        if self._recorder is not None:
            self._recorder.step_over()

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

    def begin_by_environment(self, recorder: OperationRecorder) -> None:
        """Begin without a block; it ends when the recorder is closed, or watched by a program.

        Nothing is sent to other ranks at its end, so it may end at any time.
        """
        self._note_begin()
        self._recorder = recorder
        self._begin(recorder, "watch/by environment/name")
        recorder.end_of_watch_by_environment = lambda: self._end_telling(None)

    def _end_by_exit(self) -> None:
        if self._recorder is not None:
            self._end(self._recorder, getattr(sys, "last_value", None))

    def _note_begin(self) -> None:
        self._is_under_way = True
        self._reminder.detach()

    def _end(self, recorder: OperationRecorder, error: BaseException | None) -> Rank:
        """End what tells of it; what this rank remembers."""
        remembered = msgspec.structs.replace(recorder.end(), origin=self._origin)
        self._end_telling(error)
        if self._is_native:
            recorder.close()
        return remembered

    def _native(self) -> OperationRecorder | None:
        """What watches torch's own groups, if that can be.

        To observe is no reason to end a training that would go well without.
        """
        if not (HAS_HOOKS and dist.is_initialized()):
            logger.warning(NOTHING.format(torch=torch.__version__))
            return None
        outlets = self._outlets
        try:
            recorder = NativeRecorder(
                self._number, self._wait_s, outlets.overdue_s, outlets.directory
            )
        except RankFailure as failure:
            logger.warning("watch: the block runs without: %s", failure)
            return None
        self._is_native = True
        return recorder

    def _begin(self, recorder: OperationRecorder, key_of_name: str) -> None:
        recorder.begin(self._rounds)
        self._group = recorder.group  # of which a recorder lets go when it is closed
        self._origin = self._own_origin(recorder, key_of_name)
        self._begin_telling(recorder, self._origin)

    def _own_origin(self, recorder: OperationRecorder, key_of_name: str) -> Origin:
        """Where this rank is; with files, under a name of the watch that all ranks agree on."""
        group = recorder.group
        name = new_watch()
        if self._outlets.directory is not None:
            try:
                within = replace(group, timeout_s=self._wait_s)
                name = within.first(key_of_name, name)
            except RankFailure as failure:  # its files tell their story, though apart
                logger.warning("rank %d: watch: %s", group.rank, failure)
        offset_s = recorder.alignment().offset_s
        return origin(name, group.rank, group.world_size, offset_s)

    def _begin_telling(self, recorder: OperationRecorder, of: Origin) -> None:
        outlets = self._outlets
        self._journal = None
        self._running = []
        self._stop_serving = None
        looks: dict[str, Callable[[bool], None]] = {}
        if outlets.directory is not None:
            head = encode(Line(origin=of))
            files = RankFiles(outlets.directory, of.rank, head, outlets.file_bytes, outlets.files)
            self._journal = Journal(recorder, files)
            looks[f"rank {of.rank}: watch: files in {outlets.directory}"] = self._journal.look

        if outlets.prometheus is not None:
            at = own_address(of.rank, outlets.prometheus, outlets.prometheus_ranks)
            if at is not None:
                tally = Tally(recorder)
                looks[f"rank {of.rank}: watch: counts for Prometheus"] = tally.look
                self._stop_serving = serve_if_possible(tally, at)

        if looks:
            self._running.append(Periodic("latecomer-live", looks))
        if outlets.on_step is not None and of.rank == 0:
            steps = Steps(recorder, outlets.on_step)
            self._running.append(Periodic("latecomer-on-step", {"watch: on_step": steps.look}))
        for periodic in self._running:
            periodic.start()

    def _end_telling(self, error: BaseException | None) -> None:
        if self._journal is not None and error is not None:
            self._journal.error = f"{type(error).__name__}: {error}"
        for periodic in self._running:
            periodic.close()
        if self._stop_serving is not None:
            self._stop_serving()


class _UntilExit:
    """Ends a watch that has no block when the program ends."""

    def __init__(self, end: Callable[[], None]) -> None:
        self._end = end

    def close(self, *, at_once: bool = False) -> None:
        """End it."""
        self._end()


def watch_by_environment(recorder: OperationRecorder) -> None:
    """Watch from the first operation on, where the environment asks for files or Prometheus.

    So a script needs no line for it. A watch of the program's own takes its place. It is of one
    group of the job, and of one that has all its ranks: the files of a directory are named by rank.

    Raises:
        ArgumentError: LATECOMER_PROMETHEUS is no address.
    """
    outlets = Outlets(directory=_directory(None), prometheus=address(None, None))
    is_asked = outlets.directory is not None or outlets.prometheus is not None
    has_one = any(each.end_of_watch_by_environment is not None for each in LIVE)
    is_whole_job = not dist.is_initialized() or recorder.group.world_size == dist.get_world_size()
    if is_asked and is_whole_job and not has_one:
        Watch(None, range(0), WAIT_S, outlets).begin_by_environment(recorder)


def _directory(chosen: str | os.PathLike[str] | None) -> Path | None:
    """Where files go: as an argument says, else the environment; None: nowhere."""
    place = chosen or os.environ.get(DIRECTORY, "")
    return Path(place) if place else None


def _only_one() -> OperationRecorder | None:
    """What there is to watch, if there is something; ArgumentError if it is not clear what."""
    if len(LIVE) > 1:
        raise ArgumentError("models and groups to watch", len(LIVE), REQUIREMENT, REMEDY)
    return LIVE[0] if LIVE else None


def watch(
    of: Watchable | None = None,
    *,
    rounds: range = range(0),
    wait_s: float = WAIT_S,
    directory: str | os.PathLike[str] | None = None,
    file_bytes: int = FILE_BYTES,
    files: int = FILES,
    prometheus_port: int | None = None,
    prometheus_address: str | None = None,
    prometheus_ranks: Collection[int] | None = None,
    on_step: OnStep | None = None,
    overdue_s: float = OVERDUE_S,
) -> Watch:
    """Watch the all-reduces of a model or group in a mode or by OptiReduce. Collective.

    In a job that runs nothing of this package, watch all collectives of torch's own process groups,
    with Gloo or NCCL; that takes torch 2.14 or later.

    What it returns watches in a ``with`` block, or from its ``start()`` until the program ends.

    What goes wrong with files, Prometheus or the callback during the block is told once, in the log
    ``latecomer``; training goes on.

    Args:
        of: ``attachment.reducer``, ``group.reducer``, by OptiReduce ``.engine``; default: the one.
        rounds: operations of which the rounds are recorded for traces, counted from the beginning
            of the block (OptiReduce: the stages are always recorded).
        wait_s: how long to wait at the end for what the other ranks have to tell.
        directory: where each rank appends what happens, twice a second, to files of its own; for
            ``latecomer watch``. It is made if need be. Default: as LATECOMER_WATCH says, or
            nowhere.
        file_bytes: size of a file, at most; then comes the next.
        files: so many a rank keeps, those of earlier watches among them; the oldest goes first.
        prometheus_port: serve this rank's counts there, over HTTP; 0: any port, which the log says.
            Default: as LATECOMER_PROMETHEUS says ([address:]port), or nowhere.
        prometheus_address: the address to serve at; default: 127.0.0.1, for this host alone.
        prometheus_ranks: who serves, rank r at the port plus its LOCAL_RANK; default: the first
            rank of each host.
        on_step: called on rank 0 with a dict of numbers for each step (docs/reference/watch.md
            says which), on a thread of its own, up to a second after the step.
        overdue_s: of torch's own groups: once a rank has been so long in a collective (on a GPU:
            has entered none for so long), it says so in the log, and writes its Flight Recorder's
            dump to ``dumps`` in ``directory``.

    Raises:
        ArgumentError: there are several to watch, and none is named; or an argument that is out of
            its range. Where there is nothing to watch, as under a schedule file, a warning in the
            log says so, and the summary is empty.

    Examples:
        On every rank of ``torchrun``, here with two of them:

        >>> import torch, torch.distributed as dist
        >>> from latecomer import ddp, watch
        >>> dist.init_process_group("gloo")
        >>> model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
        >>> attachment = ddp.attach(model, mode="auto")
        >>> with watch(attachment.reducer) as watched:  # of an AllReduceDispatcher: a Watch
        ...     for step in range(3):
        ...         model(torch.ones(2, 4)).sum().backward()
        >>> summary = watched.summary()  # a Summary, of a Line per rank; print it
        >>> sorted((line.rank, line.operations) for line in summary.lines)
        [(0, 3), (1, 3)]
        >>> watched.write_trace(f"trace{dist.get_rank()}.json")
        >>> attachment.close()
        >>> dist.destroy_process_group()
    """
    if file_bytes < FEWEST_BYTES:
        raise ArgumentError("file_bytes", file_bytes, f"must be at least {FEWEST_BYTES}")
    if files < 2:
        raise ArgumentError(
            "files", files, "must be at least 2, the one that is written among them"
        )
    if not overdue_s >= LEAST_OVERDUE_S:
        raise ArgumentError("overdue_s", overdue_s, f"must be at least {LEAST_OVERDUE_S:g} s")
    outlets = Outlets(
        overdue_s=overdue_s,
        directory=_directory(directory),
        file_bytes=file_bytes,
        files=files,
        prometheus=address(prometheus_port, prometheus_address),
        prometheus_ranks=prometheus_ranks,
        on_step=on_step,
    )
    caller = traceback.extract_stack(limit=2)[0]
    made_in = f"{caller.filename}, line {caller.lineno}"
    return Watch(None if of is None else of.source, rounds, wait_s, outlets, made_in)
