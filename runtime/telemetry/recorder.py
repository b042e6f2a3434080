"""What a reducer tells to ``runtime.watch``: arrivals, decisions, rounds of chosen operations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec

from runtime.telemetry.records import Rank, Round

if TYPE_CHECKING:
    from runtime.policy.dispatcher import AllReduceDispatcher


class ReducerSource:
    """A reducer as a source; see :class:`runtime.telemetry.source.Source`."""

    def __init__(self, reducer: AllReduceDispatcher) -> None:
        self._reducer = reducer
        self.rank, self.size, self.store = reducer.rank, reducer.size, reducer.store
        self._first = self._sent = 0

    def begin(self, rounds: range) -> None:
        """Note where the stretch begins."""
        reducer = self._reducer
        self._first, self._sent = reducer.next, reducer.plane.sent
        reducer.rounds.spans.clear()
        reducer.rounds.watched = range(
            self._first + rounds.start, self._first + rounds.stop, rounds.step
        )

    def end(self) -> Rank:
        """Everything since then."""
        reducer, first = self._reducer, self._first
        reducer.rounds.watched = range(0)
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
            rounds=tuple(self._rounds()),
            messages=reducer.plane.sent - self._sent,
            dropped=reducer.next - first - len(known),
        )

    def _rounds(self) -> Iterator[Round]:
        reducer = self._reducer
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
