"""Small schedules for the tests; all but :func:`arrivals` are built by hand, without a search."""

from __future__ import annotations

from synth.arrivals.generate import search
from verify import Incast, Phase, Schedule, Transfer


def by_rounds(schedule, state, add):
    """What each rank ends with for each chunk, with a barrier after every round."""
    for phase in schedule.phases:
        for transfers in phase.rounds:
            before = dict(state)
            for t in transfers:
                come = before[t.src, t.chunk]
                own = state[t.dst, t.chunk]
                state[t.dst, t.chunk] = add(own, come) if t.op == "reduce" else come
    return state


def ring(n: int) -> Schedule:
    def rounds(op: str, shift: int) -> tuple:
        return tuple(
            tuple(Transfer(r, (r + 1) % n, (r + shift - t) % n, op) for r in range(n))
            for t in range(n - 1)
        )

    phases = (Phase("reduce", (), rounds("reduce", 0)), Phase("gather", (), rounds("copy", 1)))
    return Schedule(ranks=n, chunks=n, phases=phases)


def direct(n: int) -> Schedule:
    """Several reduces into one buffer in one round."""
    pairs = [(src, dst) for dst in range(n) for src in range(n) if src != dst]
    scatter = tuple(Transfer(src, dst, dst, "reduce") for src, dst in pairs)
    gather = tuple(Transfer(src, dst, src, "copy") for src, dst in pairs)
    return Schedule(
        ranks=n, chunks=n, ports=Incast(n - 1), phases=(Phase("all", (), (scatter, gather)),)
    )


def straggler(n: int, m: int = 1) -> Schedule:
    """Rank n-1 late: rotation ReduceScatter, m exchanges per helper, rotation allgather."""
    late = n - 1
    helpers = n - 1
    chunks = range(helpers * m)

    def rotation(op: str, layer: int) -> tuple:
        return tuple(
            tuple(
                Transfer(i, (i + t) % helpers, layer * helpers + owner, op)
                for i in range(helpers)
                for owner in [(i + t) % helpers if op == "reduce" else i]
            )
            for t in range(1, helpers)
        )

    scatter = tuple(r for layer in range(m) for r in rotation("reduce", layer))
    exchange = tuple(
        (Transfer(late, c % helpers, c, "reduce"), Transfer(c % helpers, late, c, "reduce"))
        for c in chunks
    )
    gather = tuple(r for layer in range(m) for r in rotation("copy", layer))
    phases = (Phase("reduce_scatter", (late,), scatter), Phase("completion", (), exchange + gather))
    return Schedule(ranks=n, chunks=len(chunks), late=(late,), phases=phases)


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


ARRIVALS = {}


def arrivals(n, rounds):
    """A schedule made for late ranks that arrive in these rounds."""
    key = n, *rounds.items()
    if key not in ARRIVALS:
        ARRIVALS[key] = search(n, rounds, m=1, time_limit_s=5).schedule
    return ARRIVALS[key]


def crossing(each: int) -> Schedule:
    """Three ranks that have the sums, and in a last round exchange them with much incast.

    Rank 0 passes its first ``each`` chunks on to rank 1 while rank 2 overwrites them, and rank 1
    its others to rank 0 likewise. What comes from rank 2 is first in order and has to wait for what
    is passed on, which is last in order at its receiver.
    """
    chunks = range(2 * each)
    sums = [(Transfer(src, 0, c, "reduce"),) for src in (1, 2) for c in chunks]
    copies = [(Transfer(0, 1, c, "copy"), Transfer(0, 2, c, "copy")) for c in chunks]
    over = [Transfer(2, 0 if c < each else 1, c, "copy") for c in chunks]
    passed_on = [Transfer(int(c >= each), int(c < each), c, "copy") for c in chunks]
    rounds = (*sums, *copies, (*over, *passed_on))
    return Schedule(
        ranks=3, chunks=2 * each, ports=Incast(2 * each), phases=(Phase("all", (), rounds),)
    )
