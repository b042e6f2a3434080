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
it was found from; so the search (``latecomer.synth.pipeline.refute``) can leave out what was of no
use.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from latecomer.synth.pipeline.facts import Facts, Ints

FAR = 2**62
"""Later than any time that is asked about (``MOST_TICKS`` of the search for refutations)."""


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

    Attributes:
        low, high: per action the earliest and the latest start, in ticks.
        orders: per rank a table of booleans: whether the row's action comes before the column's.
        low_from, high_from, orders_from: the steps that these are from.
        states: (propagator, rank) -> what was known of the rank when it had last found all.
    """

    def __init__(self, facts: Facts, deadline: int) -> None:
        self.facts = facts
        self.low = np.zeros(len(facts.cost), np.int64)
        self.high = deadline - facts.cost
        self.orders = [order.copy() for order in facts.orders]
        self.low_from = np.zeros_like(self.low)
        self.high_from = np.zeros_like(self.low)
        self.orders_from = [np.zeros(order.shape, np.int64) for order in self.orders]
        self.states: dict[tuple[str, int], tuple[int, int, int]] = {}

    def copy(self) -> Windows:
        """The same for another case."""
        copy = object.__new__(Windows)  # __init__ would copy all of the facts first
        copy.facts = self.facts
        copy.low = self.low.copy()
        copy.high = self.high.copy()
        copy.low_from = self.low_from.copy()
        copy.high_from = self.high_from.copy()
        copy.orders = [order.copy() for order in self.orders]
        copy.orders_from = [order.copy() for order in self.orders_from]
        copy.states = dict(self.states)
        return copy

    def decide(self, rank: int, first: int, second: int, step: int) -> None:
        """``first`` comes before ``second`` (places on the rank), by that step."""
        self.orders[rank][first, second] = True
        self.orders_from[rank][first, second] = step

    def propagate(self, log: Log | None) -> None:
        """Find what follows; Contradiction if the case is closed."""
        ranks = range(len(self.facts.on))
        while True:
            # The cheapest first: edge-finding looks at all sets between two bounds of a rank, so it
            # is left for when nothing else finds anything.
            self._messages(log)
            if any([self._once("_rank", rank, log) for rank in ranks]):
                continue
            if not any([self._once("_edges", rank, log) for rank in ranks]):
                return

    def _once(self, name: Literal["_rank", "_edges"], rank: int, log: Log | None) -> bool:
        """Look for something new on a rank, unless nothing has changed there since."""
        if self.states.get((name, rank)) == self._state(rank):
            return False
        new: bool = getattr(self, name)(rank, log)
        self.states[name, rank] = self._state(rank)
        return new

    def _state(self, rank: int) -> tuple[int, int, int]:
        """Grows, or falls, with everything that gets known about a rank."""
        on = self.facts.on[rank]
        return (
            int(self.low[on].sum()),
            int(self.high[on].sum()),
            int(np.count_nonzero(self.orders[rank])),
        )

    def _open(self, actions: Ints) -> None:
        """Contradiction if an action has no start left."""
        closed = actions[self.low[actions] > self.high[actions]]
        if len(closed):
            raise Contradiction(*self._overload(closed[:1]))

    def _overload(self, actions: Ints) -> tuple[str, set[int]]:
        """The line of a contradiction, more work than time, and the steps that it reads."""
        reads = set(self.low_from[actions]) | set(self.high_from[actions])
        return f"overload {self.facts.texts(actions)}", reads

    def _messages(self, log: Log | None) -> None:
        """Bounds from messages: an action is not before its data, nor too late for who needs it."""
        # All together: an action receives one message at most, and sends one.
        senders, receivers, ticks = self.facts.arcs
        everything = np.arange(len(self.low))
        while True:
            later = np.nonzero(self.low[senders] + ticks > self.low[receivers])[0]
            begin = (self.low[senders] + ticks)[later]
            steps = self._sent(log, "later", later, self.low_from[senders])
            self.low[receivers[later]] = begin
            self.low_from[receivers[later]] = steps
            self._open(everything)

            sooner = np.nonzero(self.high[receivers] - ticks < self.high[senders])[0]
            until = (self.high[receivers] - ticks)[sooner]
            steps = self._sent(log, "sooner", sooner, self.high_from[receivers])
            self.high[senders[sooner]] = until
            self.high_from[senders[sooner]] = steps

            if not len(later) + len(sooner):
                return

    def _sent(self, log: Log | None, name: str, arcs: Ints, reads: Ints) -> Ints:
        """The numbers of the steps in which messages change a bound."""
        if log is None:
            return np.zeros(len(arcs), np.int64)

        text = self.facts.text
        senders, receivers, _ = self.facts.arcs
        steps = []
        for arc in arcs:
            line = f"{name} {text(senders[arc])} {text(receivers[arc])}"
            steps.append(log.add(line, {int(reads[arc])}))
        return np.array(steps, np.int64)

    def _rank(self, rank: int, log: Log | None) -> bool:
        """Orders from bounds and memory, bounds from orders; whether anything was new."""
        on = self.facts.on[rank]
        order = self.orders[rank]
        cost = self.facts.cost[on]
        any_new = False
        while True:
            low = self.low[on]
            high = self.high[on]
            not_before = (low + cost)[:, None] > high[
                None, :
            ]  # the row's action is too late for it
            new = not_before.T & ~order
            np.fill_diagonal(new, False)
            for first, second in np.argwhere(new):
                line = f"order {self.facts.text(on[first])} {self.facts.text(on[second])}"
                reads = {int(self.low_from[on[second]]), int(self.high_from[on[first]])}
                self._ordered(rank, first, second, line, reads, log)
            changed = bool(new.any()) | self._memory(rank, log)
            self._crossed(rank)
            changed |= self._work(rank, log)
            self._open(on)
            if not changed:
                return any_new
            any_new = True

    def _ordered(
        self, rank: int, first: int, second: int, line: str, reads: set[int], log: Log | None
    ) -> None:
        self.orders[rank][first, second] = True
        if log is not None:
            self.orders_from[rank][first, second] = log.add(line, reads)

    def _memory(self, rank: int, log: Log | None) -> bool:
        """Orders from memory: of I and W one makes room for F; if F is before one, the other."""
        on = self.facts.on[rank]
        order = self.orders[rank]
        text = self.facts.text
        any_new = False
        forwards, inputs, weights = self.facts.room[rank].T
        for too_late, makes_room in ((inputs, weights), (weights, inputs)):
            for row in np.nonzero(order[forwards, too_late] & ~order[makes_room, forwards])[0]:
                f = int(forwards[row])
                a = int(too_late[row])
                b = int(makes_room[row])
                line = f"room {text(on[f])} {text(on[a])} {text(on[b])}"
                self._ordered(rank, b, f, line, {int(self.orders_from[rank][f, a])}, log)
                any_new = True
        return any_new

    def _crossed(self, rank: int) -> None:
        """Contradiction if each of two actions comes before the other."""
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

        # column k of a row: the work of those before it, of the k + 1 that may start the latest
        latest_first = np.argsort(-low, kind="stable")
        before = order[latest_first].T
        reach = np.where(before, low[latest_first] + np.cumsum(cost[latest_first] * before, 1), -1)
        # and the work of those after it, of the k + 1 that have to end the soonest
        soonest_first = np.argsort(end, kind="stable")
        after = order[:, soonest_first]
        work_after = np.cumsum(cost[soonest_first] * after, 1)
        limit = np.where(after, end[soonest_first] - work_after, FAR)
        raised = np.nonzero(reach.max(1) > low)[0]
        lowered = np.nonzero(limit.min(1) < end)[0]

        for x in raised:
            step = 0
            if log is not None:
                count = int(reach[x].argmax()) + 1
                them = latest_first[:count][before[x, :count]]
                reads = set(self.low_from[on[them]]) | set(self.orders_from[rank][them, x])
                line = f"raise {self.facts.text(on[x])} {self.facts.texts(on[them])}"
                step = log.add(line, reads)
            self.low[on[x]] = reach[x].max()
            self.low_from[on[x]] = step

        for x in lowered:
            count = int(limit[x].argmin()) + 1
            step = 0
            them = soonest_first[:count][after[x, :count]]
            until = limit[x].min() - cost[x]
            if log is not None:
                reads = set(self.high_from[on[them]]) | set(self.orders_from[rank][x, them])
                line = f"lower {self.facts.text(on[x])} {self.facts.texts(on[them])}"
                step = log.add(line, reads)
            if until < 0:  # bounds are never below 0: with x they don't fit between 0 and their end
                both = np.append(on[them], on[x])
                reads = {step, *self.high_from[on[them]]}
                raise Contradiction(f"overload {self.facts.texts(both)}", reads)
            self.high[on[x]] = until
            self.high_from[on[x]] = step
        return bool(len(raised) + len(lowered))

    def _edges(self, rank: int, log: Log | None) -> bool:
        """Edge-finding; whether anything was new."""
        on = self.facts.on[rank]
        order = self.orders[rank]
        any_new = False
        cost = self.facts.cost[on]
        low = self.low[on]
        end = self.high[on] + cost

        # sets: all that lies between a begin (row) and an end (column), and the work of each
        begins = np.unique(low)
        ends = np.unique(end)
        from_begin = low >= begins[:, None]
        by_end = end <= ends[:, None]
        work = (from_begin * cost) @ by_end.T.astype(np.int64)
        over = np.argwhere((begins[:, None] + work > ends) & (work > 0))
        if len(over):
            raise Contradiction(*self._overload(on[from_begin[over[0, 0]] & by_end[over[0, 1]]]))

        # only those with so little room that some action may not fit among them
        rows, columns = np.nonzero((work > 0) & (begins[:, None] + work + cost.max() > ends))
        inside = from_begin[rows] & by_end[columns]
        begin = begins[rows][:, None]
        until = ends[columns][:, None]
        length = work[rows, columns][:, None] + cost
        for behind, out in (
            (True, np.minimum(begin, low) + length > until),
            (False, begin + length > np.maximum(until, end)),
        ):
            sets, actions = np.nonzero(out & ~inside)
            ordered = order[:, actions].T if behind else order[actions]
            for i in np.nonzero((inside[sets] & ~ordered).any(1))[0]:
                them = np.nonzero(inside[sets[i]])[0]
                any_new |= self._put_out(rank, them, int(actions[i]), behind, log)
        if any_new:
            self._crossed(rank)
        return any_new

    def _put_out(self, rank: int, them: Ints, x: int, behind: bool, log: Log | None) -> bool:
        """An action comes behind a set, or in front of it; whether that is new."""
        on = self.facts.on[rank]
        order = self.orders[rank]
        new = them[~(order[them, x] if behind else order[x, them])]
        if not len(new):
            return False

        step = 0
        if log is not None:
            name = "last" if behind else "first"
            line = f"{name} {self.facts.texts(on[them])} {self.facts.text(on[x])}"
            bound_from = self.low_from[on[x]] if behind else self.high_from[on[x]]
            reads = set(self.low_from[on[them]]) | set(self.high_from[on[them]]) | {bound_from}
            step = log.add(line, reads)
        entries = (new, x) if behind else (x, new)
        order[entries] = True
        self.orders_from[rank][entries] = step
        return True
