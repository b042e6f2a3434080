"""Make the certificates of this folder anew. For makers only: checking them needs none of this.

    python -m proofs.certificates.make --solver cadical [--only NAME]

Needs CaDiCaL 2 (https://github.com/arminbiere/cadical), which writes LRAT. The situations are those
that ``synth generate --delay`` and ``--arrivals`` can ask a solver about exactly
(docs/explanation/arrivals.md) and in which the fewest rounds are above the bound that ``verify``
recomputes. The schedule comes from ``synth``; the solver refutes a shorter one; of its proof the
part that is needed is kept.
"""

from __future__ import annotations

import argparse
import lzma
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from latecomer.synth.answer import checked
from latecomer.synth.arrivals.instance import Arrivals
from latecomer.synth.arrivals.portfolio import Portfolio
from latecomer.synth.solvers.choice import Solving
from latecomer.verify.core.schedule import Schedule
from latecomer.verify.output import encode
from proofs.certificates.check import FOLDER, check_certificate, refutation_of
from proofs.certificates.formula import Question, clauses, dimacs

MOST_BYTES = 900_000
"""Larger refutations are not kept in the repository."""

SOLVER_TIME_S = 60
SEEDS = range(5)
"""The shortest refutation of so many is kept."""


def situations() -> Iterator[Arrivals]:
    """Few ranks and chunks: all on time, one late rank, several that come together or in turn."""
    for n in range(2, 6):
        for k in range(1, {2: 6, 3: 6, 4: 5, 5: 4}[n]):
            late = [(d,) for d in range(4)]
            if n > 2:
                late += [(1, 1), (2, 2), (1, 2)]
            if n > 3:
                late += [(1, 1, 1), (2, 2, 2)]
            for delays in late:
                arrival = (0,) * (n - len(delays)) + delays
                yield Arrivals(k, arrival, tuple(range(n - len(delays), n)))


def name_of(arrivals: Arrivals) -> str:
    """The name of a certificate, without folder and suffix."""
    delays = "-".join(map(str, arrivals.arrival))
    return f"n{arrivals.ranks}-k{arrivals.chunks}-arrivals-{delays}"


def undecided(arrivals: Arrivals) -> Schedule | None:
    """synth's shortest schedule, where it is above the bound that verify recomputes."""
    solving = Solving("cp-sat", 0, 1.0, SOLVER_TIME_S)
    portfolio = Portfolio(arrivals, solving, setting=None, progress=lambda text: None)
    portfolio.try_lists(thoroughly=True)
    portfolio.try_exact()
    own = [c for c in portfolio.candidates if c.arrivals == arrivals and c.schedule is not None]
    schedule = min(own, key=lambda c: c.rounds).schedule
    assert schedule is not None
    return None if checked(schedule).optimal is True else schedule


def trimmed(formula_size: int, proof: Path) -> list[str]:
    """The steps of an LRAT proof that the empty clause needs, numbered anew, as our lines.

    Raises:
        ValueError: it has a step that is not plain propagation.
    """
    steps: list[tuple[int, list[int], list[int]]] = []
    for text in proof.read_text().splitlines():
        words = text.split()
        if words[1] == "d":
            continue
        numbers = [int(word) for word in words]
        end = numbers.index(0, 1)
        steps.append((numbers[0], numbers[1:end], numbers[end + 1 : -1]))
        if not steps[-1][1]:
            break
    needed = {steps[-1][0]}
    kept = []
    for step in reversed(steps):
        if step[0] in needed:
            if min(step[2]) < 0:
                raise ValueError(f"step {step[0]} is not plain propagation")
            needed.update(step[2])
            kept.append(step)
    kept.reverse()
    renumbered = {number: new for new, (number, _, _) in enumerate(kept, formula_size + 1)}
    return [
        " ".join(map(str, [*clause, 0, *(renumbered.get(h, h) for h in hints), 0]))
        for _, clause, hints in kept
    ]


def refuted(question: Question, solver: str, seed: int) -> bytes | None:
    """A compressed refutation; None where the solver finds a solution or runs out of time.

    Raises:
        subprocess.CalledProcessError: the solver failed.
    """
    formula = list(clauses(question))
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "formula.cnf"
        proof = Path(folder) / "proof.lrat"
        text.write_text(dimacs(formula))
        options = ["--unsat", f"--seed={seed}", "-t", str(SOLVER_TIME_S), "--lrat", "--no-binary"]
        done = subprocess.run(
            [solver, *options, text, proof], capture_output=True, text=True, check=False
        )
        if done.returncode == 20:
            lines = trimmed(len(formula), proof)
            return lzma.compress("".join(f"{line}\n" for line in lines).encode(), preset=9)
        if done.returncode in (0, 10):
            return None
        raise subprocess.CalledProcessError(done.returncode, solver, done.stdout, done.stderr)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--solver", required=True)
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    for arrivals in situations():
        name = name_of(arrivals)
        if options.only not in name:
            continue
        schedule = undecided(arrivals)
        if schedule is None:
            continue
        question = Question(
            arrivals.ranks,
            arrivals.chunks,
            arrivals.arrival,
            arrivals.last + schedule.completion_rounds - 1,
        )
        proofs = [proof for seed in SEEDS if (proof := refuted(question, options.solver, seed))]
        shortest = min(proofs, key=len, default=None)
        if shortest is None or len(shortest) > MOST_BYTES:
            print(f"{name}: no certificate ({shortest and len(shortest)})", flush=True)
            continue
        target = FOLDER / f"{name}.json"
        target.write_bytes(encode(schedule))
        refutation_of(target).write_bytes(shortest)
        print(f"{name}: {len(shortest)} bytes; {check_certificate(target)}", flush=True)


if __name__ == "__main__":
    main()
