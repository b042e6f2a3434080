"""Who is late, as a table: watches the all-reduces of this job while a ``with`` block lasts.

    with runtime.watch() as w:
        train()
    print(w.summary())

All ranks enter and leave the block. At its end they tell each other, through the store, what they
remember of the operations meanwhile; nothing is sent for it before. Every rank gets the whole.
"""

from __future__ import annotations

import itertools
import os
import types
from collections.abc import Iterator

import msgspec

from runtime.arrivals import prometheus, trace
from runtime.arrivals.record import Rank, Round
from runtime.arrivals.summary import Summary, summarize
from runtime.meeting import tell_all
from runtime.reducer import LIVE, Reducer
from verify.errors import ArgumentError

_watches = itertools.count()  # all ranks count alike


class Watch:
    """A stretch of a job under watch; made by :func:`watch`.

    Attributes:
        ranks: what each rank remembers, after the block; ranks that did not tell are missing.
    """

    def __init__(self, of: Reducer | None, rounds: range, wait_s: float) -> None:
        self.ranks: tuple[Rank, ...] = ()
        self._reducer, self._rounds, self._wait_s = of, rounds, wait_s
        self._first = self._size = self._sent = 0

    def __enter__(self) -> Watch:
        reducer = self._chosen()
        self._first, self._size = reducer.next, reducer.size
        self._sent = reducer.plane.sent
        chosen = self._rounds
        reducer.rounds.spans.clear()
        reducer.rounds.watched = range(
            self._first + chosen.start, self._first + chosen.stop, chosen.step
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: types.TracebackType | None,
    ) -> None:
        reducer = self._chosen()
        reducer.rounds.watched = range(0)
        if error is not None:
            return  # the others may not come: no waiting for them
        own = msgspec.json.encode(self._own(reducer)).decode()
        key = f"watch/{next(_watches)}"
        told = tell_all(reducer.store, key, reducer.rank, reducer.size, own, self._wait_s)
        self.ranks = tuple(msgspec.json.decode(text, type=Rank) for text in told.values())

    def summary(self) -> Summary:
        """The table: who kept whom waiting, the worst rank first; prints well.

        Raises:
            ArgumentError: the block is not over, or was left by an exception.
        """
        if not self.ranks:
            raise ArgumentError("watch", "not over", "has a summary after its block")
        return summarize(self.ranks, self._size)

    def write_prometheus(self, path: str | os.PathLike[str]) -> None:
        """Write the summary as a Prometheus text file."""
        prometheus.write(self.summary(), path)

    def write_trace(self, path: str | os.PathLike[str], operations: range | None = None) -> None:
        """Write a trace for Perfetto or chrome://tracing.

        Args:
            operations: only these, counted from the beginning of the block (default: all).
        """
        trace.write(self.ranks, path, operations)

    def _chosen(self) -> Reducer:
        if self._reducer is not None:
            return self._reducer
        if len(LIVE) != 1:
            raise ArgumentError(
                "watch",
                len(LIVE),
                "is the number of models and groups with a mode in this job",
                "Attach one with mode=..., or name the one to watch: watch(attachment.reducer)",
            )
        self._reducer = LIVE[0]
        return self._reducer

    def _own(self, reducer: Reducer) -> Rank:
        """What this rank remembers, operations counted from the beginning of the block."""
        first = self._first
        known = sorted(
            (record for record in list(reducer.records) if record.operation >= first),
            key=lambda record: record.operation,
        )
        return Rank(
            rank=reducer.rank,
            records=tuple(
                msgspec.structs.replace(record, operation=record.operation - first)
                for record in known
            ),
            rounds=tuple(self._own_rounds(reducer)),
            messages=reducer.plane.sent - self._sent,
            dropped=reducer.next - first - len(known),
        )

    def _own_rounds(self, reducer: Reducer) -> Iterator[Round]:
        offset_s = reducer.plane.alignment().offset_s
        for span in reducer.rounds.spans:
            yield Round(
                span.operation - self._first,
                reducer.rank,
                span.phase,
                span.round,
                span.began_s + offset_s,
                span.ended_s + offset_s,
            )


def watch(of: Reducer | None = None, *, rounds: range = range(0), wait_s: float = 30.0) -> Watch:
    """Watch the all-reduces of a model or group in a mode. Collective: all ranks do.

    Args:
        of: whose; default: the only one of this job (``attachment.reducer``, ``group.reducer``).
        rounds: operations of which the rounds are recorded for traces, counted from the beginning
            of the block.
        wait_s: how long to wait at the end for what the other ranks have to tell.

    Raises:
        ArgumentError: there is not exactly one to watch.
    """
    return Watch(of, rounds, wait_s)
