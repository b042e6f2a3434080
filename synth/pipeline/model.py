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

from latecomer.synth.pipeline.evaluate import durations, line_of, starts
from latecomer.synth.pipeline.problem import Orders, Problem
from latecomer.verify.pipeline.schedule import Action, Kind


def unit_of(problem: Problem) -> int:
    """The greatest common divisor of all times, of which every makespan is a multiple."""
    costs = problem.costs
    times = [*costs.forward, *costs.backward, *costs.weight]
    for latency, occupancy, _ in problem.between:
        times += [latency, occupancy]
    return math.gcd(*times) or 1


class PipelineModel:
    """The model of one problem; times in units of :func:`unit_of`.

    Attributes:
        unit: in ticks.
        length: kind of action -> per stage how long it takes.
        hinted: per compute action its start in the hint.
        start: per compute action its start.
        sent: per action whose message goes over a link with occupancy, when that starts.
    """

    def __init__(
        self,
        problem: Problem,
        hint: Orders,
        bound: int,
        longest: int,
        into: cp_model.CpModel | None = None,
    ) -> None:
        """The makespan is in ``bound`` .. ``longest``, which is that of ``hint`` or more.

        A model of its own minimizes the makespan; one that is put ``into`` another does not.
        """
        self.problem = problem
        self.longest = longest
        self.unit = unit_of(problem)
        self.model = cp_model.CpModel() if into is None else into

        self.length: dict[str, tuple[int, ...]] = {}
        for kind, ticks_of_stages in durations(problem).items():
            self.length[kind] = tuple(ticks // self.unit for ticks in ticks_of_stages)
        self.hinted: dict[Action, int] = {}
        for action, ticks in starts(problem, hint).items():
            self.hinted[action] = ticks // self.unit

        hinted_makespan = max(self._hinted_end(action) for action in self.hinted)
        self.objective = self._variable(hinted_makespan, low=min(bound, longest))
        self.start: dict[Action, cp_model.IntVar] = {}
        self.sent: dict[Action, cp_model.IntVar] = {}
        for stages in problem.stages_of:
            self._rank(stages)
        self._messages()
        for stages, limit in zip(problem.stages_of, problem.limits, strict=True):
            if limit < 2 * problem.microbatches * len(stages):
                if len(stages) == 1:
                    self._memory_of_one(stages[0], limit)
                else:
                    self._memory(stages, limit)
        if into is None:
            self.model.minimize(self.objective)

    def _hinted_end(self, action: Action) -> int:
        return self.hinted[action] + self.length[action.kind][action.stage]

    def _variable(self, hint: int, low: int = 0) -> cp_model.IntVar:
        variable = self.model.new_int_var(low, self.longest, "")
        self.model.add_hint(variable, hint)
        return variable

    def _rank(self, stages: tuple[int, ...]) -> None:
        """Its actions, one at a time, in order of the microbatches, W after I."""
        intervals = []
        last_stage = self.problem.stages - 1
        for stage in stages:
            for m in range(self.problem.microbatches):
                for kind in ("F", "I", "W"):
                    action = Action(stage, kind, m)
                    length = self.length[kind][stage]
                    start = self.start[action] = self._variable(self.hinted[action])
                    self.model.add(start + length <= self.objective)
                    # In order of the microbatches: they are alike, so nothing is lost, and the
                    # solver is helped a lot.
                    if m:
                        self.model.add(start >= self.start[Action(stage, kind, m - 1)] + length)
                    if length:
                        intervals.append(
                            self.model.new_fixed_size_interval_var(start, length, str(action))
                        )
                self._before(Action(stage, "I", m), Action(stage, "W", m))
                if stage == last_stage:
                    self._before(Action(stage, "F", m), Action(stage, "I", m))
        self.model.add_no_overlap(intervals)

    def _before(self, first: Action, second: Action) -> None:
        """``first`` ends before ``second`` starts."""
        end = self.start[first] + self.length[first.kind][first.stage]
        self.model.add(self.start[second] >= end)

    def in_turn(self, first: Action, second: Action, literal: cp_model.LiteralT) -> None:
        """``first`` ends before ``second`` starts, if ``literal`` holds."""
        end = self.start[first] + self.length[first.kind][first.stage]
        self.model.add(self.start[second] >= end).only_enforce_if(literal)

    def _messages(self) -> None:
        """Data is there before it is needed; of messages over one link one at a time is sent."""
        lines: dict[tuple[int, int], list[cp_model.IntervalVar]] = {}
        hinted_sends = self._hinted_sends()
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
                        message = self.sent[action] = self._variable(hinted_sends[action])
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

    def _hinted_sends(self) -> dict[Action, int]:
        """When messages start in the hint: first come, first served."""
        rank_of = self.problem.rank_of
        last_stage = self.problem.stages - 1
        line_free: dict[tuple[int, int], int] = {}
        sends: dict[Action, int] = {}
        ends = {action: self._hinted_end(action) for action in self.hinted}
        for action in sorted(ends, key=lambda action: (ends[action], rank_of[action.stage])):
            target = action.stage + (1 if action.kind == "F" else -1)
            if action.kind == "W" or not 0 <= target <= last_stage:
                continue
            _, occupancy, half = self.problem.between[min(action.stage, target)]
            line = line_of(rank_of[action.stage], rank_of[target], half)
            sends[action] = max(ends[action], line_free.get(line, 0))
            line_free[line] = sends[action] + occupancy // self.unit
        return sends

    def _memory(self, stages: tuple[int, ...], limit: int) -> None:
        """At most ``limit`` halves held by a rank with several stages."""
        held = []
        for stage in stages:
            for m in range(self.problem.microbatches):
                forward = Action(stage, "F", m)
                for kind in ("I", "W"):
                    backward = Action(stage, kind, m)
                    length = self.length[kind][stage]
                    hinted_duration = self._hinted_end(backward) - self.hinted[forward]
                    interval = self.model.new_interval_var(
                        self.start[forward],
                        self._variable(hinted_duration),
                        self.start[backward] + length,
                        "",
                    )
                    held.append(interval)
        self.model.add_cumulative(held, [1] * len(held), limit)

    def _memory_of_one(self, stage: int, limit: int) -> None:
        """At most ``limit`` halves held by a rank with one stage.

        Before F of m starts, ``ended`` = 2 (m + 1) - limit of the I and W before it have ended: as
        many I as one likes, but no fewer than W and no more than m; W the rest. The fewest of each
        have ended in any case.
        """
        for m in range(self.problem.microbatches):
            forward = Action(stage, "F", m)
            ended = 2 * (m + 1) - limit
            if ended <= 0:
                continue
            fewest_inputs = -(-ended // 2)
            most_inputs = min(m, ended)
            self._after(forward, stage, fewest_inputs, ended - most_inputs)

            choices = []
            for inputs in range(fewest_inputs, most_inputs + 1):
                literal = self.model.new_bool_var("")
                needed = self._last_of(stage, inputs, ended - inputs)
                is_so_in_hint = all(
                    self._hinted_end(action) <= self.hinted[forward] for action in needed
                )
                self.model.add_hint(literal, is_so_in_hint)
                self._after(forward, stage, inputs, ended - inputs, literal)
                choices.append(literal)
            self.model.add_bool_or(choices)

    def _last_of(self, stage: int, inputs: int, weights: int) -> list[Action]:
        """The last of so many I, and of so many W."""
        counts: tuple[tuple[Kind, int], ...] = (("I", inputs), ("W", weights))
        return [Action(stage, kind, count - 1) for kind, count in counts if count > 0]

    def _after(
        self,
        forward: Action,
        stage: int,
        inputs: int,
        weights: int,
        literal: cp_model.IntVar | None = None,
    ) -> None:
        """``forward`` starts after so many I and W of its stage, if ``literal`` holds."""
        for backward in self._last_of(stage, inputs, weights):
            end = self.start[backward] + self.length[backward.kind][stage]
            constraint = self.model.add(self.start[forward] >= end)
            if literal is not None:
                constraint.only_enforce_if(literal)
