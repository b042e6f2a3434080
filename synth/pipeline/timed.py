"""From start times to programs: compute only where that loses nothing, else with messages.

A schedule that is compute only has its messages served first come, first served. Where a link has
occupancy, and above all where it is half duplex, it can pay to let a message wait for another one;
then SEND and RECV are written out, each behind what its rank has finished by the time the message
starts. So all ranks see all messages in one order, and nothing waits in a cycle, even if messages
are rendezvous on one in-order stream per rank.
"""

from __future__ import annotations

from typing import NamedTuple

from latecomer.synth.pipeline.evaluate import durations
from latecomer.synth.pipeline.problem import Orders, Problem, Starts
from latecomer.verify.pipeline.schedule import Action

# Of actions that take no time, at one time: those that free memory before the one that takes it.
TURN = {"I": 0, "W": 1, "F": 2}


def compute_only(problem: Problem, starts: Starts) -> Orders:
    """Per rank its compute actions as they start.

    Of actions that take no time, at one time, those that free memory come first.
    """
    lengths = durations(problem)

    def turn(action: Action) -> tuple[int, bool, int, int, int]:
        stage, kind, microbatch = action
        along_the_data = stage if kind == "F" else -stage
        takes_time = lengths[kind][stage] > 0
        return starts.actions[action], takes_time, TURN[kind], along_the_data, microbatch or 0

    orders: Orders = [[] for _ in range(problem.ranks)]
    for action in starts.actions:
        orders[problem.rank_of[action.stage]].append(action)
    return [sorted(order, key=turn) for order in orders]


def with_messages(problem: Problem, starts: Starts) -> Orders:
    """The same with every SEND, RECV and REDUCE_GRAD."""
    programs: Orders = [[] for _ in range(problem.ranks)]
    remaining_w = dict.fromkeys(range(problem.stages), problem.microbatches)
    for _, is_message, rank, _, action in sorted(_events(problem, starts)):
        stage, kind, m = action
        if not is_message:
            programs[rank].append(action)
            if kind == "W":
                remaining_w[stage] -= 1
                if not remaining_w[stage]:
                    programs[rank].append(Action(stage, "REDUCE_GRAD"))
        elif kind == "F":
            programs[rank].append(Action(stage, "SEND_F", m))
            programs[problem.rank_of[stage + 1]].append(Action(stage + 1, "RECV_F", m))
        else:
            programs[rank].append(Action(stage, "SEND_B", m))
            programs[problem.rank_of[stage - 1]].append(Action(stage - 1, "RECV_B", m))
    return programs


class _Event(NamedTuple):
    """The end of a compute action, or the start of its message.

    Events sort by time; at equal times ends come first: what is sent has been computed.
    """

    ticks: int
    is_message: bool
    rank: int
    position: int
    action: Action


def _events(problem: Problem, starts: Starts) -> list[_Event]:
    """All ends of compute actions, and all messages between ranks, not sorted yet."""
    lengths = durations(problem)
    last_stage = problem.stages - 1
    events = []
    for rank, order in enumerate(compute_only(problem, starts)):
        for position, action in enumerate(order):
            end = starts.actions[action] + lengths[action.kind][action.stage]
            events.append(_Event(end, False, rank, position, action))

            target = action.stage + (1 if action.kind == "F" else -1)
            is_sent = action.kind != "W" and 0 <= target <= last_stage
            if is_sent and problem.rank_of[target] != rank:
                send_start = starts.messages.get(action, end)
                events.append(_Event(send_start, True, rank, position, action))
    return events
