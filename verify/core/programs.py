"""Property 7: no deadlock when every rank runs its own program at its own pace.

There is no global clock. A rank's *program* is a sequence of steps, each a group of sends and
receives that are posted together; the next step is posted when all of the group are complete.
Sends are rendezvous: the k-th send from a to b meets the k-th receive at b from a, and both are
complete when both are posted.

This is a model of execution, and ``Programs.v`` is about ranks that stay in their round until all
of it is complete. The runtime takes what its ranks do from ``programs(schedule)``, but its executor
for CPU tensors has no barrier between rounds, phases or chunks: it sends ahead, byte by byte, as
far as dependencies within a chunk and the receivers' credits allow. ``SendAhead.v`` is about that:
it ends, with the same result, if a rank receives no chunk twice in a round. That the executor keeps
to what is assumed there is tested, not proved. Where the runtime gives ranks other names, the
programs under these names are asked about again.
"""

from __future__ import annotations

from itertools import groupby

import msgspec
import numpy as np
from numpy.typing import NDArray

from verify.core.schedule import IntArray, Schedule
from verify.core.verdict import PROVED, SHOWN, Counterexample, Result, refuted


class Programs(msgspec.Struct, frozen=True, eq=False):
    """The programs of all ranks, a row for each end of a transfer: by rank, in the rank's order.

    Attributes:
        rank: whose program; peer: at the other end.
        step: the step of the program; rows of one step stand together.
        sends: whether this is the sending end; reduce: whether what comes is added.
        round: of the schedule, from its start; index: the transfer in ``schedule.table``.
    """

    rank: IntArray
    step: IntArray
    peer: IntArray
    chunk: IntArray
    sends: NDArray[np.bool_]
    reduce: NDArray[np.bool_]
    round: IntArray
    index: IntArray

    def scratch(self) -> NDArray[np.bool_]:
        """Whether a receive needs a buffer of its own.

        All of a step read the state at its start: so a reduce, and a copy that meets a send of
        its chunk in the step, can't land in place.
        """
        place = self.step * (1 + self.chunk.max(initial=0)) + self.chunk
        return ~self.sends & (self.reduce | np.isin(place, place[self.sends]))


def programs(schedule: Schedule) -> Programs:
    """What each rank does: a step for each round in which it takes part, in order."""
    table = schedule.table
    ends = np.stack([table.src, table.dst], axis=1).reshape(-1)  # in the order of the file
    order = np.argsort(ends, kind="stable")
    rank = ends[order]
    peer = ends[order ^ 1]
    index = order // 2
    sends = order % 2 == 0
    round_ = table.round[index]
    chunk = table.chunk[index]
    reduce = table.reduce[index]
    begins = np.append(True, (np.diff(rank) != 0) | (np.diff(round_) != 0))[: len(rank)]
    step = np.cumsum(begins)
    return Programs(rank, step, peer, chunk, sends, reduce, round_, index)


def deadlock_free(of: Programs) -> Result:
    """Property 7: all ends find each other, and the programs run to their ends.

    No rank is its own peer.

    A clock shows it at once: rounds that grow along each program and are the same at both ends of
    each transfer. Without one the programs are run. Posting and completing never disables
    anything, so one run decides: if it stops early, every run stops there.
    """
    assert (np.diff(of.rank) >= 0).all()
    assert (np.diff(of.step) >= 0).all()
    size = 1 + max(of.rank.max(initial=0), of.peer.max(initial=0))
    pair = np.where(of.sends, of.rank * size + of.peer, of.peer * size + of.rank)
    order = np.argsort(pair, kind="stable")  # each rank's ends with another in its own order
    sends, receives = order[of.sends[order]], order[~of.sends[order]]
    short = min(len(sends), len(receives))
    odd = np.flatnonzero(pair[sends[:short]] != pair[receives[:short]])
    if len(odd) or len(sends) != len(receives):
        ends = [side[odd[0] if len(odd) else short :][:1] for side in (sends, receives)]
        alone = min(np.concatenate(ends).tolist(), key=pair.__getitem__)
        return _refuted(of, [alone], f"rank {of.peer[alone]} does not do its part")
    partner = np.empty_like(order)
    partner[sends], partner[receives] = receives, sends
    differ = np.flatnonzero(of.chunk != of.chunk[partner])
    if len(differ):
        return _refuted(of, [int(differ[0]), int(partner[differ[0]])], "the chunks differ")
    same_rank = np.diff(of.rank) == 0
    ticks = np.sign(np.diff(of.round)) == (np.diff(of.step) > 0)
    if ticks[same_rank].all() and (of.round == of.round[partner]).all():
        return PROVED
    cycle = _wait_cycle(of, partner.tolist())
    names = " -> ".join(f"rank {of.rank[row]}" for row in [*cycle, *cycle[:1]])
    return _refuted(of, cycle, f"wait cycle {names}") if cycle else PROVED


def _wait_cycle(of: Programs, partner: list[int]) -> list[int]:
    """What ranks wait for in a circle after all is done that can be done; empty if all end."""
    rank = of.rank.tolist()
    numbers = of.step.tolist()
    steps = [list(rows) for _, rows in groupby(range(len(rank)), numbers.__getitem__)]
    step = [number for number, rows in enumerate(steps) for _ in rows]
    owner = [rank[rows[0]] for rows in steps]
    missing = [len(rows) for rows in steps]
    posted: set[int] = set()
    ready = [number for number, who in enumerate(owner) if number == 0 or owner[number - 1] != who]
    while ready:
        now = ready.pop()
        posted.add(now)
        met = [there for row in steps[now] if (there := step[partner[row]]) in posted]
        for done in (*met, *(now for _ in met)):
            missing[done] -= 1
            if not missing[done] and owner[done : done + 1] == owner[done + 1 : done + 2]:
                ready.append(done + 1)
    waits = {
        owner[number]: next(row for row in steps[number] if step[partner[row]] not in posted)
        for number in posted
        if missing[number]
    }
    path: list[int] = []
    at = min(waits, default=-1)
    while at not in path and waits:
        path.append(at)
        at = rank[partner[waits[at]]]
    return [waits[who] for who in path[path.index(at) :]] if waits else []


def _refuted(of: Programs, rows: list[int], found: str) -> Result:
    actions = []
    for row in rows[:SHOWN]:
        end = "send to" if of.sends[row] else "receive from"
        number = of.step[row] - of.step[np.searchsorted(of.rank, of.rank[row])]
        place = f"rank {of.rank[row]}, step {number}"
        actions.append(f"{place}: {end} rank {of.peer[row]}, chunk {of.chunk[row]}")
    return refuted(
        Counterexample(
            property="deadlock_free",
            rank=int(of.rank[rows[0]]),
            chunk=int(of.chunk[rows[0]]),
            expected="every rank's program to run to its end",
            found=found,
            actions=tuple(actions),
        )
    )
