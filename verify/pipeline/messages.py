"""Properties of the messages, where SEND and RECV are written out.

communication  every result that another rank needs is sent once, after it is computed, and
               received once, before it is used; nothing else is sent or received
message_order  between two ranks messages are received in the order in which they are sent:
               PyTorch's point-to-point messages carry no name, so others are taken for each other
reduce_grad    each stage runs REDUCE_GRAD once, after its last backward: PyTorch divides gradients
               by the number of microbatches there; without it they are silently too large

Source of what the runtime relies on and does not check: torch/distributed/pipelining/schedules.py
and stage.py of torch 2.13.
"""

from __future__ import annotations

from latecomer.verify.core.verdict import PROVED, Counterexample, Result, refuted
from latecomer.verify.pipeline.schedule import (
    COMPUTE,
    RECEIVES,
    SENDS,
    Action,
    PipelineSchedule,
    send_of,
)
from latecomer.verify.pipeline.verdict import missing, refuted_at


def communication(schedule: PipelineSchedule) -> Result:
    """Property 5; every compute action occurs once."""
    if not schedule.has_messages:
        if schedule.ranks > 1:
            return Result(PROVED.verdict, note="compute only: the runtime adds the messages")
        return PROVED
    needed: dict[Action, Action] = {}  # SEND or RECV -> the compute action on the same rank
    for _, _, action in schedule.located():
        receive = schedule.crossing(action)
        if receive is not None:
            needed[send_of(receive)] = action
            needed[receive] = schedule.consumer(receive)

    done: set[Action] = set()
    for located in schedule.located():
        action = located.action
        problem = None
        if action.kind in SENDS + RECEIVES:
            if action not in needed:
                expected = "messages that another rank waits for"
                problem = "no rank needs it"
            elif action in done:
                expected = "each message once"
                problem = "it is there a second time"
            elif action.kind in SENDS and needed[action] not in done:
                expected = f"{needed[action]} before it"
                problem = "it is not computed yet"
            elif action.kind in RECEIVES and needed[action] in done:
                expected = f"it before {needed[action]}"
                problem = "that has run already"
        if problem is not None:
            return refuted_at(located, "communication", expected, problem)
        done.add(action)

    for action, compute in needed.items():
        if action not in done:
            verb = "sent" if action.kind in SENDS else "received"
            expected = f"what {compute} computes or needs to be {verb}"
            return missing(schedule, action, "communication", expected, "it is not there")
    return PROVED


def pairs(schedule: PipelineSchedule) -> dict[tuple[int, int], tuple[list[Action], list[Action]]]:
    """(sender, receiver) -> its sends and its receives, each in the order of the programs."""
    sent: dict[tuple[int, int], list[Action]] = {}
    received: dict[tuple[int, int], list[Action]] = {}
    for rank, _, action in schedule.located():
        if action.kind in SENDS:
            target_stage = action.stage + (1 if action.kind == "SEND_F" else -1)
            pair = (rank, schedule.rank_of[target_stage])
            sent.setdefault(pair, []).append(action)
            received.setdefault(pair, [])
        elif action.kind in RECEIVES:
            pair = (schedule.rank_of[send_of(action).stage], rank)
            sent.setdefault(pair, [])
            received.setdefault(pair, []).append(action)
    return {pair: (sent[pair], received[pair]) for pair in sent}


def message_order(schedule: PipelineSchedule) -> Result:
    """Property 6; every message is sent and received once."""
    for (sender, receiver), (sent, received) in pairs(schedule).items():
        for number, (send, receive) in enumerate(zip(sent, received, strict=True)):
            if send_of(receive) != send:
                return refuted(
                    Counterexample(
                        property="message_order",
                        rank=receiver,
                        position=schedule.programs[receiver].index(receive),
                        action=str(receive),
                        expected=f"message {number} from rank {sender} to be received as it was "
                        f"sent, {send}",
                        found=f"{receive} takes the data of {send} for its own",
                        actions=(f"rank {sender}: {send}", f"rank {receiver}: {receive}"),
                    )
                )
    return PROVED


def reduce_grad(schedule: PipelineSchedule) -> Result:
    """Property 7; every compute action occurs once."""
    reduced: set[int] = set()
    for located in schedule.located():
        action = located.action
        problem = None
        if action.kind == "REDUCE_GRAD":
            if action.stage in reduced:
                expected = "REDUCE_GRAD of a stage once"
                problem = "it is there a second time, and divides the gradients again"
            reduced.add(action.stage)
        elif action.kind in COMPUTE and action.stage in reduced:
            expected = f"{action.stage}REDUCE_GRAD after the last backward of the stage"
            problem = f"{action} comes after it"
        if problem is not None:
            return refuted_at(located, "reduce_grad", expected, problem)

    if not reduced and not schedule.has_messages:
        return Result(PROVED.verdict, note="compute only: the runtime adds REDUCE_GRAD")
    for stage in range(schedule.stages):
        if stage not in reduced:
            expected = "REDUCE_GRAD of every stage, after its last backward"
            found = (
                "it is not there, so the gradients are not divided by the number of microbatches"
            )
            return missing(schedule, Action(stage, "REDUCE_GRAD"), "reduce_grad", expected, found)
    return PROVED
