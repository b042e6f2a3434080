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

from collections import defaultdict

from verify.pipeline.schedule import (
    COMPUTE,
    RECEIVES,
    SENDS,
    Action,
    PipelineSchedule,
    send_of,
)
from verify.pipeline.verdict import PROVED, Fault, Finding, refuted, refuted_at


def communication(schedule: PipelineSchedule) -> Finding:
    """Property 5; every compute action occurs once."""
    if not schedule.has_messages:
        if schedule.ranks > 1:
            return Finding(PROVED.verdict, note="compute only: the runtime adds the messages")
        return PROVED
    needed: dict[Action, Action] = {}  # SEND or RECV -> the compute action on the same rank
    for _, _, action in schedule.located():
        receive = schedule.crossing(action)
        if receive is not None:
            needed[send_of(receive)] = action
            needed[receive] = consumer(schedule, receive)
    seen: set[Action] = set()
    for rank, position, action in schedule.located():
        problem = None
        if action.kind in SENDS + RECEIVES:
            if action not in needed:
                expected, problem = "messages that another rank waits for", "nobody needs it"
            elif action in seen:
                expected, problem = "each message once", "it is there a second time"
            elif action.kind in SENDS and needed[action] not in seen:
                expected, problem = f"{needed[action]} before it", "it is not computed yet"
            elif action.kind in RECEIVES and needed[action] in seen:
                expected, problem = f"it before {needed[action]}", "that has run already"
        if problem is not None:
            return refuted_at("communication", rank, position, action, expected, problem)
        seen.add(action)
    for action, compute in needed.items():
        if action not in seen:
            verb = "sent" if action.kind in SENDS else "received"
            return refuted(
                Fault(
                    property="communication",
                    rank=schedule.rank_of[action.stage],
                    action=str(action),
                    expected=f"what {compute} computes or needs to be {verb}",
                    found="it is not there",
                )
            )
    return PROVED


def consumer(schedule: PipelineSchedule, receive: Action) -> Action:
    """The compute action that uses what ``receive`` brings."""
    if receive.kind == "RECV_F":
        return Action(receive.stage, "F", receive.microbatch)
    fused = Action(receive.stage, "B", receive.microbatch)
    return fused if fused in _fused(schedule) else fused._replace(kind="I")


def _fused(schedule: PipelineSchedule) -> set[Action]:
    cached: set[Action] | None = schedule.__dict__.get("_fused")
    if cached is None:
        cached = schedule.__dict__["_fused"] = {
            action for _, _, action in schedule.located() if action.kind == "B"
        }
    return cached


def pairs(schedule: PipelineSchedule) -> dict[tuple[int, int], tuple[list[Action], list[Action]]]:
    """(sender, receiver) -> its sends and its receives, each in the order of the programs."""
    found: dict[tuple[int, int], tuple[list[Action], list[Action]]] = defaultdict(lambda: ([], []))
    for rank, _, action in schedule.located():
        if action.kind in SENDS:
            other = action.stage + (1 if action.kind == "SEND_F" else -1)
            found[rank, schedule.rank_of[other]][0].append(action)
        elif action.kind in RECEIVES:
            found[schedule.rank_of[send_of(action).stage], rank][1].append(action)
    return dict(found)


def message_order(schedule: PipelineSchedule) -> Finding:
    """Property 6; every message is sent and received once."""
    for (sender, receiver), (sent, received) in pairs(schedule).items():
        for number, (send, receive) in enumerate(zip(sent, received, strict=True)):
            if send_of(receive) != send:
                return refuted(
                    Fault(
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


def reduce_grad(schedule: PipelineSchedule) -> Finding:
    """Property 7; every compute action occurs once."""
    reduced: set[int] = set()
    for rank, position, action in schedule.located():
        if action.kind == "REDUCE_GRAD":
            if action.stage in reduced:
                expected = "REDUCE_GRAD of a stage once"
                found = "it is there a second time, and divides the gradients again"
                return refuted_at("reduce_grad", rank, position, action, expected, found)
            reduced.add(action.stage)
        elif action.kind in COMPUTE and action.stage in reduced:
            expected = f"{action.stage}REDUCE_GRAD after the last backward of the stage"
            found = f"{action} comes after it"
            return refuted_at("reduce_grad", rank, position, action, expected, found)
    if not reduced and not schedule.has_messages:
        return Finding(PROVED.verdict, note="compute only: the runtime adds REDUCE_GRAD")
    for stage in range(schedule.stages):
        if stage not in reduced:
            return refuted(
                Fault(
                    property="reduce_grad",
                    rank=schedule.rank_of[stage],
                    action=str(Action(stage, "REDUCE_GRAD")),
                    expected="REDUCE_GRAD of every stage, after its last backward",
                    found="it is not there, so the gradients are not divided by the number of "
                    "microbatches",
                )
            )
    return PROVED
