"""What a rank executes of the closed form, against the same of the whole, by other ways.

    python -m tests.proofs.own_parts [--n 2..1024] [--prove] [--seed 1] [--jobs N]
    python -m tests.proofs.own_parts --extracted 200 [--seed 1] [--jobs N]

The first goes through every number of ranks and every number of chunks that the runtime chooses
from (``latecomer.runtime.policy.candidates.CLASSES``). For each it draws a rank, and three late
ranks: one before it, one behind it, and itself. What the runtime would execute there, with the
ranks renamed, must be the rank's rows in ``latecomer.verify.core.programs`` of the whole schedule,
which is made in one piece and renamed by ``latecomer.verify.renaming``. ``--prove`` has ``verify``
prove each whole schedule besides, which takes some times as long.

The second compares with what is proved in Coq: a rank's part as the extracted program prints it,
for numbers of ranks, chunks and a rank drawn at random. Needs ``make proofs``.

Exit code 1 if anything differs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from latecomer.runtime.executor import closed_form
from latecomer.runtime.executor.closed_form import ClosedFormPart
from latecomer.runtime.policy.candidates import CLASSES
from latecomer.runtime.work import RankProgram
from latecomer.synth.straggler.own import own_part, whole
from latecomer.synth.survey import parse_range
from latecomer.verify.core.check import check
from latecomer.verify.core.programs import programs
from latecomer.verify.core.schedule import Phase, Schedule
from latecomer.verify.core.verdict import Verdict
from latecomer.verify.kernel import BUILT
from latecomer.verify.renaming import renamed

MOST_RANKS = 2**10
CHUNKS = tuple(sorted(CLASSES))
Row = tuple[int, int, int, bool, bool, int, int]
PhaseMoves = list[list[list[Any]]]
"""By round and move: source, destination, chunk and op."""


def executed(program: RankProgram, schedule: Schedule) -> list[Row]:
    """Phase, round in it, index, send, reduce, peer and chunk of all that a rank executes."""
    names = [phase.name for phase in schedule.phases]
    rows = []

    for end in program.ends:
        name, round_in_phase = program.steps[end.step]
        assert names[end.phase] == name
        row = (
            end.phase,
            round_in_phase,
            end.index,
            end.send,
            end.reduce,
            end.peer,
            end.chunk,
        )
        rows.append(row)

    return rows


def expected(schedule: Schedule, rank: int, position_of: list[int]) -> list[Row]:
    """The same by the rows of all ranks.

    ``position_of`` gives a rank's number in the closed form, where the late rank is the last.
    """
    all_rows = programs(schedule)
    lengths = [len(phase.rounds) for phase in schedule.phases]
    phase_of = np.repeat(np.arange(len(lengths)), lengths)
    first_round = np.cumsum([0, *lengths])
    rows = []

    for number in np.flatnonzero(all_rows.rank == rank).tolist():
        send = bool(all_rows.sends[number])
        peer = int(all_rows.peer[number])
        round_number = int(all_rows.round[number])
        phase = int(phase_of[round_number])
        round_in_phase = round_number - int(first_round[phase])
        sender = rank if send else peer
        index = round_number * schedule.ranks + position_of[sender]
        reduce = bool(all_rows.reduce[number]) and not send
        chunk = int(all_rows.chunk[number])
        rows.append((phase, round_in_phase, index, send, reduce, peer, chunk))

    rows.sort(key=lambda row: (row[0], row[1], not row[3]))  # sends first, as they are executed
    return rows


def differs(n: int, k: int, rank: int, form: ClosedFormPart, complete: Schedule) -> str:
    """Where what ``rank`` executes is not its part of the whole; empty if it is everywhere."""
    lates = {max(rank - 1, 0), rank, min(rank + 1, n - 1)}

    for late in sorted(lates):
        helpers = [helper for helper in range(n) if helper != late]
        rank_at = dict(enumerate([*helpers, late]))
        position_of = sorted(rank_at, key=rank_at.__getitem__)
        schedule = renamed(complete, rank_at)
        program = form.program(rank, (late,))

        if schedule.late != (late,):
            return f"n = {n}, k = {k}: renamed for rank {late}, the ranks {schedule.late} are late"
        if executed(program, schedule) != expected(schedule, rank, position_of):
            return f"n = {n}, k = {k}, rank {rank}, rank {late} late: another program"

    return ""


def compare(n: int, seed: int, prove: bool, chunks: Iterable[int] = CHUNKS) -> str:
    """The first difference for a number of ranks, with one rank for each number of chunks."""
    dice = random.Random(f"{seed} {n}")
    closed_form.PROVED = 0  # it is compared here

    for k in chunks:
        complete = whole(n, k)
        if prove and check(complete).verdict is not Verdict.PROVED:
            return f"n = {n}, k = {k}: not proved"
        rank = dice.randrange(n)
        if difference := differs(n, k, rank, ClosedFormPart(n, rank, k), complete):
            return difference

    return ""


def drawn(count: int, seed: int, most_chunks: int = CHUNKS[-1]) -> Iterator[tuple[int, int, int]]:
    """Ranks, chunks, and a rank, at random."""
    dice = random.Random(seed)
    chunks = [k for k in CHUNKS if k <= most_chunks]
    for _ in range(count):
        n = dice.randint(2, MOST_RANKS)
        yield n, dice.choice(chunks), dice.randrange(n)


def differs_from_extracted(case: tuple[int, int, int]) -> str:
    """Where a rank's own part is not what the program extracted from Coq prints; or empty."""
    n, k, rank = case
    command = [str(BUILT), "--closed-form", "program", str(n), str(k), str(rank)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, timeout=600)
    proved: list[PhaseMoves] = []
    for line in printed.stdout.splitlines():
        rounds = json.loads(line)
        proved.append([sorted(moves) for moves in rounds])

    ours: list[PhaseMoves] = [moves_of(phase) for phase in own_part(n, rank, k).phases]
    if len(ours) == 1:  # two ranks have nothing to do before the late one comes
        ours.insert(0, [])

    if ours != proved:
        return f"n = {n}, k = {k}, rank {rank}: not what Coq has"
    return ""


def moves_of(phase: Phase) -> PhaseMoves:
    """What the extracted program prints of a phase, with the moves of a round in order."""
    rounds = []
    for transfers in phase.rounds:
        moves = [[t.src, t.dst, t.chunk, t.op] for t in transfers]
        rounds.append(sorted(moves))
    return rounds


def main() -> int:
    """Compare; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", default=f"2..{MOST_RANKS}", help="ranks, as 2..64 or 2,3,8..12")
    parser.add_argument("--prove", action="store_true", help="and prove each whole schedule")
    parser.add_argument("--extracted", type=int, default=0, help="so many, against Coq's")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()

    with ProcessPoolExecutor(options.jobs) as pool:
        if options.extracted:
            cases = list(drawn(options.extracted, options.seed))
            differences = pool.map(differs_from_extracted, cases)
            summary = f"{len(cases)} parts of single ranks are what Coq has"
        else:
            ns = parse_range("--n", options.n, 2, MOST_RANKS)
            compare_n = partial(compare, seed=options.seed, prove=options.prove)
            differences = pool.map(compare_n, ns, chunksize=4)
            pairs = len(ns) * len(CHUNKS)
            summary = f"{pairs} numbers of ranks and chunks: what runs is the whole's"

        problems = [difference for difference in differences if difference]

    if problems:
        print(*problems, sep="\n")
        return 1
    print(summary)
    return 0


if __name__ == "__main__":
    sys.exit(main())
