"""Where two runs part: the first step, and in it the first thing, that is not the same in both.

A step begins with its inputs, of all its ranks together: which rank computed which microbatch does
not matter. Then come its averaged gradients, in the order of the first run's all-reduces. Models
are compared one after the other, in the order in which they were attached.

After the first difference all that follows is likely to differ, so the counts say how the rest is:
a few gradients that differ have another cause than all of them.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from latecomer.runtime.samebits.hashed_runs import Model, Noted, Run, Step
from latecomer.verify.errors import ArgumentError

INPUTS = "inputs"
GRADIENT = "gradient"
NOTHING = "nothing"  # in place of a hash


class Disagreement(msgspec.Struct, frozen=True):
    """Ranks of one run that have different averages: no all-reduce does that."""

    run: str
    model: int
    step: int
    parameter: str
    ranks: dict[str, list[int]]  # by hash; by "nothing", those that had no such gradient


class Difference(msgspec.Struct, frozen=True):
    """The first thing that two runs do not have in common."""

    kind: str  # inputs or gradient
    model: int
    steps: tuple[int, int]  # in each run; the same, but after a checkpoint
    parameter: str = ""
    hashes: tuple[list[str], list[str]] = ([], [])
    """Of a gradient, in each run; of inputs, those that the other run has not."""
    microbatches: list[int] = []  # with other inputs, where they have numbers


class Count(msgspec.Struct):
    """How much was compared, and how much of that is the same."""

    compared: int = 0
    same: int = 0

    def add(self, compared: int, same: int) -> None:
        """Some more were compared."""
        self.compared += compared
        self.same += same


class Comparison(msgspec.Struct):
    """Two runs, side by side."""

    disagreements: list[Disagreement]  # the first of each run that has one
    difference: Difference | None
    steps: Count
    gradients: Count
    inputs: Count
    gradients_there: Count  # in the step of the first difference
    inputs_there: Count

    @property
    def is_same(self) -> bool:
        """Whether there is nothing to look for."""
        return self.difference is None and not self.disagreements


def compare(first: Run, second: Run, resumed_at: int = 0) -> Comparison:
    """Compare two runs; the second one's step 0 is step ``resumed_at`` of the first.

    Raises:
        ArgumentError: the runs have nothing to compare.
    """
    if len(first.models) != len(second.models):
        requirement = f"has hashes of {len(second.models)} model(s), not {len(first.models)}"
        raise ArgumentError("RUN", str(second.path), requirement)
    result = Comparison(
        disagreements=[*_disagreements(first), *_disagreements(second)],
        difference=None,
        steps=Count(),
        gradients=Count(),
        inputs=Count(),
        gradients_there=Count(),
        inputs_there=Count(),
    )
    for number, models in enumerate(zip(first.models, second.models, strict=True)):
        _require_common(models, second, resumed_at)
        with_inputs = all(model.has_inputs for model in models)
        for pair in _pairs(models, number, resumed_at):
            _compare_step(pair, result, with_inputs=with_inputs)
    return result


@dataclass(frozen=True)
class _Pair:
    """The same step of two runs."""

    model: int
    numbers: tuple[int, int]
    first: Step
    second: Step


def _pairs(models: tuple[Model, Model], model: int, resumed_at: int) -> Iterator[_Pair]:
    first, second = models
    for number, of_second in enumerate(second.steps[: len(first.steps) - resumed_at]):
        in_first = number + resumed_at
        yield _Pair(model, (in_first, number), first.steps[in_first], of_second)


def _compare_step(pair: _Pair, result: Comparison, *, with_inputs: bool) -> None:
    """Add a step to the result."""
    differences: list[Difference] = []
    inputs = Count()
    if with_inputs:
        of_first, of_second = _comparable(pair.first.inputs, pair.second.inputs)
        common = (of_first & of_second).total()
        inputs.add(max(of_first.total(), of_second.total()), common)
        if of_first != of_second:
            differences.append(_difference_of_inputs(pair, of_first, of_second))

    gradients = Count()
    for parameter in {**pair.first.gradients, **pair.second.gradients}:
        hashes = (pair.first.hashes(parameter), pair.second.hashes(parameter))
        is_same = hashes[0] == hashes[1]
        gradients.add(compared=1, same=is_same)
        if not is_same:
            of_runs = (sorted(hashes[0]), sorted(hashes[1]))
            differences.append(
                Difference(GRADIENT, pair.model, pair.numbers, parameter, hashes=of_runs)
            )

    result.steps.add(compared=1, same=not differences)
    result.gradients.add(gradients.compared, gradients.same)
    result.inputs.add(inputs.compared, inputs.same)
    if differences and result.difference is None:
        result.difference = differences[0]
        result.gradients_there = gradients
        result.inputs_there = inputs


def _comparable(
    first: Counter[Noted], second: Counter[Noted]
) -> tuple[Counter[Noted], Counter[Noted]]:
    """Inputs without microbatches' numbers, where not all have one."""
    if all(number is not None for number, _ in (*first, *second)):
        return first, second
    return _without_numbers(first), _without_numbers(second)


def _without_numbers(inputs: Counter[Noted]) -> Counter[Noted]:
    plain: Counter[Noted] = Counter()
    for (_, text), times in inputs.items():
        plain[None, text] += times
    return plain


def _difference_of_inputs(
    pair: _Pair, of_first: Counter[Noted], of_second: Counter[Noted]
) -> Difference:
    in_first = of_first - of_second
    in_second = of_second - of_first
    numbers = {number for number, _ in (*in_first, *in_second) if number is not None}
    hashes = (
        sorted(text for _, text in in_first.elements()),
        sorted(text for _, text in in_second.elements()),
    )
    return Difference(INPUTS, pair.model, pair.numbers, hashes=hashes, microbatches=sorted(numbers))


def _disagreements(run: Run) -> Iterator[Disagreement]:
    """The first place in which ranks of a run differ among themselves, if there is one."""
    for number, model in enumerate(run.models):
        for position, step in enumerate(model.steps):
            for parameter, ranks in step.gradients.items():
                having = itertools.chain.from_iterable(ranks.values())
                lacking = sorted(set(model.ranks) - set(having))
                if len(ranks) > 1 or lacking:
                    by_hash = {**ranks, NOTHING: lacking} if lacking else ranks
                    yield Disagreement(str(run.path), number, position, parameter, by_hash)
                    return


def _require_common(models: tuple[Model, Model], second: Run, resumed_at: int) -> None:
    """ArgumentError unless there is something to compare."""
    of_first, of_second = models
    if resumed_at >= len(of_first.steps):
        requirement = f"must be a step of the first run, 0..{len(of_first.steps) - 1}"
        raise ArgumentError("--resumed-at", resumed_at, requirement)
    if of_first.steps[0].gradients.keys().isdisjoint(of_second.steps[0].gradients):
        requirement = "has no parameter that the other run has: it is of another model"
        raise ArgumentError("RUN", str(second.path), requirement)
