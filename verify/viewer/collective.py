"""The model of a collective: its transfers by round, its bounds, its counterexamples' places.

Who holds what is computed in the page, from the transfers. Chunks do not interact, so a page of
some of the chunks is right for these; that is how large schedules are cut.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from latecomer.verify.core.bounds import (
    bandwidth_bound,
    dissemination_bound,
    lower_bound,
    spread_bound,
)
from latecomer.verify.core.schedule import Incast, Op, Schedule, Transfer
from latecomer.verify.core.verdict import Counterexample, LocatedTransfer, Report, Verdict
from latecomer.verify.errors import ArgumentError
from latecomer.verify.report.explain import explained
from latecomer.verify.report.render import bound_in_words, instance_in_words
from latecomer.verify.viewer.evidence import counterexamples, fault, head
from latecomer.verify.viewer.part import Part

# More ranks or rounds are refused; of more transfers, counts or cells some of the chunks are shown.
MOST_RANKS = 1024
MOST_ROUNDS = 20_000
MOST_TRANSFERS = 60_000
MOST_COUNTS = 2**26
"""Ranks times chunks times contributions: what the page keeps two bits of, 16 MiB."""
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
    for noun, count, limit in (("ranks", n, MOST_RANKS), ("rounds", rounds, MOST_ROUNDS)):
        if count > limit:
            remedy = "Draw a smaller one of the same kind"
            raise ArgumentError("--html", name, f"has {count} {noun}, at most {limit:,}", remedy)

    refutations = [
        explained(schedule, counterexample)
        for counterexample in counterexamples(report.results.values())
    ]
    low, high = _chunks(schedule, part, refutations)
    is_well_formed = report.results["well_formed"].verdict is Verdict.PROVED
    sums_are_wrong = report.results["exactly_once"].verdict is Verdict.REFUTED
    shown = head(name, "collective", report.verdict, instance_in_words(schedule), report.results)
    shown |= {
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
        "meaningful": is_well_formed,
        "bound": _bound(schedule, report) if is_well_formed else None,
        "faults": [
            fault(counterexample, **_highlighted(schedule, counterexample, sums_are_wrong))
            for counterexample in refutations
        ],
    }
    if (low, high) != (0, k):
        shown["cut"] = (
            f"Shown are chunks {low} to {high - 1} of {k}: chunks do not interact, so what is "
            f"shown of them is exact. Others: --html-part FROM-TO, for example "
            f"--html-part {_next(low, high, k)}."
        )
    if report.staging:
        shown["facts"] = [["staging", f"{report.staging} chunk buffer(s) per rank"]]
    return shown


def _chunks(
    schedule: Schedule, part: Part | None, refutations: list[Counterexample]
) -> tuple[int, int]:
    """The chunks to show, from and up to (not included).

    Those that were asked for; else all; else as many as a page takes, from the first chunk on that
    a counterexample is about.
    """
    n = schedule.ranks
    k = schedule.chunks
    table = schedule.table
    in_range = table.chunk[(table.chunk >= 0) & (table.chunk < k)]
    moves = np.cumsum(np.bincount(in_range, minlength=k))  # transfers of chunks 0 .. c

    def transfers(low: int, high: int) -> int:
        return int(moves[high - 1] - (moves[low - 1] if low else 0))

    most_chunks = max(1, min(MOST_COUNTS // (n * n), MOST_CELLS // n))
    if part is not None:
        low, high = part.within(k, "chunks")
        count = transfers(low, high)
        if high - low > most_chunks or count > MOST_TRANSFERS:
            raise ArgumentError("--html-part", part.text, _too_many(count, most_chunks))
        return low, high

    if k <= most_chunks and len(table) <= MOST_TRANSFERS:
        return 0, k

    faulty_chunks = [counterexample.chunk for counterexample in refutations]
    low = next((chunk for chunk in faulty_chunks if chunk is not None and 0 <= chunk < k), 0)
    high = min(k, low + most_chunks)
    before = int(moves[low - 1]) if low else 0
    high = min(high, int(np.searchsorted(moves, before + MOST_TRANSFERS, "right")))
    return low, max(low + 1, high)


def _too_many(transfers: int, most_chunks: int) -> str:
    return (
        f"has {transfers:,} transfers; a page shows at most {MOST_TRANSFERS:,} of them, "
        f"and {most_chunks:,} chunks of so many ranks"
    )


def _next(low: int, high: int, chunks: int) -> str:
    """As many chunks as those shown, after them, or from the first on; as the option takes it."""
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
    per_rank = schedule.ports.incast if isinstance(schedule.ports, Incast) else 1
    elsewhere = schedule.rounds - schedule.completion_rounds
    bound = lower_bound(schedule)

    bandwidth = bandwidth_bound(n, k, per_rank)
    bandwidth_decides = max(0, bandwidth - elsewhere) == bound and bound > 0
    bandwidth_text = "in all phases: each chunk moves 2(n - 1) times, n times the ports a round"
    if elsewhere:
        bandwidth_text += f"; {elsewhere} rounds are outside the completion"

    dissemination = dissemination_bound(n, k, per_rank)
    spread = spread_bound(n, k, schedule.ports)
    return {
        "of": "completion rounds",
        "value": report.completion_rounds,
        "bound": report.lower_bound,
        "text": bound_in_words(schedule, report),
        "terms": [
            {
                "name": "dissemination",
                "value": dissemination,
                "text": "a rank's chunks leave it one port at a time, and then spread to all",
                "decides": dissemination >= spread and not bandwidth_decides,
            },
            {
                "name": "spread",
                "value": spread,
                "text": "every rank receives its share of what a rank brings after it came",
                "decides": spread > dissemination and not bandwidth_decides,
            },
            {
                "name": "bandwidth",
                "value": bandwidth,
                "text": bandwidth_text,
                "decides": bandwidth_decides,
            },
        ],
    }


def _highlighted(
    schedule: Schedule, counterexample: Counterexample, sums_are_wrong: bool
) -> dict[str, object]:
    """Where to look: the transfers that matter as [round, src, dst, chunk], and the faulty ones.

    Where sums are wrong, that bits differ is a consequence, and says nothing of where the fault is.
    """
    transfers = []
    in_faulty_round = []
    for transfer in counterexample.transfers:
        number = _round_of(schedule, transfer)
        row = [number, transfer.src, transfer.dst, transfer.chunk]
        transfers.append(row)
        is_there = (transfer.phase, transfer.round) == (counterexample.phase, counterexample.round)
        if is_there and number >= 0:
            in_faulty_round.append(row)

    into_faulty = [
        row
        for row in in_faulty_round
        if row[2] == counterexample.rank and row[3] == counterexample.chunk
    ]
    if counterexample.property != "same_bits":
        faulty = into_faulty or in_faulty_round
    elif not sums_are_wrong:
        # Its round is that of the last transfer, whatever that did.
        faulty = into_faulty
    else:
        return {"transfers": transfers, "faulty": [], "rank": None, "chunk": None}
    return {
        "transfers": transfers,
        "faulty": faulty,
        "rank": counterexample.rank,
        "chunk": counterexample.chunk,
    }


def _round_of(schedule: Schedule, transfer: LocatedTransfer) -> int:
    """Its round counted from the start, or -1: huge indices were clipped; names may be double."""
    begin = 0
    for phase in schedule.phases:
        if phase.name == transfer.phase and transfer.round < len(phase.rounds):
            wanted = Transfer(transfer.src, transfer.dst, transfer.chunk, cast(Op, transfer.op))
            if wanted in phase.rounds[transfer.round]:
                return begin + transfer.round
        begin += len(phase.rounds)
    return -1
