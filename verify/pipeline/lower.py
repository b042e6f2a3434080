"""Lowering: messages for a schedule that is compute only.

A dry run with the durations and delays of the instance decides the order. Each time a compute
action finishes it is appended to its rank's program with its SEND, and the RECV to the program of
the rank that needs it: behind what that rank has finished by then. Both ends see all messages in
one global order, so neither reordered messages nor a wait cycle can arise, even if messages are
rendezvous on in-order streams. A shared link serves first what is ready first.

This is how PyTorch lowers compute_only schedules (``_add_send_recv``), which however counts every
action as one step, and so posts receives at other places.
"""

from __future__ import annotations

import heapq
from collections import Counter

import msgspec

from latecomer.verify.pipeline.costs import Costs
from latecomer.verify.pipeline.schedule import COMPUTE, PER_STAGE, Action, PipelineSchedule, send_of


def lowered(schedule: PipelineSchedule, costs: Costs) -> PipelineSchedule:
    r"""The schedule with every SEND, RECV and REDUCE_GRAD; itself if it has messages already.

    Its compute actions run to their end (they have no cycle).

    Examples:
        >>> from latecomer.verify.pipeline import decode_csv, lowered
        >>> from latecomer.verify.pipeline.costs import Costs
        >>> schedule = decode_csv(b"0F0,0B0\n1F0,1B0\n")
        >>> for program in lowered(schedule, Costs.of(schedule.instance)).programs:
        ...     print(*program)
        0F0 0SEND_F0 0RECV_B0 0B0 0REDUCE_GRAD
        1RECV_F0 1F0 1B0 1SEND_B0 1REDUCE_GRAD
    """
    if schedule.has_messages:
        return schedule
    programs: list[list[Action]] = [[] for _ in schedule.programs]
    reduced = {action.stage for _, _, action in schedule.located() if action.kind == "REDUCE_GRAD"}
    open_backwards = Counter(dict.fromkeys(range(schedule.stages), schedule.microbatches))
    for rank, action in _in_order_of_finish(schedule, costs):
        programs[rank].append(action)
        if action.kind in COMPUTE:
            receive = schedule.crossing(action)
            if receive is not None:
                programs[rank].append(send_of(receive))
                programs[schedule.rank_of[receive.stage]].append(receive)
        if action.kind in ("W", "B"):
            open_backwards[action.stage] -= 1
            if not open_backwards[action.stage] and not reduced:
                programs[rank].append(Action(action.stage, "REDUCE_GRAD"))
    return msgspec.structs.replace(schedule, programs=tuple(map(tuple, programs)))


def _in_order_of_finish(schedule: PipelineSchedule, costs: Costs) -> list[tuple[int, Action]]:
    """All actions with their ranks, in the order in which they finish in a dry run."""
    positions = [0] * schedule.ranks  # per rank of the action that runs, or waits
    free = [0] * schedule.ranks  # per rank when its last compute action was over
    arrivals: dict[Action, int] = {}  # RECV -> when its message is there
    waiting_ranks: dict[Action, int] = {}  # RECV -> the rank that stands still for it
    link_free: Counter[tuple[int, int]] = Counter()
    running: list[tuple[int, int]] = []  # (end, rank)
    done: list[tuple[int, Action]] = []

    def start_next(rank: int) -> None:
        """Start the next compute action of a rank, or note what it waits for."""
        program = schedule.programs[rank]
        while positions[rank] < len(program) and program[positions[rank]].kind in PER_STAGE:
            done.append((rank, program[positions[rank]]))
            positions[rank] += 1
        if positions[rank] == len(program):
            return

        action = program[positions[rank]]
        start = free[rank]
        need = schedule.awaited(action)
        if need is not None:
            if need not in arrivals:
                waiting_ranks[need] = rank
                return
            start = max(start, arrivals[need])
        heapq.heappush(running, (start + costs.duration(action), rank))

    for rank in range(schedule.ranks):
        start_next(rank)

    while running:
        end, rank = heapq.heappop(running)
        action = schedule.programs[rank][positions[rank]]
        done.append((rank, action))
        positions[rank] += 1
        free[rank] = end
        receive = schedule.crossing(action)
        if receive is not None:
            receiver = schedule.rank_of[receive.stage]
            latency, occupancy, half = costs.link(rank, receiver)
            line = (min(rank, receiver), max(rank, receiver)) if half else (rank, receiver)
            link_free[line] = max(end, link_free[line]) + occupancy
            arrivals[receive] = link_free[line] + latency
            if receive in waiting_ranks:
                start_next(waiting_ranks.pop(receive))
        start_next(rank)

    for position, program in zip(positions, schedule.programs, strict=True):
        assert position == len(program)
    return done
