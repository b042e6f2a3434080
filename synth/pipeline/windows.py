"""When each action of a pipeline can start, if it has to be over by a deadline: propagation.

Known are a lower and an upper bound on the start of the m-th action of each kind and stage, and a
table per rank of which actions come before which. What follows is found for a whole rank at once,
until nothing new follows:

    messages and order        a bound follows from one other action
    work before, work after   from a set of actions that come before (after): the earliest of them,
                              plus the work of all
    orders                    of two that can't come in one order; of memory that only one can give
    edge-finding              an action that, beside a set, has room only behind (in front of) it
                              (Carlier and Pinson; Baptiste, Le Pape and Nuijten, chapter 2)

With a log, each thing that is found is written down as a step of a refutation, with the steps that
it was found from; so the search (``synth.pipeline.refute``) can leave out what was of no use.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from synth.pipeline.facts import Facts, Ints

FAR = 2**62


class Contradiction(Exception):
    """The case is closed; ``line`` says how, found from the steps ``reads``."""

    def __init__(self, line: str, reads: set[int]) -> None:
        super().__init__(line)
        self.line = line
        self.reads = reads


class Log:
    """Steps of one case: (number, line, numbers of the steps that it was found from)."""

    def __init__(self, first: int) -> None:
        self.next = first
        self.steps: list[tuple[int, str, set[int]]] = []

    def add(self, line: str, reads: set[int]) -> int:
        """Write a step down; gives its number."""
        self.steps.append((self.next, line, reads))
        self.next += 1
        return self.next - 1


class Windows:
    """What is known in one case: bounds on starts, orders per rank, and from which steps.

    Step 0 stands for what was known from the beginning.
    """

    def __init__(self, facts: Facts, deadline: int) -> None:
        self.facts = facts
        self.low = np.zeros(len(facts.cost), np.int64)
        self.high = deadline - facts.cost
        self.orders = [order.copy() for order in facts.orders]
        self.low_from, self.high_from = np.zeros_like(self.low), np.zeros_like(self.low)
        self.orders_from = [np.zeros(order.shape, np.int64) for order in self.orders]
        self.seen: dict[tuple[str, int], tuple[int, int, int]] = {}

    def copy(self) -> Windows:
        """The same for another case."""
        other = object.__new__(Windows)
        other.facts = self.facts
        for name in ("low", "high", "low_from", "high_from"):
            setattr(other, name, getattr(self, name).copy())
        other.orders = [order.copy() for order in self.orders]
        other.orders_from = [order.copy() for order in self.orders_from]
        other.seen = dict(self.seen)
        return other

    def decide(self, rank: int, one: int, other: int, step: int) -> None:
        """One comes before the other (places on the rank)."""
        self.orders[rank][one, other] = True
        self.orders_from[rank][one, other] = step

    def propagate(self, log: Log | None) -> None:
        """Find what follows; Contradiction if the case is closed."""
        ranks = range(len(self.facts.on))
        while True:
            self._messages(log)
            if any([self._once("_rank", rank, log) for rank in ranks]):
                continue
            if not any([self._once("_edges", rank, log) for rank in ranks]):
                return

    def _once(self, name: Literal["_rank", "_edges"], rank: int, log: Log | None) -> bool:
        """Look for something new on a rank, unless nothing has changed there since."""
        if self.seen.get((name, rank)) == self._state(rank):
            return False
        new: bool = getattr(self, name)(rank, log)
        self.seen[name, rank] = self._state(rank)
        return new

    def _state(self, rank: int) -> tuple[int, int, int]:
        """Grows, or falls, with everything that gets known about a rank."""
        on = self.facts.on[rank]
        sums = self.low[on].sum(), self.high[on].sum(), np.count_nonzero(self.orders[rank])
        return int(sums[0]), int(sums[1]), int(sums[2])

    def _open(self, actions: Ints) -> None:
        """Contradiction if an action has no start left."""
        closed = actions[self.low[actions] > self.high[actions]]
        if len(closed):
            raise Contradiction(*self._overload(closed[:1]))

    def _overload(self, actions: Ints) -> tuple[str, set[int]]:
        reads = set(self.low_from[actions]) | set(self.high_from[actions])
        return f"overload {self.facts.texts(actions)}", reads

    def _messages(self, log: Log | None) -> None:
        one, other, ticks = self.facts.arcs
        everything = np.arange(len(self.low))
        while True:
            later = np.nonzero(self.low[one] + ticks > self.low[other])[0]
            begin = (self.low[one] + ticks)[later]
            steps = self._sent(log, "later", later, self.low_from[one])
            self.low[other[later]], self.low_from[other[later]] = begin, steps
            self._open(everything)
            sooner = np.nonzero(self.high[other] - ticks < self.high[one])[0]
            until = (self.high[other] - ticks)[sooner]
            steps = self._sent(log, "sooner", sooner, self.high_from[other])
            self.high[one[sooner]], self.high_from[one[sooner]] = until, steps
            if not len(later) + len(sooner):
                return

    def _sent(self, log: Log | None, name: str, arcs: Ints, reads: Ints) -> Ints:
        """The numbers of the steps in which messages change a bound."""
        if log is None:
            return np.zeros(len(arcs), np.int64)
        text = self.facts.text
        one, other, _ = self.facts.arcs
        lines = [f"{name} {text(one[i])} {text(other[i])}" for i in arcs]
        return np.array(
            [log.add(line, {int(reads[i])}) for i, line in zip(arcs, lines, strict=True)], np.int64
        )

    def _rank(self, rank: int, log: Log | None) -> bool:
        """Orders from bounds and memory, bounds from orders; whether anything was new."""
        on = self.facts.on[rank]
        order = self.orders[rank]
        cost = self.facts.cost[on]
        any_new = False
        while True:
            low = self.low[on]
            high = self.high[on]
            late = (low + cost)[:, None] > high[None, :]  # the first is not before the second
            new = late.T & ~order
            np.fill_diagonal(new, False)
            for one, other in np.argwhere(new):
                line = f"order {self.facts.text(on[one])} {self.facts.text(on[other])}"
                reads = {int(self.low_from[on[other]]), int(self.high_from[on[one]])}
                self._ordered(rank, one, other, line, reads, log)
            changed = bool(new.any()) | self._memory(rank, log)
            self._crossed(rank)
            changed |= self._work(rank, log)
            self._open(on)
            if not changed:
                return any_new
            any_new = True

    def _ordered(
        self, rank: int, one: int, other: int, line: str, reads: set[int], log: Log | None
    ) -> None:
        self.orders[rank][one, other] = True
        if log is not None:
            self.orders_from[rank][one, other] = log.add(line, reads)

    def _memory(self, rank: int, log: Log | None) -> bool:
        on = self.facts.on[rank]
        order = self.orders[rank]
        text = self.facts.text
        any_new = False
        forward, one, other = self.facts.room[rank].T
        for x, y in ((one, other), (other, one)):
            for i in np.nonzero(order[forward, x] & ~order[y, forward])[0]:
                f = int(forward[i])
                a = int(x[i])
                b = int(y[i])
                line = f"room {text(on[f])} {text(on[a])} {text(on[b])}"
                self._ordered(rank, b, f, line, {int(self.orders_from[rank][f, a])}, log)
                any_new = True
        return any_new

    def _crossed(self, rank: int) -> None:
        order = self.orders[rank]
        on = self.facts.on[rank]
        both = np.argwhere(order & order.T)
        if len(both):
            a, b = both[0]
            reads = {int(self.orders_from[rank][a, b]), int(self.orders_from[rank][b, a])}
            raise Contradiction(f"crossed {self.facts.text(on[a])} {self.facts.text(on[b])}", reads)

    def _work(self, rank: int, log: Log | None) -> bool:
        """Bounds from the work before and after each action."""
        on = self.facts.on[rank]
        order = self.orders[rank]
        cost = self.facts.cost[on]
        low = self.low[on]
        end = self.high[on] + cost
        first = np.argsort(-low, kind="stable")  # the latest first: its work, then more
        before = order[first].T
        reach = np.where(before, low[first] + np.cumsum(cost[first] * before, 1), -1)
        last = np.argsort(end, kind="stable")
        after = order[:, last]
        limit = np.where(after, end[last] - np.cumsum(cost[last] * after, 1), FAR)
        raised = np.nonzero(reach.max(1) > low)[0]
        lowered = np.nonzero(limit.min(1) < end)[0]
        for x in raised:
            step = 0
            if log is not None:
                count = int(reach[x].argmax()) + 1
                them = first[:count][before[x, :count]]
                reads = set(self.low_from[on[them]]) | set(self.orders_from[rank][them, x])
                line = f"raise {self.facts.text(on[x])} {self.facts.texts(on[them])}"
                step = log.add(line, reads)
            self.low[on[x]], self.low_from[on[x]] = reach[x].max(), step
        for x in lowered:
            count = int(limit[x].argmin()) + 1
            step = 0
            them = last[:count][after[x, :count]]
            until = limit[x].min() - cost[x]
            if log is not None:
                reads = set(self.high_from[on[them]]) | set(self.orders_from[rank][x, them])
                line = f"lower {self.facts.text(on[x])} {self.facts.texts(on[them])}"
                step = log.add(line, reads)
            if until < 0:  # bounds are never below 0: with x they don't fit between 0 and their end
                both = np.append(on[them], on[x])
                reads = {step, *self.high_from[on[them]]}
                raise Contradiction(f"overload {self.facts.texts(both)}", reads)
            self.high[on[x]], self.high_from[on[x]] = until, step
        return bool(len(raised) + len(lowered))

    def _edges(self, rank: int, log: Log | None) -> bool:
        """Edge-finding; whether anything was new."""
        on = self.facts.on[rank]
        order = self.orders[rank]
        any_new = False
        cost = self.facts.cost[on]
        low = self.low[on]
        end = self.high[on] + cost
        begins = np.unique(low)
        ends = np.unique(end)
        from_begin = low >= begins[:, None]
        by_end = end <= ends[:, None]
        work = (from_begin * cost) @ by_end.T.astype(np.int64)
        over = np.argwhere((begins[:, None] + work > ends) & (work > 0))
        if len(over):
            raise Contradiction(*self._overload(on[from_begin[over[0, 0]] & by_end[over[0, 1]]]))
        i, j = np.nonzero((work > 0) & (begins[:, None] + work + cost.max() > ends))  # little room
        inside = from_begin[i] & by_end[j]
        begin = begins[i][:, None]
        until = ends[j][:, None]
        length = work[i, j][:, None] + cost
        for behind, out in (
            (True, np.minimum(begin, low) + length > until),
            (False, begin + length > np.maximum(until, end)),
        ):
            at, x = np.nonzero(out & ~inside)
            known = order[:, x].T if behind else order[x]
            for k in np.nonzero((inside[at] & ~known).any(1))[0]:
                them = np.nonzero(inside[at[k]])[0]
                any_new |= self._put_out(rank, them, int(x[k]), behind, log)
        if any_new:
            self._crossed(rank)
        return any_new

    def _put_out(self, rank: int, them: Ints, x: int, behind: bool, log: Log | None) -> bool:
        """An action comes behind a set, or in front of it; whether that is new."""
        on = self.facts.on[rank]
        order = self.orders[rank]
        step = 0
        new = them[~(order[them, x] if behind else order[x, them])]
        if not len(new):
            return False
        if log is not None:
            name, mine = ("last", self.low_from) if behind else ("first", self.high_from)
            line = f"{name} {self.facts.texts(on[them])} {self.facts.text(on[x])}"
            reads = set(self.low_from[on[them]]) | set(self.high_from[on[them]]) | {mine[on[x]]}
            step = log.add(line, reads)
        where = (new, x) if behind else (x, new)
        order[where], self.orders_from[rank][where] = True, step
        return True
