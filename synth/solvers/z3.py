"""The Z3 backend: its finite-domain solver, fed with SMT-LIB text.

Building the formula through Z3's Python objects takes longer than solving it; its own parser
reads the same formula as text at once. Every question gets a context of its own, so that its
answer does not depend on what was asked before. What it may take is counted in Z3's own steps
(``rlimit``), which are the same wherever and whenever the question is asked.
"""

from __future__ import annotations

from collections.abc import Iterator

import z3

from latecomer.synth.solvers.interrupt import interruptible
from latecomer.synth.solvers.model import Exhausted, Found, Model, Outcome, Undecided

STEPS = 4_000_000
"""Of Z3, for one unit of work: about a second, up to five where conflicts are long."""


def solve(model: Model, seed: int, work: float, time_limit_s: float | None) -> Outcome:
    """Decide ``model`` with so much work, and within the time limit if there is one."""
    # The finite-domain solver; on these questions it is about as fast as CP-SAT.
    solver = z3.SolverFor("QF_FD", ctx=z3.Context())
    # rlimit is an unsigned number of 32 bits, of which 0 stands for no limit.
    solver.set("rlimit", min(2**32 - 1, max(1, int(work * STEPS))))
    if time_limit_s is not None:
        solver.set("timeout", max(1, int(1000 * time_limit_s)))
    solver.set("random_seed", seed)
    # Else Z3 takes SIGINT as the end of its time, and the user's Ctrl-C would be lost.
    solver.set("ctrl_c", False)
    solver.from_string("\n".join(_script(model)))
    answer = interruptible(solver.check, solver.interrupt)
    if answer == z3.sat:
        found = solver.model()
        return Found(frozenset(int(d.name()[1:]) for d in found.decls() if z3.is_true(found[d])))
    if answer == z3.unsat:
        return Exhausted()
    return Undecided(f"no answer within {work:.3g} of work ({solver.reason_unknown()})")


def _script(model: Model) -> Iterator[str]:
    """The model as SMT-LIB 2 with Z3's cardinality constraints."""
    name = {v: f"x{v}" for v in range(1, model.variables + 1)}
    name |= {-v: f"(not {x})" for v, x in name.items()}
    for v in range(1, model.variables + 1):
        yield f"(declare-const {name[v]} Bool)"
    for clause in model.clauses:
        yield f"(assert (or false {' '.join(name[x] for x in clause)}))"
    for literals in model.at_most_one:
        yield f"(assert ((_ at-most 1) {' '.join(name[x] for x in literals)}))"
    for count, literals in model.at_least:
        yield f"(assert ((_ at-least {count}) {' '.join(name[x] for x in literals)}))"
