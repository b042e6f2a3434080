"""A second proof that shares nothing with the first: symbolic inputs, decided by an SMT solver.

The question is written as SMT-LIB 2 text: an integer unknown ``x_r_c`` for what rank r brings to
chunk c, one definition per transfer, and the assertion that some rank ends with something else
than the sum. ``unsat`` means that the schedule computes the sum for all inputs; a model is a
concrete wrong run. Z3 reads the very text that ``verify --smt2`` writes, so any other solver can
be asked the same. A time-out is unknown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from latecomer.verify.core.schedule import Schedule, Transfer
from latecomer.verify.core.verdict import PROVED, Counterexample, Result, refuted, unknown
from latecomer.verify.errors import ArgumentError

RoundsByChunk = dict[int, list[list[Transfer]]]

MAX_UNKNOWNS = 2**22
"""Ranks times chunks in a question; a longer one would be of no use to any solver."""


def require_few_unknowns(schedule: Schedule, path: str) -> None:
    """ArgumentError where the question for ``--smt2`` would be too long to be of use."""
    unknowns = schedule.ranks * schedule.chunks
    if unknowns > MAX_UNKNOWNS:
        requirement = f"the question has {unknowns} unknowns, at most {MAX_UNKNOWNS}"
        raise ArgumentError("--smt2", path, requirement)


def smt2(schedule: Schedule) -> str:
    """The question "can some rank end with a wrong sum?" as an SMT-LIB 2 script (QF_LIA).

    Examples:
        >>> from latecomer import synth
        >>> from latecomer.verify.symbolic import smt2
        >>> print(smt2(synth.ring(4)))
        ; allreduce, 4 ranks, 4 chunks, 6 rounds
        ; unsat: every rank ends with the sum of all inputs, whatever the inputs
        (set-logic QF_LIA)
        ...
        (check-sat)
        <BLANKLINE>
    """
    lines = [
        f"; {schedule.kind}, {schedule.ranks} ranks, {schedule.chunks} chunks, "
        f"{schedule.rounds} rounds",
        "; unsat: every rank ends with the sum of all inputs, whatever the inputs",
        "(set-logic QF_LIA)",
        *_script(schedule.ranks, range(schedule.chunks), _rounds_by_chunk(schedule)),
        "(check-sat)",
    ]
    return "\n".join(lines) + "\n"


def all_sums(schedule: Schedule, timeout_s: float) -> Result:
    """Ask Z3, chunk by chunk (chunks do not interact), for ``timeout_s`` seconds in all.

    Args:
        schedule: a well formed one; any verdict.
        timeout_s: what is not decided by then is unknown, never refuted.

    Examples:
        >>> from latecomer import synth, verify
        >>> from latecomer.verify.symbolic import all_sums
        >>> more = {"symbolic_sum": lambda schedule: all_sums(schedule, timeout_s=60)}
        >>> verify.check(synth.generate(4), more).results["symbolic_sum"].verdict
        <Verdict.PROVED: 'proved'>
    """
    import time

    import z3

    rounds = _rounds_by_chunk(schedule)
    deadline = time.monotonic() + timeout_s
    for chunk in range(schedule.chunks):
        # A context of its own: Z3 keeps definitions in a context, beyond the life of a solver.
        solver = z3.SolverFor("QF_LIA", ctx=z3.Context())
        left_ms = int(1000 * (deadline - time.monotonic()))
        if left_ms <= 0:
            return unknown(f"Z3 decided {chunk} of {schedule.chunks} chunks in {timeout_s:g} s")
        solver.set("timeout", left_ms)
        solver.from_string("\n".join(_script(schedule.ranks, [chunk], rounds)))
        answer = solver.check()
        if answer == z3.unknown:
            return unknown(f"Z3 on chunk {chunk}: {solver.reason_unknown()}")
        if answer == z3.sat:
            return refuted(_wrong_run(schedule.ranks, chunk, rounds[chunk], solver.model()))
    return PROVED


def _rounds_by_chunk(schedule: Schedule) -> RoundsByChunk:
    """For each chunk its transfers, grouped by round; chunks do not interact."""
    rounds: RoundsByChunk = defaultdict(list)
    for _, _, transfers in schedule.located_rounds():
        of_round: dict[int, list[Transfer]] = defaultdict(list)
        for transfer in transfers:
            of_round[transfer.chunk].append(transfer)
        for chunk, moves in of_round.items():
            rounds[chunk].append(moves)
    return rounds


def _script(ranks: int, chunks: Iterable[int], rounds: RoundsByChunk) -> Iterator[str]:
    """Declarations, definitions and the assertion, for the given chunks."""
    wrong: list[str] = []
    for c in chunks:
        inputs = [f"x_{r}_{c}" for r in range(ranks)]
        yield from (f"(declare-const {name} Int)" for name in inputs)
        holds = list(inputs)
        number = 0
        for transfers in rounds[c]:
            sent = [holds[t.src] for t in transfers]  # all read the start of the round
            for transfer, value in zip(transfers, sent, strict=True):
                if transfer.op == "copy":
                    holds[transfer.dst] = value
                else:
                    number += 1
                    name = f"s_{number}_{transfer.dst}_{c}"
                    yield f"(define-fun {name} () Int (+ {holds[transfer.dst]} {value}))"
                    holds[transfer.dst] = name
        yield f"(define-fun total_{c} () Int (+ {' '.join(inputs)} 0))"
        wrong += [f"(not (= {value} total_{c}))" for value in dict.fromkeys(holds)]
    yield f"(assert (or {' '.join(wrong)} false))"


def _wrong_run(
    ranks: int, chunk: int, rounds: list[list[Transfer]], model: object
) -> Counterexample:
    """The model as a run: the inputs that expose the fault and one rank that ends wrong."""
    inputs = [0] * ranks
    for declaration in model.decls():  # type: ignore[attr-defined]
        letter, rank, *_ = declaration.name().split("_")
        if letter == "x":  # the model names the definitions, too
            inputs[int(rank)] = model[declaration].as_long()  # type: ignore[index]
    held = list(inputs)
    for transfers in rounds:
        before = list(held)
        for t in transfers:
            held[t.dst] = before[t.src] + (held[t.dst] if t.op == "reduce" else 0)
    rank = next(r for r, value in enumerate(held) if value != sum(inputs))
    return Counterexample(
        property="symbolic_sum",
        rank=rank,
        chunk=chunk,
        expected=f"{sum(inputs)}, the sum of the inputs {inputs}",
        found=str(held[rank]),
    )
