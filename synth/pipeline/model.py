"""The CP-SAT model of a pipeline: an interval per action, no overlap per rank, room for each F.

    F, I, W    one interval each, of fixed length; their order within a stage is that of the
               microbatches, which loses nothing, as microbatches are alike
    data       F after F of the stage before, I after I of the next one, plus the latency; over a
               link with occupancy a message is an interval of its own, no two at once
    memory     a rank with several stages: from the start of F to the end of I one half, to the
               end of W another, as a cumulative. A rank with one: before F of m starts, so many I
               and W have ended that there is room, as a choice between how many of each, of which
               there are few, as all come in order. The choice is propagated far better: it proves
               in seconds what the cumulative does not in a minute

Every variable gets a hint, the lengths of intervals included: with incomplete ones the solver was
seen to lose the schedule that it was given.
"""

from __future__ import annotations

import math

from ortools.sat.python import cp_model

from synth.pipeline.evaluate import durations, line_of, starts
from synth.pipeline.problem import Orders, Problem
from verify.pipeline.schedule import Action, Kind


def unit_of(problem: Problem) -> int:
    """The greatest common divisor of all times, of which every makespan is a multiple."""
    costs = problem.costs
    links = [time for latency, occupancy, _ in problem.between for time in (latency, occupancy)]
    return math.gcd(*costs.forward, *costs.backward, *costs.weight, *links) or 1


