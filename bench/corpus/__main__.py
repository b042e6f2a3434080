"""Verdicts over all programs in folders.

    python -m bench.corpus FOLDERS [--seeds 20] [--kernel]

MSCCL XML, plans of MSCCL++, flows of TE-CCL.

FOLDERS hold files fetched from public repositories; none of them is part of this project. Equal
files count once. Every refuted one is executed until it hangs or sums wrongly, by an executor that
shares nothing with ``verify``; every proved one is executed, too, with drawn interleavings at the
sizes that it declares, and must end right each time. With ``--kernel`` the extracted checker is
asked about all programs of thread blocks, too, and the time of both is summed up.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from bench.corpus.confirm import counterexample
from bench.corpus.distance import distance
from bench.corpus.parse import parse
from bench.corpus.plans import PlanRun
from latecomer.verify.asynchronous.msccl import verify_xml
from latecomer.verify.asynchronous.msccl_xml import is_xml
from latecomer.verify.asynchronous.mscclpp import verify_plan
from latecomer.verify.asynchronous.mscclpp_plan import is_plan
from latecomer.verify.asynchronous.sizes import in_words
from latecomer.verify.asynchronous.teccl import is_solution, verify_flows
from latecomer.verify.asynchronous.verdict import AsynchronousReport
from latecomer.verify.core.verdict import Verdict
from latecomer.verify.errors import FormatError
from latecomer.verify.kernel import opinion_on_programs

HEAD = (
    "file", "collective", "ranks", "protocol", "verdict", "why", "free of deadlock up to", "slots",
    "executed", "load", "hops", "s",
)  # fmt: skip


def distinct(folders: list[Path]) -> list[Path]:
    """The algorithm files, plans and flows below the folders, the first of several equal ones."""
    files: dict[str, Path] = {}
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.suffix not in {".xml", ".json"} or not path.is_file():
                continue
            data = path.read_bytes()
            if b"<algo" in data[:4096] or (
                path.suffix == ".json" and (is_plan(data) or is_solution(data))
            ):
                files.setdefault(hashlib.sha256(data).hexdigest(), path)
    return list(files.values())


def why(report: AsynchronousReport) -> str:
    wrong = report.counterexample
    if wrong is not None:
        return f"{wrong.property}: {wrong.found}"
    return "; ".join(f"{name}: {r.note}" for name, r in report.results.items() if r.note)


def row_of_json(path: Path, seeds: int) -> list[str]:
    """Of a plan, which is executed, or of flows, which are not."""
    start = time.monotonic()
    data = path.read_bytes()
    try:
        verify = verify_plan if is_plan(data) else verify_flows
        report = verify(data, str(path))
    except FormatError as error:
        return malformed(path, error)
    seconds = time.monotonic() - start

    wrong = report.counterexample
    reason = "" if wrong is None else f"{wrong.property}: {wrong.found}"
    if isinstance(report, AsynchronousReport):
        collective = report.kind
        protocol = "MSCCL++"
        executed = executed_plan(path, report.verdict is Verdict.REFUTED, seeds)
    else:
        collective = report.collective
        protocol = "TE-CCL"
        executed = ""
    cells = [path.name, collective, str(report.ranks), protocol, report.verdict.value, reason]
    return [*cells, "", "", executed, "", "", f"{seconds:.2f}"]


def malformed(path: Path, error: FormatError) -> list[str]:
    """The row of a file that cannot be read."""
    cells = [path.name, "", "", "", "malformed", str(error)]
    return cells + [""] * (len(HEAD) - len(cells))


def executed_plan(path: Path, refuted: bool, seeds: int) -> str:
    """How the runs of a plan end: a refuted one must fail in one of them, a proved one in none."""
    runs = 3 * seeds if refuted else seeds
    for seed in range(runs):
        outcome = PlanRun(path, seed).outcome()
        if outcome.kind != "right":
            ending = f"{outcome.kind}: {outcome.detail}"
            return ending if refuted else f"DISAGREES: {ending}"
    return "DISAGREES: right" if refuted else "right"


def row(path: Path, seeds: int) -> list[str]:
    if path.suffix == ".json":
        return row_of_json(path, seeds)
    start = time.monotonic()
    try:
        report = verify_xml(path.read_bytes(), str(path))
    except FormatError as error:
        return malformed(path, error)
    seconds = time.monotonic() - start
    file = parse(path)
    hints = report.counterexample.actions if report.counterexample else ()
    refuted = report.verdict is Verdict.REFUTED
    failed_run = counterexample(file, hints, seeds if refuted else max(2, seeds // 4))
    executed = "right"
    if failed_run is not None:
        executed = f"{failed_run.outcome.kind}: {failed_run.outcome.detail}"
    if refuted == (failed_run is None):
        executed = f"DISAGREES: {executed}"

    free = report.freedom
    slack = report.slack
    upper = "no size"
    if free.unlimited and free.up_to != 0:
        upper = in_words(free.up_to)

    from_least = distance(file)
    load = ""
    hops = ""
    if from_least is not None:
        load = f"{float(from_least.load / from_least.least):.2f}"
        hops = f"{from_least.hops} / {from_least.fewest}"
    return [
        path.name,
        report.kind,
        str(report.ranks),
        report.protocol,
        report.verdict.value,
        why(report),
        upper,
        "" if slack is None else f"{slack:+}",
        executed,
        load,
        hops,
        f"{seconds:.2f}",
    ]


class Second:
    """What the extracted checker says of all files, beside ``verify``."""

    def __init__(self) -> None:
        self.agrees: Counter[str] = Counter()
        self.verify_s = 0.0
        self.kernel_s = 0.0

    def ask(self, path: Path) -> None:
        """Both verdicts on one file, if it holds a program of thread blocks."""
        data = path.read_bytes()
        if is_solution(data):
            return
        start = time.monotonic()
        try:
            report = verify_xml(data) if is_xml(data) else verify_plan(data)
        except FormatError:
            return
        middle = time.monotonic()
        opinion = opinion_on_programs(report, timeout_s=600)
        self.verify_s += middle - start
        self.kernel_s += time.monotonic() - middle
        if opinion.verdict is report.verdict:
            self.agrees[f"{opinion.verdict.value} by both"] += 1
        else:
            self.agrees[f"{report.verdict.value}, not decided by it: {opinion.note}"] += 1

    def __str__(self) -> str:
        counts = "; ".join(f"{number} {text}" for text, number in self.agrees.most_common())
        times = f"verify {self.verify_s:.1f} s, the checker {self.kernel_s:.1f} s"
        return f"The extracted checker: {counts}. {times}."


def main(
    folders: Annotated[list[Path], typer.Argument(exists=True, file_okay=False)],
    seeds: Annotated[int, typer.Option(help="Interleavings drawn for a refuted file.")] = 20,
    kernel: Annotated[
        bool, typer.Option("--kernel", help="Ask the extracted checker, too (make proofs).")
    ] = False,
) -> None:
    files = distinct(folders)
    if kernel:
        second = Second()
        for path in files:
            second.ask(path)
        print(second, flush=True)
    print(f"| {' | '.join(HEAD)} |\n|{':--|' * len(HEAD)}")
    counts: dict[str, int] = {}
    disagree = 0
    for path in files:
        cells = row(path, seeds)
        counts[cells[4]] = counts.get(cells[4], 0) + 1
        disagree += cells[8].startswith("DISAGREES")
        print(f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |", flush=True)
    verdicts = ", ".join(f"{number} {verdict}" for verdict, number in sorted(counts.items()))
    print(f"\n{len(files)} distinct files: {verdicts}; execution disagrees in {disagree}.")


if __name__ == "__main__":
    typer.run(main)
