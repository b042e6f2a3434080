"""From start times to programs: compute only where that loses nothing, else with messages.

A schedule that is compute only has its messages served first come, first served. Where a link has
occupancy, and above all where it is half duplex, it can pay to let a message wait for another one;
then SEND and RECV are written out, each behind what its rank has finished by the time the message
starts. So all ranks see all messages in one order, and nothing waits in a cycle, even if messages
are rendezvous on one in-order stream per rank.
"""

from __future__ import annotations

from synth.pipeline.evaluate import durations
from synth.pipeline.problem import Orders, Problem, Starts
from verify.pipeline.schedule import Action

TURN = {"I": 0, "W": 1, "F": 2}


def compute_only(problem: Problem, starts: Starts) -> Orders:
    """Per rank its compute actions as they start.

    Of actions that take no time, at one time, those that free memory come first.
    """
    lengths = durations(problem)

    def key(action: Action) -> tuple[int, bool, int, int, int]:
        stage, kind, m = action
        deep = stage if kind == "F" else -stage
        return starts.actions[action], lengths[kind][stage] > 0, TURN[kind], deep, m or 0

    orders: Orders = [[] for _ in range(problem.ranks)]
    for action in starts.actions:
        orders[problem.rank_of[action.stage]].append(action)
    return [sorted(order, key=key) for order in orders]


def with_messages(problem: Problem, starts: Starts) -> Orders:
    """The same with every SEND, RECV and REDUCE_GRAD."""
    lengths = durations(problem)
    last = problem.stages - 1
    events: list[tuple[int, int, int, int, Action]] = []  # time, message?, rank, place, action
    for rank, order in enumerate(compute_only(problem, starts)):
        for place, action in enumerate(order):
            end = starts.actions[action] + lengths[action.kind][action.stage]
            events.append((end, 0, rank, place, action))
            target = action.stage + (1 if action.kind == "F" else -1)
            crosses = action.kind != "W" and 0 <= target <= last
            if crosses and problem.rank_of[target] != rank:
                events.append((starts.messages.get(action, end), 1, rank, place, action))
    programs: Orders = [[] for _ in range(problem.ranks)]
    left = dict.fromkeys(range(problem.stages), problem.microbatches)
    for _, is_message, rank, _, action in sorted(events):
        stage, kind, m = action
        if not is_message:
            programs[rank].append(action)
            if kind == "W":
                left[stage] -= 1
                if not left[stage]:
                    programs[rank].append(Action(stage, "REDUCE_GRAD"))
        elif kind == "F":
            programs[rank].append(Action(stage, "SEND_F", m))
            programs[problem.rank_of[stage + 1]].append(Action(stage + 1, "RECV_F", m))
        else:
            programs[rank].append(Action(stage, "SEND_B", m))
            programs[problem.rank_of[stage - 1]].append(Action(stage - 1, "RECV_B", m))
    return programs
