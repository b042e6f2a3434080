"""What ``latecomer selftest --device cuda`` (or ``simulated``) does, and what it writes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from latecomer import synth
from latecomer.runtime.selftest.device.methods import methods_for
from latecomer.runtime.selftest.device.report import GpuReport
from latecomer.runtime.selftest.device.suite import SelftestPlan, run
from latecomer.runtime.selftest.suite import selftest
from latecomer.verify.errors import ArgumentError
from latecomer.verify.output import write_atomically

RANKS = 3  # where there are not several GPUs to count
LEAST_RANKS_PER_MACHINE = 2


def on_gpus(
    kind: str,
    ranks: int | None,
    json: Path | None,
    say: Callable[[str], None],
    *,
    machines: int = 1,
) -> bool:
    """Run it, and write the report to ``json``, also that of a run that was interrupted.

    The ranks are taken for those of so many ``machines``, in a row on each. Whether all that could
    be tried was right.

    Raises:
        ArgumentError: ``cuda`` where there is none, or machines that would not have equally many
            ranks, two or more.
    """
    if ranks is None:
        gpus = torch.cuda.device_count()
        ranks = gpus if gpus > 1 else RANKS
        if machines > 1:
            ranks = max(ranks // machines, LEAST_RANKS_PER_MACHINE) * machines
    if machines < 1 or ranks % machines or ranks // machines < LEAST_RANKS_PER_MACHINE:
        requirement = f"must give each machine equally many of {ranks} ranks, two or more"
        raise ArgumentError("--machines", machines, requirement, "Give --ranks, too")
    report = GpuReport(kind, ranks)
    if kind == "cuda":
        if not torch.cuda.is_available():
            remedy = "To see what it does without one: --device simulated"
            raise ArgumentError("--device", kind, "no CUDA device is visible to torch", remedy)
        plan = SelftestPlan(kind, methods_for(kind, machines), machines=machines)
    else:
        plan = SelftestPlan.simulated(methods_for(kind, machines), machines)
        say("SIMULATED: streams are threads and no GPU is used; times mean nothing")
    try:
        run(plan, report, say)
        if kind == "cuda" and report.passed:
            say("the executor and the process group backend:")
            one_late = {"one late": synth.generate(report.ranks)}
            if not selftest(one_late, report.ranks, kind, say):
                report.error = "the executor or the process group backend failed"
    except KeyboardInterrupt:
        report.error = "interrupted"
        raise
    finally:
        if json:
            write_atomically(json, report.to_json())
            say(f"written: {json}")
    say(f"selftest on {kind}: {'passed' if report.passed else 'FAILED'}")
    return report.passed
