"""Certificates of optimal pipelines hold, doctored ones are refused, both checkers agree."""

from __future__ import annotations

import lzma
import random
import subprocess
from pathlib import Path

import pytest

from latecomer.synth.pipeline.certify import NoCertificate, certified
from latecomer.synth.pipeline.plan import plan
from latecomer.synth.pipeline.portfolio import portfolio
from latecomer.synth.pipeline.refute import Possible, refute
from latecomer.verify.pipeline import Link, PipelineSchedule, check, read, write
from latecomer.verify.pipeline.refutation import Refused
from latecomer.verify.pipeline.refutation import check as check_refutation
from proofs.pipeline_certificates.check import FOLDER, check_certificate, refutation_of
from tests.synth.pipeline.exhaustive import optimum
from tests.synth.pipeline.problems import chain, random_times, uniform

SCHEDULES = sorted(FOLDER.glob("*.json"))
SMALL = FOLDER / "uneven-4x12.json"
SPAN = 472


def lines_of(path: Path) -> list[str]:
    with lzma.open(refutation_of(path), "rt") as lines:
        return lines.read().splitlines()


def holds(schedule: PipelineSchedule, span: int, lines: list[str]) -> bool:
    try:
        return check_refutation(schedule, span, lines) > 0
    except Refused:
        return False


def kernel_holds(kernel: Path, path: Path, lines: list[str]) -> bool:
    text = "".join(f"{line}\n" for line in lines)
    command = [kernel, "--optimal", path]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0 or "true" not in done.stdout
    return done.returncode == 0


@pytest.mark.parametrize("path", SCHEDULES, ids=lambda path: path.stem)
def test_holds_and_is_in_the_table(path: Path) -> None:
    assert "no makespan below" in check_certificate(path)
    schedule = read(path)
    report = check(schedule)
    assert report.optimal == "unknown"  # else it would need no certificate
    assert report.measures is not None

    memory = schedule.instance.memory
    limit = f"{memory[0]:g}" if memory else "-"
    sizes = f"{schedule.stages} | {schedule.microbatches} | {limit}"
    times = f"{report.measures.makespan:g} | {report.measures.lower_bound:g}"
    lines = lines_of(path)
    cases = 1 + sum(line.startswith("either") for line in lines)
    row = f"| `{path.stem}` | {sizes} | {times} | {len(lines)} | {cases} |\n"
    assert row in (FOLDER.parents[1] / "docs/reference/certificates.md").read_text()


def test_the_verified_checker_accepts_all(kernel: Path) -> None:
    assert all(kernel_holds(kernel, path, lines_of(path)) for path in SCHEDULES)


def doctored(lines: list[str], rng: random.Random) -> list[str]:
    """With up to three lines changed, lost or moved."""
    lines = list(lines)
    for _ in range(rng.randint(1, 3)):
        number = rng.randrange(len(lines))
        words = lines[number].split()
        words_elsewhere = lines[rng.randrange(len(lines))].split()
        words[rng.randrange(len(words))] = rng.choice(words_elsewhere)

        lost: list[str] = []
        changed = [" ".join(words)]
        with_a_copy = [lines[number], " ".join(words_elsewhere)]
        lines[number : number + 1] = rng.choice([lost, changed, with_a_copy])
    return lines


def test_what_is_possible_is_never_refuted() -> None:
    """Whatever is changed: a makespan of 472 there is, so below 473 nothing is refuted."""
    schedule = read(SMALL)
    lines = lines_of(SMALL)
    rng = random.Random(5)
    refutations = [doctored(lines, rng) for _ in range(40)]
    assert not any(holds(schedule, SPAN + 1, refutation) for refutation in [lines, *refutations])
    assert sum(holds(schedule, SPAN, refutation) for refutation in refutations) < 30


def test_both_checkers_agree(kernel: Path) -> None:
    schedule = read(SMALL)
    lines = lines_of(SMALL)
    rng = random.Random(6)
    refutations = [[], lines[:-1], [*lines, "crossed 0F0 0F1"]]
    refutations += [doctored(lines, rng) for _ in range(15)]
    for refutation in refutations:
        assert kernel_holds(kernel, SMALL, refutation) == holds(schedule, SPAN, refutation)


def test_a_schedule_that_is_not_optimal_is_not_certified(kernel: Path, tmp_path: Path) -> None:
    problem = uniform(4, 6, {(0, 1): 30}, memory=3, durations=(8, 10, 5))
    best = plan(problem)
    path = tmp_path / "p.json"
    write(best.schedule, path)
    assert kernel_holds(kernel, path, list(best.certificate))

    write(problem.schedule(portfolio(problem).candidates[0].orders), path)
    assert not kernel_holds(kernel, path, list(best.certificate))


def test_against_every_order_of_tiny_problems() -> None:
    """Everything below the optimum is refuted, and nothing else."""
    rng = random.Random(3)
    for _ in range(12):
        stages = rng.choice([1, 2, 2, 3])
        times = random_times(rng, stages)
        delays = [rng.randint(0, 12) for _ in range(stages - 1)]
        memory = rng.choice([None, tuple(rng.choice([1, 1.5, 2]) for _ in range(stages))])
        links = {(i, i + 1): delay for i, delay in enumerate(delays)}

        problem = chain(2, times, links, memory)
        least = int(optimum(2, times, [delays], memory))
        schedule = problem.schedule(portfolio(problem).candidates[0].orders)
        assert holds(schedule, least, refute(problem, least, 60))
        with pytest.raises(Possible):
            refute(problem, least + 1, 60)


def test_what_is_not_covered() -> None:
    held = uniform(3, 4).with_links([Link(between=(0, 1), latency=3, occupancy=2)])
    with pytest.raises(NoCertificate, match="held"):
        certified(plan(held), 5)
