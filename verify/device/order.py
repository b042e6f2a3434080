"""What comes before what in a device program: no deadlock, no race across operations, all heard.

An execution is any order of steps that keeps each rank's own and lets each receive come after its
put. That order of waits is the same in every operation, so a few of them, unrolled, decide for any
number (proofs/coq/DeviceOrder.v):

    deadlock_free   one operation: if its waits have no cycle, no execution ever gets stuck
    race_free       ``sets + 1``: between two uses of a slot of a set the taker is ahead of the
                    storer. Flags are then right, too: a wait ends with its own raise, never with an
                    older one, also where epochs wrap around at 2**32
    all_heard       one operation: before a rank ends it, every rank has begun it. Then whatever is
                    done in an epoch comes before all of the epoch after the next, on all ranks, so
                    with two sets different programs may follow each other, however they cut a set
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from latecomer.verify.asynchronous.deadlock import deadlock_free
from latecomer.verify.asynchronous.order import Events, FlatProgram, Run
from latecomer.verify.asynchronous.races import first_race
from latecomer.verify.core.verdict import PROVED, SHOWN, Counterexample, Result, refuted
from latecomer.verify.device.program import DeviceProgram
from latecomer.verify.device.unrolled import unrolled


def one_operation(program: DeviceProgram) -> tuple[Result, Run]:
    """Whether one operation ends, and a run of it as far as it gets."""
    flat = FlatProgram(unrolled(program, 1))
    return deadlock_free(flat, None)[0], Run(Events(flat, 1), None)


def race_free(program: DeviceProgram) -> Result:
    """Whether slots are taken before they are stored into again; one operation has no cycle."""
    run = Run(Events(FlatProgram(unrolled(program, program.sets + 1)), 1), None)
    assert run.ends
    race = first_race(run)
    if race is None:
        return PROVED
    flat = run.events.flat
    where = flat.program.name_of(race[2])
    # A put signals, a take does not.
    store, take = sorted(race[:2], key=lambda event: not flat.steps[event].signals)
    storer = int(flat.block[store])
    taker = int(flat.block[take])
    done = _before(run, store)
    actions = [
        f"not yet done: {flat.describe(take)}",
        f"done already: {flat.describe(store)}",
        "what has to be done for that, and no more:",
    ]
    for rank in range(program.ranks):
        of_rank = np.flatnonzero(done & (flat.block == rank))
        last = flat.describe(int(of_rank[-1])) if len(of_rank) else f"rank {rank}: nothing"
        actions.append(f"  up to {last}" if len(of_rank) else f"  {last}")
    shown = SHOWN + 3
    more = [f"  ... of {program.ranks} ranks"] * (len(actions) > shown)
    return refuted(
        Counterexample(
            property="race_free",
            rank=storer,
            position=flat.steps[store].position,
            action=flat.steps[store].text,
            expected=f"rank {storer} to wait until rank {taker} has taken what is there "
            f"({flat.steps[take].text})",
            found=f"{where} is overwritten before it is read",
            actions=(*actions[:shown], *more),
        )
    )


def _before(run: Run, event: int) -> NDArray[np.bool_]:
    """Which events come before ``event`` in every execution; it is one of them itself."""
    waits: dict[int, list[int]] = {}
    for earlier, later in zip(run.before.tolist(), run.after.tolist(), strict=True):
        waits.setdefault(later, []).append(earlier)
    block = run.events.block
    done = np.zeros(len(block), np.bool_)
    todo = [event]
    while todo:
        at = todo.pop()
        if not done[at]:
            done[at] = True
            todo += waits.get(at, [])
            todo += [at - 1] if at and block[at - 1] == block[at] else []
    return done


def all_heard(program: DeviceProgram, run: Run) -> Result:
    """Whether every rank has begun an operation before any rank ends it."""
    waits: dict[int, list[int]] = {}
    for earlier, later in zip(run.before.tolist(), run.after.tolist(), strict=True):
        waits.setdefault(later, []).append(earlier)
    owner = run.events.block.tolist()
    heard = [0] * len(owner)  # for each event, a bit for each rank
    at_end = [0] * program.ranks
    for event in run.sequence:
        rank = owner[event]
        heard[event] = at_end[rank] | 1 << rank
        for earlier in waits.get(event, []):
            heard[event] |= heard[earlier]
        at_end[rank] = heard[event]
    for rank, bits in enumerate(at_end):
        for other in range(program.ranks):
            if other != rank and not bits >> other & 1:
                return refuted(
                    Counterexample(
                        property="all_heard",
                        rank=rank,
                        expected="every rank to have begun an operation before any rank ends it",
                        found=f"rank {rank} hears nothing from rank {other}, and may be "
                        "any number of operations ahead",
                    )
                )
    return PROVED
