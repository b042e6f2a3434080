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

from latecomer.verify.core.schedule import IntArray, Schedule
from latecomer.verify.core.verdict import PROVED, SHOWN, Counterexample, Result, refuted


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
        chunk_in_step = self.step * (1 + self.chunk.max(initial=0)) + self.chunk
        meets_send = np.isin(chunk_in_step, chunk_in_step[self.sends])
        return ~self.sends & (self.reduce | meets_send)


def programs(schedule: Schedule) -> Programs:
    """What each rank does: a step for each round in which it takes part, in order."""
    table = schedule.table

    # Both ends of each transfer, in the order of the file: transfer i has rows 2i and 2i + 1.
    ends = np.stack([table.src, table.dst], axis=1).reshape(-1)
    order = np.argsort(ends, kind="stable")
    rank = ends[order]
    peer = ends[order ^ 1]
    index = order // 2
    sends = order % 2 == 0

    round_number = table.round[index]
    chunk = table.chunk[index]
    reduce = table.reduce[index]
    is_new_step = (np.diff(rank) != 0) | (np.diff(round_number) != 0)
    begins = np.append(True, is_new_step)[: len(rank)]  # a schedule may have no transfers
    step = np.cumsum(begins)
    return Programs(
        rank=rank,
        step=step,
        peer=peer,
        chunk=chunk,
        sends=sends,
        reduce=reduce,
        round=round_number,
        index=index,
    )


def deadlock_free(of: Programs) -> Result:
    """Property 7: all ends find each other, and the programs run to their ends.

    No rank is its own peer.

    A clock shows it at once: rounds that grow along each program and are the same at both ends of
    each transfer. Without one the programs are run. Posting and completing never disables
    anything, so one run decides: if it stops early, every run stops there.
    """
    assert (np.diff(of.rank) >= 0).all()
    assert (np.diff(of.step) >= 0).all()

    # The ends of each (sender, receiver), each rank's in its own order: k-th meets k-th.
    ranks = 1 + max(of.rank.max(initial=0), of.peer.max(initial=0))
    pair = np.where(of.sends, of.rank * ranks + of.peer, of.peer * ranks + of.rank)
    order = np.argsort(pair, kind="stable")
    sends = order[of.sends[order]]
    receives = order[~of.sends[order]]

    alone = _first_alone(pair, sends, receives)
    if alone is not None:
        return _refuted(of, [alone], f"rank {of.peer[alone]} does not do its part")

    partner = np.empty_like(order)
    partner[sends] = receives
    partner[receives] = sends
    differ = np.flatnonzero(of.chunk != of.chunk[partner])
    if len(differ):
        first = int(differ[0])
        return _refuted(of, [first, int(partner[first])], "the chunks differ")

    same_rank = np.diff(of.rank) == 0
    ticks = np.sign(np.diff(of.round)) == (np.diff(of.step) > 0)
    if ticks[same_rank].all() and (of.round == of.round[partner]).all():
        return PROVED

    cycle = _wait_cycle(of, partner.tolist())
    if not cycle:
        return PROVED
    names = " -> ".join(f"rank {of.rank[row]}" for row in [*cycle, cycle[0]])
    return _refuted(of, cycle, f"wait cycle {names}")


def _first_alone(pair: IntArray, sends: IntArray, receives: IntArray) -> int | None:
    """A row without a partner: of the first (sender, receiver) with one; None if all meet.

    Args:
        pair: of each row, (sender, receiver) as a number.
        sends, receives: rows, by pair.
    """
    shorter = min(len(sends), len(receives))
    differ = np.flatnonzero(pair[sends[:shorter]] != pair[receives[:shorter]])
    if not len(differ) and len(sends) == len(receives):
        return None

    first = int(differ[0]) if len(differ) else shorter
    candidates: list[int] = []
    for side in (sends, receives):
        candidates += side[first : first + 1].tolist()
    return min(candidates, key=pair.__getitem__)


def _wait_cycle(of: Programs, partner: list[int]) -> list[int]:
    """What ranks wait for in a circle after all is done that can be done; empty if all end."""
    rank = of.rank.tolist()
    step_numbers = of.step.tolist()
    steps = [list(rows) for _, rows in groupby(range(len(rank)), step_numbers.__getitem__)]
    step_of_row = [step for step, rows in enumerate(steps) for _ in rows]
    owner = [rank[rows[0]] for rows in steps]
    missing = [len(rows) for rows in steps]  # of each step, ends that are not complete yet
    posted: set[int] = set()

    ready = [step for step, who in enumerate(owner) if step == 0 or owner[step - 1] != who]
    while ready:
        step = ready.pop()
        posted.add(step)
        partner_steps = [step_of_row[partner[row]] for row in steps[step]]
        met = [partner_step for partner_step in partner_steps if partner_step in posted]
        for completing in [*met, *[step] * len(met)]:  # an end there, and one here
            missing[completing] -= 1
            following = completing + 1
            is_last = following == len(steps) or owner[following] != owner[completing]
            if not missing[completing] and not is_last:
                ready.append(following)

    waiting_row = {}
    for step in posted:
        if missing[step]:
            not_met = (row for row in steps[step] if step_of_row[partner[row]] not in posted)
            waiting_row[owner[step]] = next(not_met)
    if not waiting_row:
        return []

    # Whom a rank waits for is stuck, too: from any of them the way ends in a circle.
    path: list[int] = []
    stuck_rank = min(waiting_row)
    while stuck_rank not in path:
        path.append(stuck_rank)
        stuck_rank = rank[partner[waiting_row[stuck_rank]]]
    return [waiting_row[member] for member in path[path.index(stuck_rank) :]]


def _refuted(of: Programs, rows: list[int], found: str) -> Result:
    actions = []
    for row in rows[:SHOWN]:
        verb = "send to" if of.sends[row] else "receive from"
        first_row = np.searchsorted(of.rank, of.rank[row])
        step = of.step[row] - of.step[first_row]  # the rank's own count, from 0
        action = f"{verb} rank {of.peer[row]}, chunk {of.chunk[row]}"
        actions.append(f"rank {of.rank[row]}, step {step}: {action}")
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
