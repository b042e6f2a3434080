"""Our optima in the source's published instances: ``python -m bench.pipeline_published CHECKOUT``.

CHECKOUT is a checkout of github.com/wutianyuan1/PipeMorph (none of it is part of this project). In
``experiments/**/ZB-CPU-ReSchedule/LINKS/DELAY/simu.txt`` lie the timelines that its planner made
for slow links, a line ``STAGE, KIND, START, END`` per action: stages, microbatches, durations and
the makespan are read off them, links and delay (in seconds; times are in milliseconds) off the
path. Each is planned anew, and each of our schedules is proved by ``verify``. With ``--certificates
DIR`` schedules and refutations are written there, for ``proofs.pipeline_certificates.check`` and
``latecomer-kernel --optimal``.
"""

from __future__ import annotations

import argparse
import lzma
import re
from pathlib import Path

from latecomer.synth.pipeline.answer import PipelineAnswer
from latecomer.synth.pipeline.certify import NoCertificate, certified
from latecomer.synth.pipeline.plan import Solver, plan
from latecomer.synth.pipeline.problem import Problem, make, place
from latecomer.verify.pipeline import Link, write
from latecomer.verify.pipeline.schedule import Instance
from proofs.pipeline_certificates.check import refutation_of

TIMELINE = re.compile(r"experiments/(.*)/ZB-CPU-ReSchedule/([0-9_,]+)/(0\.[0-9]+)/simu\.txt")
MS = 1000


def published(path: Path, links: str, delay: str) -> tuple[Problem, int]:
    """The instance of a published timeline, and its makespan."""
    times: dict[tuple[str, int], int] = {}
    microbatches = makespan = 0
    for line in path.read_text().splitlines():
        stage, kind, start, end = line.split(", ")
        times[kind, int(stage)] = int(float(end)) - int(float(start))
        makespan = max(makespan, int(float(end)))
        microbatches += (stage, kind) == ("0", "F")
    stages = len(times) // 3

    slow_links = []
    for link in links.split(","):
        low, high = link.split("_")
        between = (int(low), int(high))
        slow_links.append(Link(between=between, latency=round(float(delay) * MS)))
    instance = Instance(
        forward=tuple(times["F", stage] for stage in range(stages)),
        backward=tuple(times["B", stage] for stage in range(stages)),
        weight=tuple(times["W", stage] for stage in range(stages)),
        links=tuple(slow_links),
    )
    return make(microbatches, instance, place(stages, 1, "loop")), makespan


def with_certificate(answer: PipelineAnswer, time_limit_s: float) -> tuple[PipelineAnswer, str]:
    """The answer with a certificate of its own, and the basis with how long that is."""
    if not answer.certificate and answer.optimal:
        try:
            answer = certified(answer, time_limit_s)
        except NoCertificate as error:
            return answer, f"{answer.basis}; {error}"
    if not answer.certificate:
        return answer, f"gap {answer.gap:.1%}"
    cases = 1 + sum(line.startswith("either") for line in answer.certificate)
    return answer, f"certificate, cases: {cases}, steps: {len(answer.certificate)}"


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--certificates", type=Path, help="write them there")
    parser.add_argument("--time-limit", type=float, default=60.0)
    options = parser.parse_args()

    print("| published as | S x N | slow | delay | published | ours | closed form | optimal by |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")

    timelines = sorted(options.checkout.glob("experiments/**/simu.txt"))
    for path in timelines:
        match = TIMELINE.fullmatch(path.relative_to(options.checkout).as_posix())
        if match is None:
            continue

        name, links, delay = match.groups()
        problem, theirs = published(path, links, delay)
        answer = plan(problem, solver=Solver(options.time_limit, workers=2))
        answer, basis = with_certificate(answer, options.time_limit)

        print(
            f"| {name} | {problem.stages} x {problem.microbatches} | {links.replace('_', '-')} "
            f"| {round(float(delay) * MS)} | {theirs} | {answer.measures.makespan:g} "
            f"| {answer.measures.lower_bound:g} | {basis} |",
            flush=True,
        )
        if options.certificates is not None and answer.certificate:
            options.certificates.mkdir(parents=True, exist_ok=True)
            file = options.certificates / f"{name}-{links}-{delay}.json".replace("/", "-")
            write(answer.schedule, file)
            text = "".join(f"{line}\n" for line in answer.certificate)
            refutation_of(file).write_bytes(lzma.compress(text.encode(), preset=9))


if __name__ == "__main__":
    main()
