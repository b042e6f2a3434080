"""From a schedule to the report on its losses: one pass over the chunks, then what is still open.

The pass is linear in the transfers and keeps no chunk: it gathers what each single loss does
(theorem 1), and of each chunk the bounds of theorem 2. Mostly these answer the questions about
sets, too; only where they do not, sets are searched, within the time that is given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from latecomer.verify.core.schedule import Schedule
from latecomer.verify.core.semantics import exactly_once
from latecomer.verify.core.structure import hazards, well_formed
from latecomer.verify.core.verdict import LocatedTransfer, Verdict, locate
from latecomer.verify.errors import ArgumentError
from latecomer.verify.loss.flow import Chunk, chunks_of, flows_of
from latecomer.verify.loss.harm import Harm, harm_of, harm_of_one
from latecomer.verify.loss.report import (
    MOST_LISTED,
    Answer,
    EntryBlock,
    LossKind,
    LossReport,
    Single,
    WorstCase,
)
from latecomer.verify.loss.sets import (
    Clock,
    Lost,
    TimeOut,
    Total,
    Worst,
    covers,
    fewest_losses,
    outline,
    worst_of_chunk,
)

MOST_LOSSES = 16
"""At a time: the search goes through sets of so many transfers."""


def examine(schedule: Schedule, at_most: int, limit_s: float) -> LossReport:
    """Examine the loss of each transfer, and of any set of at most ``at_most`` of them.

    Args:
        schedule: a schedule that is right without loss.
        at_most: losses at a time, 1 .. 16.
        limit_s: seconds for the searches; what they leave open is unknown.

    Raises:
        ArgumentError: ``at_most`` is out of range, or the schedule is wrong without any loss.

    Examples:
        Of 4 x 4 x 4 entries (rank, chunk, contribution) a ring can lose 12 with one transfer, the
        transpose 4:

        >>> from latecomer import synth
        >>> from latecomer.synth.transpose.generate import transpose
        >>> from latecomer.verify.loss.examine import examine
        >>> for schedule in (synth.ring(4), transpose(4)):
        ...     report = examine(schedule, at_most=1, limit_s=10)  # a LossReport
        ...     print(report.entries, report.worst.entries, report.worst.exact)
        64 12 True
        64 4 True
    """
    require_few(at_most)
    for decide in (well_formed, exactly_once, hazards):
        if decide(schedule).verdict is not Verdict.PROVED:
            requirement = f"{decide.__name__} must hold without loss"
            raise ArgumentError("schedule", schedule.meta.get("method"), requirement)
    survey = _Survey(schedule, at_most)
    clock = Clock(limit_s)
    entries = schedule.ranks**2 * schedule.chunks
    sure = "every copy brings at least what it overwrites" if survey.covers else ""
    return LossReport(
        at_most=at_most,
        transfers=len(schedule.table),
        entries=entries,
        kinds=tuple(tally.kind() for tally in survey.kinds.values()),
        each=survey.each(),
        mean_way=survey.blocks / entries,
        worst=_worst(schedule, survey.outlined.worst(), at_most, clock),
        twice=Answer(False, why=sure) if sure else _answer(survey, _is_twice, clock),
        differ=_answer(survey, _is_different, clock),
    )


def require_few(at_most: int) -> None:
    """Refuse a number of losses that is not in 1..16 (ArgumentError)."""
    if not 1 <= at_most <= MOST_LOSSES:
        raise ArgumentError("--loss", at_most, f"must be in 1..{MOST_LOSSES}")


def _is_twice(harm: Harm) -> bool:
    return bool(harm.twice)


def _is_different(harm: Harm) -> bool:
    return harm.differ


class _Tally:
    """The single losses of one phase and op, counted up."""

    def __init__(self, phase: str, op: str) -> None:
        self._phase = phase
        self._op = op
        self._entries: list[int] = []
        self._ranks = self._contributions = self._twice = self._differ = 0

    def count(self, harm: Harm) -> None:
        self._entries.append(harm.entries)
        for ranks, contributions in harm.missing:
            self._ranks = max(self._ranks, ranks.bit_count())
            self._contributions = max(self._contributions, contributions.bit_count())
        self._twice += _is_twice(harm)
        self._differ += _is_different(harm)

    def kind(self) -> LossKind:
        return LossKind(
            phase=self._phase,
            op=self._op,
            transfers=len(self._entries),
            least=min(self._entries),
            mean=sum(self._entries) / len(self._entries),
            most=max(self._entries),
            ranks=self._ranks,
            contributions=self._contributions,
            twice=self._twice,
            differ=self._differ,
        )


class _Survey:
    """The pass over all chunks.

    ``blocks`` is the sum of all blocks; ``first`` has for each kind of harm the transfer, if any,
    whose loss alone does it.
    """

    def __init__(self, schedule: Schedule, at_most: int) -> None:
        self.schedule = schedule
        self.at_most = at_most
        self.kinds: dict[tuple[str, str], _Tally] = {}
        self.outlined = Total(at_most)
        self.covers = True
        self.blocks = 0
        self.first: dict[Callable[[Harm], bool], int] = {}
        self._phases = [phase.name for phase, _, _ in schedule.located_rounds()]
        self._listed: dict[int, Single] | None = {} if len(schedule.table) <= MOST_LISTED else None
        for chunk in chunks_of(schedule):
            self._look_at(chunk)

    def each(self) -> tuple[Single, ...] | None:
        """All single losses in the order of the file, unless there are too many."""
        if self._listed is None:
            return None
        return tuple(single for _, single in sorted(self._listed.items()))

    def _look_at(self, chunk: Chunk) -> None:
        flows = flows_of(chunk)
        self.outlined.add(outline(chunk, flows, self.at_most))
        self.covers = self.covers and covers(flows)
        self.blocks += sum(flow.block for flow in flows)
        for flow in flows:
            harm = harm_of_one(chunk, flow)
            index = flow.move.index
            key = self._phases[flow.move.round], "reduce" if flow.move.reduce else "copy"
            if key not in self.kinds:
                self.kinds[key] = _Tally(*key)
            self.kinds[key].count(harm)
            for is_bad in (_is_twice, _is_different):
                if is_bad(harm):
                    self.first[is_bad] = min(index, self.first.get(is_bad, index))
            if self._listed is not None:
                missing, twice = (_blocks(chunk, those) for those in (harm.missing, harm.twice))
                self._listed[index] = Single(
                    locate(self.schedule, index), harm.entries, missing, twice, harm.differ
                )


def _worst(schedule: Schedule, worst: Worst, at_most: int, clock: Clock) -> WorstCase:
    """The worst case, searched for where the outlines do not settle it."""
    if worst.entries < worst.bound:
        total = Total(at_most)
        for chunk in chunks_of(schedule):
            total.add(worst_of_chunk(chunk, flows_of(chunk), at_most, clock))
        worst = total.worst()
    touched = {int(schedule.table.chunk[index]) for index in worst.lost}
    missing = (
        _blocks(chunk, harm_of(chunk, worst.lost).missing)
        for chunk in chunks_of(schedule)
        if chunk.number in touched
    )
    return WorstCase(
        entries=worst.entries,
        bound=worst.bound,
        lost=_located(schedule, worst.lost),
        missing=tuple(block for blocks in missing for block in blocks),
    )


def _answer(survey: _Survey, is_bad: Callable[[Harm], bool], clock: Clock) -> Answer:
    """Single losses first, by theorem 1; then sets, chunk by chunk."""
    if is_bad in survey.first:
        return Answer(True, _located(survey.schedule, frozenset([survey.first[is_bad]])))
    try:
        for chunk in chunks_of(survey.schedule):
            lost = fewest_losses(chunk, survey.at_most, is_bad, clock)
            if lost is not None:
                return Answer(True, _located(survey.schedule, lost))
    except TimeOut:
        return Answer("unknown", why="the time was over before all sets were tried")
    return Answer(False, why="all sets of losses were tried")


def _located(schedule: Schedule, lost: Lost) -> tuple[LocatedTransfer, ...]:
    return tuple(locate(schedule, index) for index in sorted(lost))


def _blocks(chunk: Chunk, masks: Iterable[tuple[int, int]]) -> tuple[EntryBlock, ...]:
    return tuple(
        EntryBlock(chunk.number, _members(ranks), _members(contributions))
        for ranks, contributions in masks
    )


def _members(mask: int) -> tuple[int, ...]:
    return tuple(rank for rank in range(mask.bit_length()) if mask >> rank & 1)
