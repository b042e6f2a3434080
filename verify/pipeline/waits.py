"""Waits for sends and for reductions: what is asked of them, and how they are added and left out.

PyTorch's runtime, from 2.15 on, takes only schedules in which every SEND and every REDUCE_GRAD has
a wait of its own (``_validate_send_waits`` and ``_prepare_schedule_with_comms`` in
``torch/distributed/pipelining/schedules.py``); before, it knows no such action and takes the ``W``
of ``0WAIT_SEND_F0`` for a backward. So a schedule is written with all of them, or with none.
"""

from __future__ import annotations

from itertools import chain

import msgspec

from latecomer.verify.core.verdict import PROVED, Result
from latecomer.verify.pipeline.schedule import (
    AWAITED_BY,
    SENDS,
    WAIT_OF,
    Action,
    PipelineSchedule,
    Program,
)
from latecomer.verify.pipeline.verdict import missing, refuted_at


def waits(schedule: PipelineSchedule) -> Result:
    """Property 8: all waits or none, each once, after what it waits for; one reduction at a time.

    Every action that can be waited for occurs once at the most.
    """
    if not schedule.has_waits:
        if schedule.has_messages:
            return Result(PROVED.verdict, note="there are none; PyTorch takes that up to 2.14")
        return PROVED
    begun: list[dict[Action, None]] = [{} for _ in schedule.programs]  # per rank, not waited for
    reducing: dict[int, Action] = {}  # per rank
    for located in schedule.located():
        rank, _, action = located
        problem = None
        if action.kind in AWAITED_BY:
            awaited = action._replace(kind=AWAITED_BY[action.kind])
            if awaited not in begun[rank]:
                expected = f"{awaited} before it, and no other wait for that"
                problem = "there is nothing to wait for"
            begun[rank].pop(awaited, None)
        elif action.kind in WAIT_OF:
            before = reducing.get(rank)
            if action.kind == "REDUCE_GRAD" and before in begun[rank]:
                expected = f"a wait for {before} before it: a rank reduces one stage at a time"
                problem = f"{before} may not be over"
            if action.kind == "REDUCE_GRAD":
                reducing[rank] = action
            begun[rank][action] = None
        if problem is not None:
            return refuted_at(located, "waits", expected, problem)

    for action in chain.from_iterable(begun):
        expected = f"a wait for {action}, as others have one"
        return missing(schedule, wait_of(action), "waits", expected, "it is not there")
    return PROVED


def wait_of(action: Action) -> Action:
    """The wait for a SEND or a REDUCE_GRAD."""
    return action._replace(kind=WAIT_OF[action.kind])


def with_waits(schedule: PipelineSchedule) -> PipelineSchedule:
    r"""The schedule as PyTorch 2.15 and later take it; itself if it has waits already.

    A wait for a REDUCE_GRAD follows it. That for an activation follows the backward of the same
    stage and microbatch, before which the activation was used; those for gradients stand at the
    end. This is how PyTorch places its own (``_add_wait_send``).

    Examples:
        >>> from latecomer.verify.pipeline import decode_csv, with_waits
        >>> text = (b"0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD\n"
        ...         b"1RECV_F0,1F0,1B0,1SEND_B0,1REDUCE_GRAD\n")
        >>> for program in with_waits(decode_csv(text)).programs:
        ...     print(*program)
        0F0 0SEND_F0 0RECV_B0 0B0 0WAIT_SEND_F0 0REDUCE_GRAD 0WAIT_REDUCE_GRAD
        1RECV_F0 1F0 1B0 1SEND_B0 1REDUCE_GRAD 1WAIT_REDUCE_GRAD 1WAIT_SEND_B0
    """
    if schedule.has_waits:
        return schedule
    return msgspec.structs.replace(schedule, programs=tuple(map(_with_waits, schedule.programs)))


def _with_waits(program: Program) -> Program:
    result: list[Action] = []
    sent: dict[Action, None] = {}  # sends without a wait so far, in their order
    for action in program:
        result.append(action)
        if action.kind == "REDUCE_GRAD":
            result.append(wait_of(action))
        elif action.kind in SENDS:
            sent[action] = None
        elif action.kind in {"I", "B"}:
            activation = action._replace(kind="SEND_F")
            if activation in sent:
                del sent[activation]
                result.append(wait_of(activation))
    result += map(wait_of, sent)
    return tuple(result)


def without_waits(schedule: PipelineSchedule) -> PipelineSchedule:
    r"""The schedule as PyTorch up to 2.14 takes it; itself if it has no waits.

    Examples:
        >>> from latecomer.verify.pipeline import decode_csv, without_waits
        >>> schedule = decode_csv(b"0F0,0B0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD\n")
        >>> print(*without_waits(schedule).programs[0])
        0F0 0B0 0REDUCE_GRAD
    """
    if not schedule.has_waits:
        return schedule
    programs = [
        tuple(action for action in program if action.kind not in AWAITED_BY)
        for program in schedule.programs
    ]
    return msgspec.structs.replace(schedule, programs=tuple(programs))
