"""Small schedules for the tests; all but :func:`arrivals` are built by hand, without a search."""

from __future__ import annotations

import itertools

from latecomer.synth.arrivals.generate import search
from latecomer.verify import Incast, Phase, Schedule, Transfer


def by_rounds(schedule, state, add):
    """What each rank ends with for each chunk, with a barrier after every round."""
    for phase in schedule.phases:
        for transfers in phase.rounds:
            before = dict(state)
            for transfer in transfers:
                received = before[transfer.src, transfer.chunk]
                own = state[transfer.dst, transfer.chunk]
                result = add(own, received) if transfer.op == "reduce" else received
                state[transfer.dst, transfer.chunk] = result
    return state


def ring(n: int) -> Schedule:
    def one_round(op: str, shift: int) -> tuple[Transfer, ...]:
        return tuple(Transfer(rank, (rank + 1) % n, (rank + shift) % n, op) for rank in range(n))

    reduce_rounds = tuple(one_round("reduce", -step) for step in range(n - 1))
    gather_rounds = tuple(one_round("copy", 1 - step) for step in range(n - 1))
    phases = (Phase("reduce", (), reduce_rounds), Phase("gather", (), gather_rounds))
    return Schedule(ranks=n, chunks=n, phases=phases)


def direct(n: int) -> Schedule:
    """Several reduces into one buffer in one round."""
    pairs = [(src, dst) for dst in range(n) for src in range(n) if src != dst]
    scatter = tuple(Transfer(src, dst, dst, "reduce") for src, dst in pairs)
    gather = tuple(Transfer(src, dst, src, "copy") for src, dst in pairs)
    phases = (Phase("all", (), (scatter, gather)),)
    return Schedule(ranks=n, chunks=n, ports=Incast(n - 1), phases=phases)


def straggler(n: int, m: int = 1) -> Schedule:
    """Rank n-1 late: rotation ReduceScatter, m exchanges per helper, rotation allgather."""
    late = n - 1
    helpers = n - 1
    chunks = helpers * m

    def one_round(op: str, layer: int, distance: int) -> tuple[Transfer, ...]:
        """Each helper sends a chunk of the layer to the helper at this distance.

        In a reduce it is the receiver's own chunk, in a copy the sender's.
        """
        transfers = []
        for src in range(helpers):
            dst = (src + distance) % helpers
            owner = dst if op == "reduce" else src
            transfers.append(Transfer(src, dst, layer * helpers + owner, op))
        return tuple(transfers)

    turns = list(itertools.product(range(m), range(1, helpers)))
    scatter = tuple(one_round("reduce", layer, distance) for layer, distance in turns)
    exchange = tuple(
        (Transfer(late, c % helpers, c, "reduce"), Transfer(c % helpers, late, c, "reduce"))
        for c in range(chunks)
    )
    gather = tuple(one_round("copy", layer, distance) for layer, distance in turns)
    phases = (Phase("reduce_scatter", (late,), scatter), Phase("completion", (), exchange + gather))
    return Schedule(ranks=n, chunks=chunks, late=(late,), phases=phases)


def swapping() -> Schedule:
    """Two ranks whose last round sends and overwrites the same chunks: needs staging.

    Rank 0 sums chunk 0 and rank 1 chunk 1; then, in one round, each passes its sum on. Before
    that both exchange chunk 0 by reduce (in place on both sides), which must be staged too.
    """
    exchange = (Transfer(0, 1, 0, "reduce"), Transfer(1, 0, 0, "reduce"))
    swap = (
        (Transfer(1, 0, 1, "reduce"),),
        (Transfer(0, 1, 1, "copy"), Transfer(1, 0, 0, "copy")),
        (Transfer(0, 1, 0, "copy"), Transfer(1, 0, 0, "copy")),
    )
    phases = (Phase("exchange", (), (exchange,)), Phase("swap", (), swap))
    return Schedule(ranks=2, chunks=2, phases=phases)


FOUND_SCHEDULES = {}
"""What :func:`arrivals` has searched for in this process, by its arguments."""


def arrivals(n, rounds):
    """A schedule made for late ranks that arrive in these rounds."""
    key = n, *rounds.items()
    if key not in FOUND_SCHEDULES:
        FOUND_SCHEDULES[key] = search(n, rounds, m=1, time_limit_s=5).schedule
    return FOUND_SCHEDULES[key]


def crossing(half: int) -> Schedule:
    """Three ranks that have the sums, and in a last round exchange them with much incast.

    Rank 0 passes its first ``half`` chunks on to rank 1 while rank 2 overwrites them, and rank 1
    its others to rank 0 likewise. What comes from rank 2 is first in order and has to wait for what
    is passed on, which is last in order at its receiver.
    """
    chunks = range(2 * half)
    sums = [(Transfer(src, 0, c, "reduce"),) for src in (1, 2) for c in chunks]
    copies = [(Transfer(0, 1, c, "copy"), Transfer(0, 2, c, "copy")) for c in chunks]

    overwriting = []
    passed_on = []
    for chunk in chunks:
        src, dst = (0, 1) if chunk < half else (1, 0)
        overwriting.append(Transfer(2, src, chunk, "copy"))
        passed_on.append(Transfer(src, dst, chunk, "copy"))

    rounds = (*sums, *copies, (*overwriting, *passed_on))
    phases = (Phase("all", (), rounds),)
    return Schedule(ranks=3, chunks=2 * half, ports=Incast(2 * half), phases=phases)
