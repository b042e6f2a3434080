"""Ranks that come together, as a question to CaDiCaL: is there a completion of so many rounds?

    python -m bench.together_asked --solver cadical --ranks 5 --late 4 --chunks 2 --rounds 4

Needs CaDiCaL (https://github.com/arminbiere/cadical). The question is that of
:mod:`latecomer.synth.arrivals.free_trees`, which ``synth`` puts to Z3 or CP-SAT with a limit; here
there is none. What is found is proved by ``verify``.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path

from bench.together import instance
from latecomer.synth.answer import checked
from latecomer.synth.arrivals.free_trees import FreeTrees
from latecomer.synth.arrivals.together import Together
from latecomer.synth.solvers.clauses import Clauses
from latecomer.synth.solvers.model import Exhausted, Found
from latecomer.verify.core.verdict import Verdict


def dimacs(model: Clauses) -> str:
    """As a file for solvers."""
    lines = [f"p cnf {model.variables} {len(model.clauses)}"]
    for clause in model.clauses:
        lines.append(" ".join(map(str, [*clause, 0])))
    return "\n".join(lines) + "\n"


def asked(solver: str, model: Clauses) -> Found | Exhausted:
    """The solver's answer.

    Raises:
        subprocess.CalledProcessError: the solver failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "formula.cnf"
        path.write_text(dimacs(model))
        done = subprocess.run([solver, "-q", path], capture_output=True, text=True, check=False)
    if done.returncode not in (10, 20):
        raise subprocess.CalledProcessError(done.returncode, solver, done.stdout, done.stderr)
    if done.returncode == 20:
        return Exhausted()

    true: set[int] = set()
    for line in done.stdout.splitlines():
        if line.startswith("v"):
            literals = [int(word) for word in line[2:].split()]
            true.update(literal for literal in literals if literal > 0)
    return Found(frozenset(true))


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--solver", required=True)
    for name in ("ranks", "late", "chunks", "rounds"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()

    question = FreeTrees(options.ranks, options.late, options.chunks, options.rounds)
    answer = asked(options.solver, question.model)
    if isinstance(answer, Exhausted):
        print("no completion of so many rounds")
        return

    arrivals = instance(options.ranks, options.late, options.chunks)
    for rounds in Together(arrivals, 0).with_wait(question.decode(answer)):
        report = checked(arrivals.schedule(rounds))
        assert report.verdict is Verdict.PROVED
        print(f"{report.completion_rounds} rounds, proved")
        for moves in rounds[arrivals.last :]:
            print(" ".join(f"{m.src}>{m.dst}:{m.chunk}{m.op[0]}" for m in moves))


if __name__ == "__main__":
    main()
