"""The model of a collective: its transfers by round, its bounds, its counterexamples' places.

Who holds what is computed in the page, from the transfers. Chunks do not interact, so a page of
some of the chunks is right for these; that is how large schedules are cut.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from verify.core.bounds import bandwidth_bound, dissemination_bound, lower_bound, spread_bound
from verify.core.schedule import Incast, Schedule
from verify.core.verdict import Counterexample, LocatedTransfer, Report, Verdict
from verify.errors import ArgumentError
from verify.report.explain import explained
from verify.report.render import bound_in_words, instance_in_words
from verify.viewer.evidence import counterexamples, fault, head
from verify.viewer.part import Part

MOST_RANKS = 1024
MOST_ROUNDS = 20_000
MOST_TRANSFERS = 60_000
MOST_COUNTS = 2**26
"""Ranks times chunks times contributions: what the page keeps two bits of."""
MOST_CELLS = 2**18
"""Ranks times chunks."""


def model(name: str, schedule: Schedule, report: Report, part: Part | None) -> dict[str, Any]:
    """What the page shows of a schedule.

    Args:
        name: of the file.
        schedule: what was checked; ``report``: what was found.
        part: the chunks to show; None: all, or as many as a page can take.

    Raises:
        ArgumentError: more ranks or rounds than a page can show, or no such chunks.
    """
    n = schedule.ranks
    k = schedule.chunks
    rounds = schedule.rounds
    for what, size, most in (("ranks", n, MOST_RANKS), ("rounds", rounds, MOST_ROUNDS)):
        if size > most:
            remedy = "Draw a smaller one of the same kind"
            raise ArgumentError("--html", name, f"has {size} {what}, at most {most:,}", remedy)
    found = [explained(schedule, c) for c in counterexamples(report.results.values())]
    low, high = _chunks(schedule, part, found)
    proper = report.results["well_formed"].verdict is Verdict.PROVED
    wrong = report.results["exactly_once"].verdict is Verdict.REFUTED
    made = head(name, "collective", report.verdict, instance_in_words(schedule), report.results)
    made |= {
        "ranks": n,
        "chunks": k,
        "shown": [low, high],
        "late": [rank for rank in schedule.late if 0 <= rank < n],
        "ports": schedule.ports.incast if isinstance(schedule.ports, Incast) else schedule.ports,
        "phases": [
            {
                "name": phase.name,
                "absent": [rank for rank in phase.absent if 0 <= rank < n],
                "rounds": len(phase.rounds),
            }
            for phase in schedule.phases
        ],
        "rounds": _rounds(schedule, low, high),
        "load": np.bincount(schedule.table.round, minlength=rounds).tolist(),
        "meaningful": proper,
        "bound": _bound(schedule, report) if proper else None,
        "faults": [fault(c, **_places(schedule, c, wrong)) for c in found],
    }
    if (low, high) != (0, k):
        made["cut"] = (
            f"Shown are chunks {low} to {high - 1} of {k}: chunks do not interact, so what is "
            f"shown of them is exact. Others: --html-part FROM-TO, for example "
            f"--html-part {_next(low, high, k)}."
        )
    if report.staging:
        made["facts"] = [["staging", f"{report.staging} chunk buffer(s) per rank"]]
    return made


def _chunks(schedule: Schedule, part: Part | None, found: list[Counterexample]) -> tuple[int, int]:
    """The chunks to show, from and up to (not included)."""
    n = schedule.ranks
    k = schedule.chunks
    table = schedule.table
    known = table.chunk[(table.chunk >= 0) & (table.chunk < k)]
    moves = np.cumsum(np.bincount(known, minlength=k))  # transfers of chunks 0 .. c

    def transfers(low: int, high: int) -> int:
        return int(moves[high - 1] - (moves[low - 1] if low else 0))

    most = max(1, min(MOST_COUNTS // (n * n), MOST_CELLS // n))
    if part is not None:
        low, high = part.within(k, "chunks")
        if high - low > most or transfers(low, high) > MOST_TRANSFERS:
            raise ArgumentError("--html-part", part.text, _too_many(transfers(low, high), most))
        return low, high
    if k <= most and len(table) <= MOST_TRANSFERS:
        return 0, k
    named = (c.chunk for c in found if c.chunk is not None and 0 <= c.chunk < k)
    low = next(named, 0)
    high = min(k, low + most)
    before = int(moves[low - 1]) if low else 0
    high = min(high, int(np.searchsorted(moves, before + MOST_TRANSFERS, "right")))
    return low, max(low + 1, high)


def _too_many(transfers: int, most: int) -> str:
    return (
        f"has {transfers:,} transfers; a page shows at most {MOST_TRANSFERS:,} of them, "
        f"and {most:,} chunks of so many ranks"
    )


def _next(low: int, high: int, chunks: int) -> str:
    begin = high if high < chunks else 0
    return f"{begin}-{min(chunks, begin + high - low) - 1}"


def _rounds(schedule: Schedule, low: int, high: int) -> list[list[int]]:
    """Per round its transfers, flat: src, dst, chunk, 1 for reduce; those that can be drawn."""
    table = schedule.table
    n = schedule.ranks
    drawn = (table.chunk >= low) & (table.chunk < high)
    for end in (table.src, table.dst):
        drawn &= (end >= 0) & (end < n)
    columns = [table.src, table.dst, table.chunk, table.reduce.astype(np.int64)]
    rows = np.stack([column[drawn] for column in columns], axis=1)
    cuts = np.searchsorted(table.round[drawn], np.arange(1, schedule.rounds))
    return [group.ravel().tolist() for group in np.split(rows, cuts)][: schedule.rounds]


def _bound(schedule: Schedule, report: Report) -> dict[str, Any]:
    """The completion against its bound, with each of the three bounds and which of them decides."""
    n = schedule.ranks
    k = schedule.chunks
    each = schedule.ports.incast if isinstance(schedule.ports, Incast) else 1
    elsewhere = schedule.rounds - schedule.completion_rounds
    dissemination = dissemination_bound(n, k, each)
    spread = spread_bound(n, k, schedule.ports)
    own = max(dissemination, spread)
    all_in_all = bandwidth_bound(n, k, each)
    bound = lower_bound(schedule)
    by_bandwidth = max(0, all_in_all - elsewhere) == bound and bound > 0
    return {
        "of": "completion rounds",
        "value": report.completion_rounds,
        "bound": report.lower_bound,
        "text": bound_in_words(schedule, report),
        "terms": [
            {
                "name": name,
                "value": value,
                "text": text,
                "decides": decides,
            }
            for name, value, text, decides in (
                (
                    "dissemination",
                    dissemination,
                    "a rank's chunks leave it one port at a time, and then spread to all",
                    own == dissemination and not by_bandwidth,
                ),
                (
                    "spread",
                    spread,
                    "every rank receives its share of what a rank brings after it came",
                    own == spread and own != dissemination and not by_bandwidth,
                ),
                (
                    "bandwidth",
                    all_in_all,
                    "in all phases: each chunk moves 2(n - 1) times, n times the ports a round"
                    + (f"; {elsewhere} rounds are outside the completion" if elsewhere else ""),
                    by_bandwidth,
                ),
            )
        ],
    }


def _places(schedule: Schedule, found: Counterexample, wrong_anyway: bool) -> dict[str, object]:
    """Where to look: the transfers that matter as [round, src, dst, chunk], and the faulty ones.

    Where sums are ``wrong_anyway``, that bits differ is a consequence, and says nothing of a place.
    """
    located = [(_round_of(schedule, t), t) for t in found.transfers]
    ways = [[number, t.src, t.dst, t.chunk] for number, t in located]
    place = found.phase, found.round
    here = [
        way
        for way, (number, t) in zip(ways, located, strict=True)
        if (t.phase, t.round) == place and number >= 0
    ]
    aimed = [way for way in here if (way[2], way[3]) == (found.rank, found.chunk)]
    if found.property == "same_bits":  # the place is that of the last transfer, whatever it did
        here = []
        if wrong_anyway:
            return {"transfers": ways, "faulty": [], "rank": None, "chunk": None}
    return {
        "transfers": ways,
        "faulty": aimed or here,
        "rank": found.rank,
        "chunk": found.chunk,
    }


def _round_of(schedule: Schedule, transfer: LocatedTransfer) -> int:
    """Its round counted from the start, or -1: huge indices were clipped; names may be double."""
    begin = 0
    for phase in schedule.phases:
        if phase.name == transfer.phase and transfer.round < len(phase.rounds):
            same = (transfer.src, transfer.dst, transfer.chunk, transfer.op)
            if any((t.src, t.dst, t.chunk, t.op) == same for t in phase.rounds[transfer.round]):
                return begin + transfer.round
        begin += len(phase.rounds)
    return -1
