"""What the runs of ``same_bits.py`` ended with, and whether it is as it should be."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from same_bits_job import CONTRIBUTIONS, STOPPED_S, Report, Run


@dataclass
class Result:
    """One run, and what its ranks said."""

    run: Run
    digests: list[str]  # of all parameters; one, if the ranks have the same ones
    repeated: int = 0  # sums that were done again
    repeated_in: list[int] = field(default_factory=list)  # the steps with such sums
    longest_step_s: float = 0.0
    losses: list[float] = field(default_factory=list)  # by step
    parameters: np.ndarray | None = None

    def as_json(self) -> dict[str, Any]:
        """Without the parameters."""
        result = asdict(self)
        del result["parameters"]
        return result


def joined(run: Run, reports: list[Report]) -> Result:
    """What the ranks say about a run, together."""
    losses = np.sum([report.losses for report in reports], axis=0) / CONTRIBUTIONS
    return Result(
        run=run,
        digests=sorted({report.digest for report in reports}),
        repeated=max(report.repeated for report in reports),
        repeated_in=sorted({step for report in reports for step in report.repeated_in}),
        longest_step_s=max(report.longest_step_s for report in reports),
        losses=losses.tolist(),
        parameters=reports[0].parameters,
    )


def hashes(results: Iterable[Result]) -> list[str]:
    """All that these runs ended with, the first ones first."""
    return list(dict.fromkeys(digest for result in results for digest in result.digests))


def calm(results: Iterable[Result]) -> list[Result]:
    """Runs with ``bits="same"`` whose loss has no spike."""
    return [each for each in results if each.run.bits == "same" and not each.run.has_spike]


def spiked(results: Iterable[Result]) -> list[Result]:
    """Runs with ``bits="same"`` whose loss has a spike."""
    return [each for each in results if each.run.has_spike]


def without(results: Iterable[Result]) -> dict[int, list[Result]]:
    """By number of ranks, runs without the option, all of the same number of steps."""
    by_length: defaultdict[tuple[int, int], list[Result]] = defaultdict(list)
    for each in results:
        if each.run.bits == "any":
            by_length[each.run.ranks, each.run.steps].append(each)
    chosen: dict[int, list[Result]] = {}
    for (ranks, _), of_length in by_length.items():
        if len(of_length) > len(chosen.get(ranks, [])):
            chosen[ranks] = of_length
    return chosen


def faults(results: list[Result]) -> list[str]:
    """What is not as it should be."""
    found = []
    for each in results:
        if len(each.digests) > 1:
            found.append(f"{each.run}: its ranks end with different parameters")

    the_hash = hashes(calm(results))
    if len(the_hash) != 1:
        found.append(f'bits="same" gave {len(the_hash)} hashes: {", ".join(the_hash)}')
    for ranks, of_ranks in without(results).items():
        if len(hashes(of_ranks)) < 2:
            found.append(f"without the option {ranks} ranks gave one hash: this shows nothing")

    after_spike = hashes(spiked(results))
    if len(after_spike) != 1 or after_spike == the_hash:
        found.append(f"with a spike there must be one other hash: {', '.join(after_spike)}")
    for each in spiked(results):
        if each.run.spiked_step not in each.repeated_in:
            found.append(f"{each.run}: the spike made no sum overflow")
    for each in results:
        if each.run.is_stopped and each.longest_step_s < 0.9 * STOPPED_S:
            found.append(f"{each.run}: no rank stood still")
    return found
