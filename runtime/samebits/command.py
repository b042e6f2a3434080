"""``latecomer compare-bits``: where two runs that should have the same bits part.

What reads and compares is imported by the command: all commands are known at the start of every
one.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

if TYPE_CHECKING:
    from latecomer.runtime.samebits.comparison import Comparison, Count, Difference, Disagreement
    from latecomer.runtime.samebits.hashed_runs import Model, Run

MOST_SHOWN = 4  # hashes


def compare_bits(
    first: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="The directory that LATECOMER_HASHES named in a run."),
    ],
    second: Annotated[Path, typer.Argument(metavar="RUN", help="That of the other run.")],
    resumed_at: Annotated[
        int,
        typer.Option(
            metavar="STEP",
            help="The second run went on from a checkpoint: its step 0 is this step of the first.",
            min=0,
        ),
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say in which step, and in which inputs or parameter, the bits of two runs part.

    The runs may have different numbers of ranks. Ranks of one run that differ among themselves are
    said first. Steps are counted from 0.

    Exit code 0: all is the same; 1: something differs; 2: there is nothing to compare.

    \b
    Examples:
      latecomer compare-bits four two
      latecomer compare-bits four two --json
      latecomer compare-bits whole resumed --resumed-at 10
    """
    from latecomer.runtime.samebits.comparison import compare
    from latecomer.runtime.samebits.hashed_runs import read_run

    runs = (read_run(first), read_run(second))
    for notice in (*runs[0].notices, *runs[1].notices):
        print(notice, file=sys.stderr)
    comparison = compare(*runs, resumed_at=resumed_at)
    if as_json:
        print(msgspec.json.encode(_for_machines(runs, comparison)).decode())
    else:
        print("\n".join(_lines(runs, comparison)))
    sys.exit(int(not comparison.is_same))


def _for_machines(runs: tuple[Run, Run], comparison: Comparison) -> dict[str, object]:
    described = [
        {
            "path": str(run.path),
            "models": [
                {
                    "ranks": model.ranks,
                    "bits": model.bits,
                    "contributions": model.contributions,
                    "steps": len(model.steps),
                }
                for model in run.models
            ],
            "conditions": {name: sorted(values) for name, values in run.conditions.items()},
        }
        for run in runs
    ]
    return {
        "same": comparison.is_same,
        "runs": described,
        **msgspec.structs.asdict(comparison),
    }


def _lines(runs: tuple[Run, Run], comparison: Comparison) -> Iterator[str]:
    for run in runs:
        for number, model in enumerate(run.models):
            of_model = f", model {number}" if len(run.models) > 1 else ""
            yield f"{run.path}{of_model}: {_described(model)}"
    has_several = len(runs[0].models) > 1
    for disagreement in comparison.disagreements:
        yield from _of_disagreement(disagreement, has_several=has_several)
    if comparison.difference is not None:
        yield from _of_difference(runs, comparison.difference, has_several=has_several)
        there = _counted(comparison.gradients_there, comparison.inputs_there)
        yield f"  in that step {there} are the same"
        yield from _causes(runs)
    yield from _of_counts(runs, comparison)


def _described(model: Model) -> str:
    ranks = len(model.ranks)
    contributions = f", {model.contributions} contributions" if model.bits == "same" else ""
    return f"{ranks} rank(s), bits {model.bits}{contributions}, {len(model.steps)} step(s)"


def _where(step: int, model: int, *, has_several: bool) -> str:
    return f"step {step} of model {model}" if has_several else f"step {step}"


def _of_disagreement(disagreement: Disagreement, *, has_several: bool) -> Iterator[str]:
    from latecomer.runtime.telemetry.rank_names import names

    where = _where(disagreement.step, disagreement.model, has_several=has_several)
    yield f"disagree: ranks of {disagreement.run}, first in {where}"
    yield f"  gradient of {disagreement.parameter}:"
    for text, ranks in disagreement.ranks.items():
        yield f"    {text} on {names(ranks)}"


def _of_difference(
    runs: tuple[Run, Run], difference: Difference, *, has_several: bool
) -> Iterator[str]:
    of_first, of_second = difference.steps
    where = _where(of_first, difference.model, has_several=has_several)
    if of_first != of_second:
        where += f" ({of_second} of {runs[1].path})"
    if difference.kind == "inputs":
        yield f"differ: first in {where}, in inputs{_microbatches(difference)}"
    else:
        yield f"differ: first in {where}, in the gradient of {difference.parameter}"
    for run, hashes in zip(runs, difference.hashes, strict=True):
        more = f" and {len(hashes) - MOST_SHOWN} more" if len(hashes) > MOST_SHOWN else ""
        yield f"    {', '.join(hashes[:MOST_SHOWN]) or 'nothing'}{more} in {run.path}"


def _microbatches(difference: Difference) -> str:
    if not difference.microbatches:
        return ""
    return f" of microbatch(es) {', '.join(map(str, difference.microbatches))}"


def _causes(runs: tuple[Run, Run]) -> Iterator[str]:
    """What the runs say of themselves, from which a difference may come."""
    for run in runs:
        if any(model.bits == "any" for model in run.models):
            yield f"  {run.path} has bits any: sums depend on who is late, and on the ranks"
    of_first, of_second = (run.conditions for run in runs)
    for name, values in of_first.items():
        others = of_second.get(name, frozenset())
        if values != others:
            texts = [", ".join(sorted(each)) or "unknown" for each in (values, others)]
            yield f"  {name}: {texts[0]} in {runs[0].path}, {texts[1]} in {runs[1].path}"


def _of_counts(runs: tuple[Run, Run], comparison: Comparison) -> Iterator[str]:
    steps = f"{comparison.steps.same} of {comparison.steps.compared} steps"
    counted = _counted(comparison.gradients, comparison.inputs)
    begin = "same" if comparison.is_same else "in all"
    yield f"{begin}: {steps}, {counted} are the same"
    if not comparison.inputs.compared:
        without = [run for run in runs if not any(model.has_inputs for model in run.models)]
        paths = " and ".join(str(run.path) for run in without)
        yield f"inputs are not compared: {paths} noted none"


def _counted(gradients: Count, inputs: Count) -> str:
    text = f"{gradients.same} of {gradients.compared} gradients"
    if inputs.compared:
        text = f"{inputs.same} of {inputs.compared} inputs and {text}"
    return text
