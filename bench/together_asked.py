"""Ranks that come together, as a question to CaDiCaL: is there a completion of so many rounds?

    python -m bench.together_asked --solver cadical --ranks 5 --late 4 --chunks 2 --rounds 4

Needs CaDiCaL (https://github.com/arminbiere/cadical). Every helper has P, the helpers' sum, of all
chunks, which is as good as anything that a wait can bring; trees are open. What a rank holds of a
chunk is a set of parts: those of the late ranks, and P. A set is always added up from the same two
(the argument of :mod:`synth.arrivals.exact`). What is found is proved by ``verify``.

Two sets of clauses lose nothing and make refutations short. Of l + 1 parts none is full before the
m-th round, m = ceil(log2 (l + 1)); if only k rounds are left then, each rank completes a chunk in
each of them. And k (n + l - 1) transfers are needed; if n ranks can't have more in so many rounds,
every rank sends and receives in each round, only full sums are copied, and no sum is made twice.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from itertools import combinations, pairwise
from pathlib import Path

from bench.together import instance
from synth.answer import checked
from synth.arrivals.together import Together
from verify.core.schedule import Op, Round, Transfer
from verify.core.verdict import Verdict


class Formula:
    """Clauses of the question.

    Args:
        n, late, k, rounds: as named; late ranks come first.
    """

    def __init__(self, n: int, late: int, k: int, rounds: int) -> None:
        self.n, self.late, self.k, self.rounds = n, late, k, rounds
        self.full = (1 << late + 1) - 1
        self.clauses: list[list[int]] = []
        self._variable: dict[tuple[str | int, ...], int] = {}
        self._others = 0
        self._build()

    def variable(self, *name: str | int) -> int:
        """``hold``: t, rank, chunk, set; ``copy``, ``send`` too; ``add``: also the set received."""
        return self._variable.setdefault(name, len(self._variable) + 1)

    def _possible(self, t: int, rank: int) -> list[int]:
        """Sets that the rank can hold before round ``t``."""
        if t == 0:
            return [1 << min(rank, self.late)]
        sets = range(1, self.full + 1) if t < self.rounds else [self.full]
        return [s for s in sets if s.bit_count() <= 2**t]

    def _at_most_one(self, literals: list[int]) -> None:
        while len(literals) > 4:
            *literals, a, b, c = literals
            self._others += 1
            either = self.variable("either", self._others)
            self._at_most_one([a, b, c, -either])
            literals.append(either)
        self.clauses += [[-a, -b] for a, b in combinations(literals, 2)]

    def _sorted(self, literals: list[int], *, up: bool) -> list[int]:
        """Unary numbers: the i-th holds if (``up``), or only if, more than i of the literals do."""
        if len(literals) < 2:
            return literals
        half = len(literals) // 2
        one, other = (self._sorted(part, up=up) for part in (literals[:half], literals[half:]))
        self._others += 1
        count = [self.variable("count", self._others, i) for i in range(len(literals))]
        for i in range(len(one) + 1):
            for j in range(len(other) + 1):
                if up and i + j:
                    less = [-x for x in (*one[i - 1 : i], *other[j - 1 : j])]
                    self.clauses.append([count[i + j - 1], *less])
                if not up and i + j < len(count):
                    self.clauses.append([-count[i + j], *one[i : i + 1], *other[j : j + 1]])
        return count

    def _build(self) -> None:
        n, k, rounds = self.n, self.k, self.rounds
        for r in range(n):
            for c in range(k):
                self.clauses.append([self.variable("hold", 0, r, c, 1 << min(r, self.late))])
                self.clauses.append([self.variable("hold", rounds, r, c, self.full)])
        first = self.late.bit_length() - 1
        wasteless = k * (n + self.late - 1) == n * rounds
        made: dict[tuple[int, int], list[int]] = {}
        for t in range(rounds):
            fed: dict[tuple[int, int], list[int]] = {}
            for r in range(n):
                finals, others = self._receives(t, r, fed, made)
                self._at_most_one([*finals, *(v for _, v in others)])
                sends = [
                    self.variable("send", t, r, c, s)
                    for c in range(k)
                    for s in self._possible(t, r)
                ]
                self._at_most_one(sends)
                if k == rounds - first and t >= first:
                    self.clauses += [finals, sends, *([-v] for _, v in others)]
                if wasteless:
                    self.clauses += [sends, [*finals, *(v for _, v in others)]]
                    self.clauses += [[-v] for copied, v in others if copied]
            for (c, s), receives in fed.items():
                sends = [
                    self.variable("send", t, r, c, s) for r in range(n) if s in self._possible(t, r)
                ]
                many = self._sorted(sends, up=False)
                for i, literal in enumerate(self._sorted(receives, up=True)):
                    self.clauses.append([-literal, *many[i : i + 1]])
        if wasteless:
            for several in made.values():
                self._at_most_one(several)
        for c in range(k):
            for whole in range(3, self.full + 1):
                parts = [a for a in range(1, whole) if a & whole == a and a < whole - a]
                self._at_most_one([self.variable("split", c, a, whole - a) for a in parts])
        if self.full.bit_count() > 2**rounds:
            self.clauses.append([])
        for t in range(1, rounds):
            self._order(t)

    def _receives(
        self,
        t: int,
        r: int,
        fed: dict[tuple[int, int], list[int]],
        made: dict[tuple[int, int], list[int]],
    ) -> tuple[list[int], list[tuple[bool, int]]]:
        """What it can receive: what completes a chunk, and all else with whether it is a copy."""
        finals, others = [], []
        sent = sorted({s for q in range(self.n) for s in self._possible(t, q)})
        for c in range(self.k):
            hold = {s: self.variable("hold", t, r, c, s) for s in self._possible(t, r)}
            after = {s: self.variable("hold", t + 1, r, c, s) for s in self._possible(t + 1, r)}
            self._at_most_one(list(after.values()))
            causes = {s: [-v, *([hold[s]] if s in hold else [])] for s, v in after.items()}
            for s, v in hold.items():
                self.clauses.append([-self.variable("send", t, r, c, s), v])
            ways = [(0, y) for y in sent] + [(x, y) for x in hold for y in sent if not x & y]
            for x, y in ways:
                if x | y not in after:
                    continue
                v = self.variable("add" if x else "copy", t, r, c, *(x, y)[not x :])
                self.clauses.append([-v, after[x | y]])
                causes[x | y].append(v)
                if x:
                    self.clauses += [
                        [-v, hold[x]],
                        [-v, self.variable("split", c, *sorted((x, y)))],
                    ]
                elif y in hold:
                    self.clauses.append([-v, -hold[y]])
                fed.setdefault((c, y), []).append(v)
                if x | y == self.full:
                    finals.append(v)
                else:
                    others.append((not x, v))
                    if x:
                        made.setdefault((c, x | y), []).append(v)
            self.clauses += causes.values()
        return finals, others

    def _order(self, t: int) -> None:
        """A chunk is complete somewhere no later than the next one; and chunk 0 at one rank no
        later than at the next of those that are alike. Either can be had by renaming."""
        complete = [self.variable("complete", t, c) for c in range(self.k)]
        for c, here in enumerate(complete):
            held = [
                self.variable("hold", t, r, c, self.full)
                for r in range(self.n)
                if self.full in self._possible(t, r)
            ]
            self.clauses += [[-here, *held], *([here, -v] for v in held)]
        self.clauses += [[one, -following] for one, following in pairwise(complete)]
        for alike in range(self.late), range(self.late, self.n):
            for one, following in pairwise(alike):
                if self.full in self._possible(t, one):
                    later, held = (
                        self.variable("hold", t, r, 0, self.full) for r in (following, one)
                    )
                    self.clauses.append([-later, held])

    def dimacs(self) -> str:
        """As a file for solvers."""
        lines = [f"p cnf {len(self._variable)} {len(self.clauses)}"]
        return "\n".join([*lines, *(" ".join(map(str, [*c, 0])) for c in self.clauses)]) + "\n"

    def completion(self, true: set[int]) -> list[Round]:
        """The rounds of an assignment, late ranks first."""
        names = [name for name, v in self._variable.items() if v in true]
        rounds = []
        for t in range(self.rounds):
            moves = []
            for c in range(self.k):
                senders: dict[int, list[int]] = {}
                for name in names:
                    if name[0] == "send" and name[1] == t and name[3] == c:
                        senders.setdefault(int(name[4]), []).append(int(name[2]))
                for name in names:
                    if name[0] in ("copy", "add") and name[1] == t and name[3] == c:
                        op: Op = "copy" if name[0] == "copy" else "reduce"
                        moves.append(Transfer(senders[int(name[-1])].pop(), int(name[2]), c, op))
            rounds.append(tuple(moves))
        return rounds


def asked(solver: str, formula: Formula) -> set[int] | None:
    """The variables that are true; None if there is no assignment.

    Raises:
        subprocess.CalledProcessError: the solver failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "formula.cnf"
        path.write_text(formula.dimacs())
        done = subprocess.run([solver, "-q", path], capture_output=True, text=True, check=False)
    if done.returncode not in (10, 20):
        raise subprocess.CalledProcessError(done.returncode, solver, done.stdout, done.stderr)
    literals = [
        int(x) for line in done.stdout.splitlines() if line[:1] == "v" for x in line[2:].split()
    ]
    return None if done.returncode == 20 else {x for x in literals if x > 0}


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--solver", required=True)
    for name in ("ranks", "late", "chunks", "rounds"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()
    formula = Formula(options.ranks, options.late, options.chunks, options.rounds)
    true = asked(options.solver, formula)
    if true is None:
        print("no completion of so many rounds")
        return
    arrivals = instance(options.ranks, options.late, options.chunks)
    for rounds in Together(arrivals, 0).with_wait(formula.completion(true)):
        report = checked(arrivals.schedule(rounds))
        assert report.verdict is Verdict.PROVED
        print(f"{report.completion_rounds} rounds, proved")
        for moves in rounds[arrivals.last :]:
            print(" ".join(f"{m.src}>{m.dst}:{m.chunk}{m.op[0]}" for m in moves))


if __name__ == "__main__":
    main()
