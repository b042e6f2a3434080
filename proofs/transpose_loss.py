"""For every n: what one lost transfer does to a transpose AllReduce. Checked by an SMT solver.

    python -m proofs.transpose_loss

One chunk with owner o, among n ranks, n unknown. First every other rank s sends its contribution to
o (reduce), as transfer number ``pos1(s)`` of 0 .. n-2; then o sends the sum to every other rank t
(copy), as number ``pos2(t)``. Nothing else is known of the order, so it holds for every order, and
for every incast: contributions are read where nobody writes, sums where nobody writes any more.
``lost1``, ``lost2`` are the numbers of the transfers that are lost, -1 where none is.

    held1(m, q)      how often o holds the contribution of q after m transfers of the first stage
    held2(m, r, q)   how often rank r holds it after m transfers of the second

are given in closed form. The lemmas say that this form is right at the start and is kept by every
transfer (induction over m), and that at the end, m = n - 1, it says

    no loss       every rank holds every contribution once
    first stage   one contribution of the chunk is missing: that of the lost transfer's sender, at
                  all ranks, who agree
    second stage  the chunk is missing at one rank: the lost transfer's receiver, who keeps its own
                  contribution alone

Each lemma is a script in SMT-LIB 2 (QF_UFLIA) that asks for a counterexample: ``unsat`` proves it.
:func:`is_transpose` says whether a schedule is of this form, so that the theorem is about it.
"""

from __future__ import annotations

import sys

import z3

from verify.core.schedule import Schedule

PREAMBLE = """\
(set-logic QF_UFLIA)
(declare-const n Int) (declare-const o Int) (declare-const m Int)
(declare-const q Int) (declare-const r Int)
(declare-const lost1 Int) (declare-const lost2 Int)
(declare-fun pos1 (Int) Int) (declare-fun pos2 (Int) Int)
(define-fun rank ((x Int)) Bool (and (<= 0 x) (< x n)))
(define-fun place ((x Int)) Bool (and (<= 0 x) (< x (- n 1))))
(define-fun other ((x Int)) Bool (and (rank x) (distinct x o) (place (pos1 x)) (place (pos2 x))))
(define-fun once ((b Bool)) Int (ite b 1 0))
(define-fun held1 ((m Int) (q Int)) Int
  (once (or (= q o) (and (< (pos1 q) m) (distinct (pos1 q) lost1)))))
(define-fun held2 ((m Int) (r Int) (q Int)) Int
  (ite (or (= r o) (and (< (pos2 r) m) (distinct (pos2 r) lost2)))
       (held1 (- n 1) q) (once (= q r))))
(assert (and (>= n 2) (rank o) (rank q) (rank r)))
(assert (or (= q o) (other q)))
(assert (or (= r o) (other r)))
"""

NEXT1 = """\
(declare-const s Int)
(assert (and (place m) (other s) (= (pos1 s) m)))
(assert (=> (and (distinct q o) (= (pos1 q) (pos1 s))) (= q s)))
"""
"""The sender of the next transfer, number m; no other rank has its place."""

NEXT2 = """\
(declare-const t Int)
(assert (and (place m) (other t) (= (pos2 t) m)))
(assert (=> (and (distinct r o) (= (pos2 r) (pos2 t))) (= r t)))
"""

LEMMAS = {
    "first stage: at the start the owner holds its own contribution": """
(assert (distinct (held1 0 q) (once (= q o))))
""",
    "first stage: a transfer adds its sender's contribution, unless it is lost": NEXT1
    + """
(assert (distinct (held1 (+ m 1) q)
                  (+ (held1 m q) (ite (= m lost1) 0 (once (= q s))))))
""",
    "second stage: at the start the owner holds its sum, everybody else its own": """
(assert (distinct (held2 0 r q) (ite (= r o) (held1 (- n 1) q) (once (= q r)))))
""",
    "second stage: a transfer brings the owner's sum, unless it is lost": NEXT2
    + """
(assert (distinct (held2 (+ m 1) r q)
                  (ite (and (= r t) (distinct m lost2)) (held2 m o q) (held2 m r q))))
""",
    "no loss: every rank holds every contribution once": """
(assert (and (= lost1 (- 1)) (= lost2 (- 1))))
(assert (distinct (held2 (- n 1) r q) 1))
""",
    "a loss in the first stage: its sender's contribution is missing at all ranks": """
(declare-const a Int)
(assert (and (other a) (= lost1 (pos1 a)) (= lost2 (- 1))))
(assert (=> (and (distinct q o) (= (pos1 q) (pos1 a))) (= q a)))
(assert (distinct (held2 (- n 1) r q) (ite (= q a) 0 1)))
""",
    "a loss in the second stage: its receiver keeps its own contribution alone": """
(declare-const b Int)
(assert (and (other b) (= lost1 (- 1)) (= lost2 (pos2 b))))
(assert (=> (and (distinct r o) (= (pos2 r) (pos2 b))) (= r b)))
(assert (distinct (held2 (- n 1) r q) (ite (= r b) (once (= q b)) 1)))
""",
}


def script(lemma: str) -> str:
    """The lemma as a question in SMT-LIB 2: is there a counterexample?"""
    return f"{PREAMBLE}{LEMMAS[lemma]}(check-sat)\n"


def proved(lemma: str) -> bool:
    """Whether Z3 finds that there is none."""
    solver = z3.SolverFor("QF_UFLIA", ctx=z3.Context())
    solver.from_string(script(lemma))
    return solver.check() == z3.unsat


def is_transpose(schedule: Schedule) -> bool:
    """Whether a well formed schedule is a transpose AllReduce: what the theorem is about.

    For each chunk: one owner; a reduce from every other rank to it; in later rounds a copy from it
    to every other rank; nothing else.
    """
    table, n = schedule.table, schedule.ranks
    moves: list[list[int]] = [[] for _ in range(schedule.chunks)]
    for index, chunk in enumerate(table.chunk.tolist()):
        moves[chunk].append(index)
    for of_chunk in moves:
        to = [i for i in of_chunk if table.reduce[i]]
        back = [i for i in of_chunk if not table.reduce[i]]
        if len(to) != n - 1 or len(back) != n - 1:
            return False
        owner = int(table.dst[to[0]])
        others = set(range(n)) - {owner}
        if {int(table.dst[i]) for i in to} | {int(table.src[i]) for i in back} != {owner}:
            return False
        if {int(table.src[i]) for i in to} != others or {int(table.dst[i]) for i in back} != others:
            return False
        if max(table.round[to]) >= min(table.round[back]):
            return False
    return True


def main() -> None:
    """Print every lemma with its verdict; exit code 1 if one is not proved."""
    verdicts = {lemma: proved(lemma) for lemma in LEMMAS}
    for lemma, verdict in verdicts.items():
        print(f"{'proved' if verdict else 'NOT PROVED'}  {lemma}")
    sys.exit(not all(verdicts.values()))


if __name__ == "__main__":
    main()