class Model:
    """The model of one problem; times in units of :func:`unit_of`.

    Attributes:
        start: per compute action its start.
        sent: per action whose message goes over a link with occupancy, when that starts.
    """

    def __init__(
        self,
        problem: Problem,
        hint: Orders,
        least: int,
        most: int,
        into: cp_model.CpModel | None = None,
    ) -> None:
        """The makespan is in ``least`` .. ``most``, which is that of ``hint`` or more.

        A model of its own minimizes the makespan; one that is put ``into`` another does not.
        """
        self.problem, self.most, self.unit = problem, most, unit_of(problem)
        self.length: dict[str, tuple[int, ...]] = {
            kind: tuple(ticks // self.unit for ticks in per_stage)
            for kind, per_stage in durations(problem).items()
        }
        self.known = {a: begin // self.unit for a, begin in starts(problem, hint).items()}
        self.model = cp_model.CpModel() if into is None else into
        known = max(begin + self.length[a.kind][a.stage] for a, begin in self.known.items())
        self.objective = self._variable(known, low=min(least, most))
        self.start: dict[Action, cp_model.IntVar] = {}
        self.sent: dict[Action, cp_model.IntVar] = {}
        for stages in problem.stages_of:
            self._rank(stages)
        self._messages()
        for rank, limit in enumerate(problem.limits):
            if limit < 2 * problem.microbatches * len(problem.stages_of[rank]):
                stages = problem.stages_of[rank]
                if len(stages) == 1:
                    self._memory_of_one(stages[0], limit)
                else:
                    self._memory(stages, limit)
        if into is None:
            self.model.minimize(self.objective)

    def _variable(self, hint: int, low: int = 0) -> cp_model.IntVar:
        variable = self.model.new_int_var(low, self.most, "")
        self.model.add_hint(variable, hint)
        return variable

    def _rank(self, stages: tuple[int, ...]) -> None:
        """Its actions, one at a time, in order of the microbatches, W after I."""
        intervals = []
        last = self.problem.stages - 1
        for stage in stages:
            for m in range(self.problem.microbatches):
                for kind in ("F", "I", "W"):
                    action = Action(stage, kind, m)
                    length = self.length[kind][stage]
                    start = self.start[action] = self._variable(self.known[action])
                    self.model.add(start + length <= self.objective)
                    if m:
                        self.model.add(start >= self.start[Action(stage, kind, m - 1)] + length)
                    if length:
                        intervals.append(
                            self.model.new_fixed_size_interval_var(start, length, str(action))
                        )
                self._before(Action(stage, "I", m), Action(stage, "W", m))
                if stage == last:
                    self._before(Action(stage, "F", m), Action(stage, "I", m))
        self.model.add_no_overlap(intervals)

    def _before(self, one: Action, other: Action) -> None:
        self.model.add(self.start[other] >= self.start[one] + self.length[one.kind][one.stage])

    def in_turn(self, one: Action, other: Action, literal: cp_model.LiteralT) -> None:
        """``one`` ends before ``other`` starts, if ``literal`` holds."""
        end = self.start[one] + self.length[one.kind][one.stage]
        self.model.add(self.start[other] >= end).only_enforce_if(literal)

    def _messages(self) -> None:
        lines: dict[tuple[int, int], list[cp_model.IntervalVar]] = {}
        served = self._served()
        for stage, (latency, occupancy, half) in enumerate(self.problem.between):
            ways: tuple[tuple[Kind, int, int], ...] = (
                ("F", stage, stage + 1),
                ("I", stage + 1, stage),
            )
            for kind, source, target in ways:
                line = line_of(self.problem.rank_of[source], self.problem.rank_of[target], half)
                for m in range(self.problem.microbatches):
                    action = Action(source, kind, m)
                    ready = self.start[action] + self.length[kind][source]
                    if occupancy:
                        busy = occupancy // self.unit
                        message = self.sent[action] = self._variable(served[action])
                        self.model.add(message >= ready)
                        if m:
                            previous = self.sent[Action(source, kind, m - 1)]
                            self.model.add(message >= previous + busy)
                        lines.setdefault(line, []).append(
                            self.model.new_fixed_size_interval_var(message, busy, "")
                        )
                        ready = message + busy
                    needed = self.start[Action(target, kind, m)]
                    self.model.add(needed >= ready + latency // self.unit)
        for intervals in lines.values():
            self.model.add_no_overlap(intervals)

    def _served(self) -> dict[Action, int]:
        """When messages start in the hint: first come, first served."""
        rank_of = self.problem.rank_of
        last = self.problem.stages - 1
        free: dict[tuple[int, int], int] = {}
        found: dict[Action, int] = {}
        ends = {a: begin + self.length[a.kind][a.stage] for a, begin in self.known.items()}
        for action in sorted(ends, key=lambda a: (ends[a], rank_of[a.stage])):
            target = action.stage + (1 if action.kind == "F" else -1)
            if action.kind == "W" or not 0 <= target <= last:
                continue
            _, occupancy, half = self.problem.between[min(action.stage, target)]
            line = line_of(rank_of[action.stage], rank_of[target], half)
            found[action] = max(ends[action], free.get(line, 0))
            free[line] = found[action] + occupancy // self.unit
        return found

    def _memory(self, stages: tuple[int, ...], limit: int) -> None:
        """At most ``limit`` halves held by a rank with several stages."""
        held = []
        for stage in stages:
            for m in range(self.problem.microbatches):
                taken = Action(stage, "F", m)
                for kind in ("I", "W"):
                    given = Action(stage, kind, m)
                    length = self.length[kind][stage]
                    known = self.known[given] + length - self.known[taken]
                    held.append(
                        self.model.new_interval_var(
                            self.start[taken],
                            self._variable(known),
                            self.start[given] + length,
                            "",
                        )
                    )
        self.model.add_cumulative(held, [1] * len(held), limit)

    def _memory_of_one(self, stage: int, limit: int) -> None:
        """At most ``limit`` halves held by a rank with one stage.

        Before F of m starts, ``ended`` = 2 (m + 1) - limit of the I and W before it have ended: as
        many I as one likes, but no fewer than W and no more than m; W the rest. The fewest of each
        have ended in any case.
        """
        for m in range(self.problem.microbatches):
            taken = Action(stage, "F", m)
            ended = 2 * (m + 1) - limit
            if ended <= 0:
                continue
            fewest = -(-ended // 2)
            most = min(m, ended)
            self._after(taken, stage, fewest, ended - most)
            chosen = []
            for count in range(fewest, most + 1):
                literal = self.model.new_bool_var("")
                needed = self._given(stage, count, ended - count)
                self.model.add_hint(
                    literal,
                    all(
                        self.known[action] + self.length[action.kind][stage] <= self.known[taken]
                        for action in needed
                    ),
                )
                self._after(taken, stage, count, ended - count, literal)
                chosen.append(literal)
            self.model.add_bool_or(chosen)

    def _given(self, stage: int, inputs: int, weights: int) -> list[Action]:
        """The last of so many I, and of so many W."""
        counts: tuple[tuple[Kind, int], ...] = (("I", inputs), ("W", weights))
        return [Action(stage, kind, count - 1) for kind, count in counts if count > 0]

    def _after(
        self,
        taken: Action,
        stage: int,
        inputs: int,
        weights: int,
        literal: cp_model.IntVar | None = None,
    ) -> None:
        """``taken`` starts after so many I and W of its stage, if ``literal`` holds."""
        for given in self._given(stage, inputs, weights):
            length = self.length[given.kind][stage]
            constraint = self.model.add(self.start[taken] >= self.start[given] + length)
            if literal is not None:
                constraint.only_enforce_if(literal)
