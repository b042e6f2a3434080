"""Refutations of shorter pipelines: texts that prove that no schedule is over before a time.

``proofs/coq/PipelineCertificate.v`` is the same checker, proved; this one shares no code with the
search (``latecomer.synth.pipeline.refute``) and needs no Coq. What all right schedules have in
common: microbatches are alike, so ``3F5`` stands for the sixth forward that stage 3 runs, of
whichever microbatch it is (a fused backward is an I and then a W). Then, for the same number m:

    F of a stage is there, with its latency, before F of the next one; I the other way round
    of a stage: F before I before W, and each kind in order
    of a rank: one action at a time
    memory: before F number k can start, 2 (k + 1) - limit halves have been given back; so for any
        i + w + 1 = that many, I number i or W number w is over (ranks with one stage)

Known of each action are a lower and an upper bound on its start, 0 and the deadline at first, and
of pairs on a rank which comes first. Each line makes more known, in order:

    later A B    B starts no sooner than A's message is there      raise X SET  X comes after SET
    sooner A B   A starts no later than B allows                   lower X SET  X comes before SET
    order A B    B starts too late to be over before A starts
    last SET X   SET and X would not fit if X were not last        first SET X  not first
    room F X Y   of X and Y one is over before F, and X is not: so Y

    either A B   two refutations follow: A is before B, B is before A
    overload SET the case is closed: SET does not fit between its bounds
    crossed A B  the case is closed: each is before the other

A SET is ``3F5-9,3I0``: different actions of one rank, by stage, kind and number.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from latecomer.verify.pipeline.costs import Costs
from latecomer.verify.pipeline.schedule import PipelineSchedule

_RUN = re.compile(r"([0-9]{1,9})([FIW])([0-9]{1,9})(?:-([0-9]{1,9}))?", re.ASCII)
KINDS = "FIW"


class Refused(Exception):
    """A line says what does not follow, or is none; says which line."""


class Item(NamedTuple):
    """The action number ``number`` of its stage and kind; ``kind`` is an index into ``KINDS``."""

    stage: int
    kind: int
    number: int


def check(schedule: PipelineSchedule, span: int, lines: Iterable[str]) -> int:
    """Check that ``lines`` refute every schedule that is over before ``span`` ticks.

    Args:
        schedule: only its sizes, its instance and the ranks of its stages are looked at.

    Returns:
        How many lines there were.

    Raises:
        Refused: they don't, or the instance has links that are held or fast fused backwards.
    """
    reader = _Lines(lines)
    question = _Question(schedule)
    _refute(_Known(question, span - 1), question, reader)
    if next(reader, None) is not None:
        raise reader.refused("a line after the end")
    return reader.number


class _Lines(Iterator[list[str]]):
    def __init__(self, lines: Iterable[str]) -> None:
        self.lines = iter(lines)
        self.number = 0

    def __next__(self) -> list[str]:
        words = next(self.lines).split()
        self.number += 1
        return words

    def refused(self, why: str) -> Refused:
        return Refused(f"line {self.number}: {why}")


class _Question:
    """The instance, and what holds in each of its schedules."""

    def __init__(self, schedule: PipelineSchedule) -> None:
        costs = Costs.of(schedule.instance)
        self.stages = schedule.stages
        self.microbatches = schedule.microbatches
        self.cost = (costs.forward, costs.backward, costs.weight)
        self.rank = schedule.rank_of
        self.memory = costs.memory
        ranks = list(self.rank.values())
        self.alone = [ranks.count(self.rank[s]) == 1 for s in range(self.stages)]
        if any(occupancy for _, occupancy, _ in costs.links.values()):
            raise Refused("links that are held are not covered")
        if any(map(int.__lt__, costs.fused, map(int.__add__, costs.backward, costs.weight))):
            raise Refused("fused backwards that are faster than split ones are not covered")
        self.latency = [
            0 if self.rank[s] == self.rank[s + 1] else costs.link(self.rank[s], self.rank[s + 1])[0]
            for s in range(self.stages - 1)
        ]

    def takes(self, item: Item) -> int:
        return self.cost[item.kind][item.stage]

    def travels(self, one: Item, other: Item) -> int:
        """How long a message from one to the other is under way; Refused if there is none."""
        step = {0: 1, 1: -1}.get(one.kind)
        if other != (one.stage + (step or 0), one.kind, one.number) or step is None:
            raise Refused("there is no message between the two")
        return self.latency[min(one.stage, other.stage)]

    def needed(self, stage: int, number: int, halves: int) -> bool:
        """Whether so many halves must have been given back before this forward."""
        if self.memory is None or not self.alone[stage]:
            return False
        return halves + self.memory[self.rank[stage]] <= 2 * (number + 1)

    def surely(self, one: Item, other: Item) -> bool:
        """Whether one is over before the other starts, in every schedule."""
        if one.stage != other.stage:
            return False
        if (one.kind, other.kind) == (1, 0):
            return self.needed(one.stage, other.number, 2 * one.number + 1)
        if one.kind == other.kind:
            return one.number < other.number
        return one.kind < other.kind and one.number <= other.number

    def room(self, forward: Item, one: Item, other: Item) -> bool:
        """Whether one of two is over before ``forward``."""
        kinds = forward.kind, one.kind, other.kind
        here = forward.stage == one.stage == other.stage
        halves = one.number + other.number + 1
        return kinds == (0, 1, 2) and here and self.needed(forward.stage, forward.number, halves)

    def item(self, text: str) -> Item:
        items = self.items(text)
        if len(items) != 1:
            raise Refused(f"{text} is not one action")
        return items[0]

    def items(self, text: str) -> list[Item]:
        """The actions of a set: different ones of one rank."""
        found: list[Item] = []
        for part in text.split(","):
            match = _RUN.fullmatch(part)
            if match is None:
                raise Refused(f"{part} is no action")
            stage = int(match[1])
            low = int(match[3])
            high = int(match[4] or match[3])
            if stage >= self.stages or not low <= high < self.microbatches:
                raise Refused(f"there is no {part}")
            found += [Item(stage, KINDS.index(match[2]), m) for m in range(low, high + 1)]
        if len({self.rank[item.stage] for item in found}) > 1 or len(set(found)) < len(found):
            raise Refused(f"{text} is not of different actions of one rank")
        return found


class _Known:
    """What is known in one case."""

    def __init__(self, question: _Question, deadline: int) -> None:
        self.question = question
        self.deadline = deadline
        self.lows: dict[Item, int] = {}
        self.highs: dict[Item, int] = {}
        self.orders: set[tuple[Item, Item]] = set()

    def copy(self) -> _Known:
        copy = _Known(self.question, self.deadline)
        copy.lows = dict(self.lows)
        copy.highs = dict(self.highs)
        copy.orders = set(self.orders)
        return copy

    def low(self, item: Item) -> int:
        return self.lows.get(item, 0)

    def high(self, item: Item) -> int:
        return self.highs.get(item, self.deadline - self.question.takes(item))

    def end(self, item: Item) -> int:
        return self.high(item) + self.question.takes(item)

    def first(self, one: Item, other: Item) -> bool:
        return (one, other) in self.orders or self.question.surely(one, other)

    def at_least(self, item: Item, time: int) -> None:
        self.lows[item] = max(time, self.low(item))

    def at_most(self, item: Item, time: int) -> None:
        self.highs[item] = min(max(time, 0), self.high(item))  # as in Coq: a natural number


def _require(holds: bool, why: str) -> None:
    if not holds:
        raise Refused(why)


def _require_beside(question: _Question, item: Item, others: list[Item]) -> None:
    """Refused unless ``item`` is none of the others, and on their rank."""
    on_one_rank = question.rank[item.stage] == question.rank[others[0].stage]
    _require(
        on_one_rank and item not in others, "the action is not beside the others on their rank"
    )


def _steps(known: _Known, question: _Question) -> dict[str, Callable[..., None]]:
    """What each line but the last of a case does."""
    return _steps_on_times(known, question) | _steps_on_order(known, question)


def _steps_on_times(known: _Known, question: _Question) -> dict[str, Callable[..., None]]:
    """The lines that narrow when an action can start."""
    takes = question.takes

    def later(a: str, b: str) -> None:
        sender = question.item(a)
        receiver = question.item(b)
        sent = known.low(sender) + takes(sender)
        known.at_least(receiver, sent + question.travels(sender, receiver))

    def sooner(a: str, b: str) -> None:
        sender = question.item(a)
        receiver = question.item(b)
        sent = known.high(receiver) - question.travels(sender, receiver)
        known.at_most(sender, sent - takes(sender))

    # No check that X is beside SET: what is known to come before X ends before X starts, whichever
    # rank runs it, and the actions of SET run one at a time.
    def raise_(a: str, those: str) -> None:
        item = question.item(a)
        before = question.items(those)
        _require(all(known.first(b, item) for b in before), "not all are known to come before")
        known.at_least(item, min(map(known.low, before)) + sum(map(takes, before)))

    def lower(a: str, those: str) -> None:
        item = question.item(a)
        after = question.items(those)
        _require_beside(question, item, after)
        _require(all(known.first(item, b) for b in after), "not all are known to come after")
        latest_end = max(map(known.end, after))
        known.at_most(item, latest_end - sum(map(takes, after)) - takes(item))

    return {"later": later, "sooner": sooner, "raise": raise_, "lower": lower}


def _steps_on_order(known: _Known, question: _Question) -> dict[str, Callable[..., None]]:
    """The lines that tell which of two actions comes first."""
    takes = question.takes

    def order(a: str, b: str) -> None:
        earlier = question.item(a)
        later = question.item(b)
        _require_beside(question, later, [earlier])
        _require(known.low(later) + takes(later) > known.high(earlier), "the other could be first")
        known.orders.add((earlier, later))

    def last(those: str, a: str) -> None:
        item = question.item(a)
        others = question.items(those)
        _require_beside(question, item, others)
        length = sum(map(takes, others)) + takes(item)
        begin = min(map(known.low, [item, *others]))
        _require(begin + length > max(map(known.end, others)), "it need not be last")
        known.orders.update((other, item) for other in others)

    def first(those: str, a: str) -> None:
        item = question.item(a)
        others = question.items(those)
        _require_beside(question, item, others)
        length = sum(map(takes, others)) + takes(item)
        end = max(map(known.end, [item, *others]))
        _require(min(map(known.low, others)) + length > end, "it need not be first")
        known.orders.update((item, other) for other in others)

    def room(f: str, a: str, b: str) -> None:
        forward = question.item(f)
        one = question.item(a)
        other = question.item(b)
        either = question.room(forward, one, other) or question.room(forward, other, one)
        _require(either, "memory does not ask for one of the two")
        _require(known.first(forward, one), "the first of the two may give it")
        _require(takes(forward) > 0, "it takes no time")
        known.orders.add((other, forward))

    return {"order": order, "last": last, "first": first, "room": room}


def _refute(known: _Known, question: _Question, lines: _Lines) -> None:
    """Read the refutation of one case; cases that are still open wait on a stack."""
    waiting: list[_Known] = []
    steps = _steps(known, question)
    for words in lines:
        name, *rest = words or [""]
        try:
            if name in steps:
                steps[name](*rest)
                continue
            if name == "overload":
                them = question.items(*rest)
                spare = max(map(known.end, them)) - min(map(known.low, them))
                _require(sum(map(question.takes, them)) > spare, "the actions fit")
            elif name in ("crossed", "either"):
                one, other = map(question.item, rest)
                if name == "either":
                    same = question.rank[one.stage] == question.rank[other.stage]
                    _require(same and one != other, "the two are not beside each other")
                    second = known.copy()
                    second.orders.add((other, one))
                    waiting.append(second)
                    known.orders.add((one, other))
                    continue
                both = known.first(one, other) and known.first(other, one)
                _require(both and question.takes(one) > 0, "not each is before the other")
            else:
                raise Refused(f"no step: {' '.join(words)}")
        except (Refused, TypeError, ValueError) as error:
            raise lines.refused(str(error)) from None
        if not waiting:
            return
        known = waiting.pop()
        steps = _steps(known, question)
    raise lines.refused("a case is left open")
