"""Constants of the shipped code, and choices of it and of the network, that executions may bend.

What is rare with the values that ship is common with these: a turn of one read, frames of a few
bytes, memories that forget at once, heads in a job of four ranks. Each keeps the code right by its
own rules, so all that must hold holds with it.

Source: the randomized knobs of FoundationDB's simulation (Zhou et al., SIGMOD 2021, section 4.4),
where a quarter of the places is active in an execution, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from unittest import mock

import msgspec

from latecomer.runtime.executor import executor
from latecomer.runtime.executor.tcp import connection, flow_control, frames, priority, transfer
from latecomer.runtime.executor.tcp.frames import Sizes
from latecomer.runtime.health import watchdog
from latecomer.runtime.network import clock
from latecomer.runtime.pipeline import agent as pipeline_agent
from latecomer.runtime.pipeline.agent import Adaptation
from latecomer.runtime.pipeline.load import VerifiedPipeline
from latecomer.runtime.policy import (
    agent,
    coordinator,
    dispatcher,
    epochs,
    head,
    on_time,
    options,
    rules,
)
from latecomer.runtime.policy.messages import Epoch
from latecomer.runtime.policy.options import PolicyInputs
from latecomer.runtime.simulation import meeting, network
from latecomer.runtime.simulation.world import Dice
from latecomer.verify.pipeline import Instance, PipelineSchedule

ACTIVE = 0.25  # the share of the places that an execution bends

TINY = Sizes(frame=64, wake=16, due=128, nearly=64, ahead=32, held=256, whole=False)
SMALL = Sizes(frame=512, wake=256, due=2048, nearly=1024, ahead=512, held=4096, whole=False)
WHOLE = Sizes(frame=1024, wake=512, due=1024, nearly=1024, ahead=512, held=2**62, whole=True)


WINDOWS = 20  # that a tensor may be large
ELEMENT = 4  # bytes
LARGEST = 10**9  # elements, where nothing is bent


@dataclass(frozen=True)
class Place:
    """A constant of a module, and the values that it may get."""

    module: ModuleType
    name: str
    values: tuple[Any, ...]


def handed_on(current: Epoch, nbytes: int, inputs: PolicyInputs) -> Epoch:
    """An epoch with the next rank as coordinator, whatever the history says."""
    coordinator = (current.coordinator + 1) % inputs.world_size
    return msgspec.structs.replace(current, coordinator=coordinator)


def planned_anew(
    how: Adaptation, running: VerifiedPipeline, measured: Instance
) -> tuple[PipelineSchedule, str]:
    """What the planner makes, whether it pays or not."""
    return how.planner(measured, running.schedule), "bent"


PLACES: Mapping[str, Place] = {
    "reads in a turn": Place(connection, "READS", (1, 2)),
    "sizes on a network": Place(frames, "NETWORK", (TINY, SMALL, WHOLE)),
    "sizes on one host": Place(frames, "ONE_HOST", (TINY, SMALL, WHOLE)),
    "transfers ahead": Place(flow_control, "AHEAD_TRANSFERS", (0, 1, 100)),
    "share ahead": Place(flow_control, "AHEAD_SHARE", (1, 1000)),
    "backlog held": Place(flow_control, "MOST_HELD", (1, 1000)),
    "backlog measured": Place(flow_control, "MEASURE_S", (1e-5, 10.0)),
    "bytes that wait together": Place(transfer, "PIECE", (256, 4096)),
    "programs kept": Place(executor, "KEPT", (0, 1)),
    "sizes prepared": Place(dispatcher, "KEPT_SIZES", (0, 1)),
    "sizes decided": Place(agent, "KEPT_SIZES", (0, 1)),
    "operations between forecasts": Place(agent, "ASKING", (1, 50)),
    "ranks without heads": Place(options, "MOST_ALONE", (0, 1)),
    "ranks with a head": Place(options, "FAN_IN", (2, 3)),
    "arrivals told together": Place(head, "TOGETHER_S", (0.0, 0.05)),
    "reports together": Place(head, "MOST_REPORTED", (1, 2)),
    "reports in time": Place(head, "REPORT_S", (0.0, 5.0)),
    "arrivals in a message": Place(head, "MOST_TOLD", (1, 2)),
    "ends that are told": Place(head, "MOST_DONE", (1,)),
    "pause before asking a head": Place(head, "RETRY_S", (0.005, 1.0)),
    "questions past a head": Place(head, "PAST_HEAD", (1, 2)),
    "margin of an epoch": Place(epochs, "LEAST_MARGIN", (0, 0, 1, 20)),
    "most margin of an epoch": Place(epochs, "MOST_MARGIN", (1, 2)),
    "next epoch": Place(agent, "next_epoch", (handed_on,)),
    "patience with an epoch": Place(epochs, "PATIENCE_S", (0.06, 10.0)),
    "operations remembered": Place(coordinator, "REMEMBERED", (64,)),
    "operations compared": Place(on_time, "COMPARED", (1, 2, 3)),
    "delays learned from": Place(rules, "ENOUGH", (1,)),
    "operations for a forecast": Place(rules, "LEAST", (1,)),
    "share that makes a straggler": Place(rules, "MOSTLY", (0.1, 1.0)),
    "share that hands over": Place(rules, "OFTEN", (0.05,)),
    "a plan that pays": Place(pipeline_agent, "replan", (planned_anew,)),
    "steps ahead": Place(pipeline_agent, "AHEAD", (1, 3)),
    "steps of which reports are kept": Place(pipeline_agent, "KEPT", (1,)),
    "pings at first": Place(clock, "BURST", (1, 2)),
    "pause between pings": Place(clock, "PERIOD_S", (0.05, 20.0)),
    "pings kept": Place(clock, "KEPT", (1,)),
    "pings outstanding": Place(clock, "OUTSTANDING", (1,)),
    "ticks of a watchdog": Place(watchdog, "TICK_S", (0.02,)),
    "an answer of the store": Place(meeting, "ANSWER_S", (0.0, 0.005)),
    "datagrams that a socket holds": Place(network, "MOST_QUEUED", (4, 16)),
    "operations that settle a way": Place(on_time, "ENOUGH", (1, 2)),
    "operations in which ways are tried": Place(on_time, "TRIED_FOR", (0, 5)),
    "bytes that go first": Place(priority, "SMALL_BYTES", (0, 64, 1024)),
}


def most_elements(chosen: Mapping[str, int]) -> int:
    """How large tensors may be: large ones last for ever where a few bytes take a round trip."""
    most = LARGEST
    for name, number in chosen.items():
        value = PLACES[name].values[number]
        if isinstance(value, Sizes):
            most = min(most, WINDOWS * value.due // ELEMENT)
    return most


def bent(seed: int) -> dict[str, int]:
    """The places that an execution bends, each with the number of its value."""
    dice = Dice(seed, "places")
    chosen = {}
    for name, place in PLACES.items():
        is_active = dice.happens(ACTIVE)
        number = dice.below(len(place.values))
        if is_active:
            chosen[name] = number
    return chosen


@contextlib.contextmanager
def bending(chosen: Mapping[str, int]) -> Iterator[None]:
    """Bend these places; after the block they are as they were."""
    with contextlib.ExitStack() as stack:
        for name, number in chosen.items():
            place = PLACES[name]
            value = place.values[number]
            stack.enter_context(mock.patch.object(place.module, place.name, value))
        yield
