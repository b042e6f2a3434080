"""What a pipeline schedule is: for every rank a program of actions, and the instance it is for.

Legend, used in all of ``latecomer.verify.pipeline`` and ``latecomer.synth.pipeline``:

    S  stages, 0 .. S-1 along the model; a rank holds one of them, or several (virtual stages)
    N  microbatches, 0 .. N-1
    R  ranks; ``programs[r]`` is what rank r does, in order
    F  forward of a microbatch through a stage
    I  its backward for the input (called B in the zero-bubble papers), W the one for the weights
    B  the whole backward at once: I and W fused

and, with the activation of F (``_F``) or the gradient of I or B (``_B``) as data:

    SEND_F, SEND_B   at the stage that computed it, to the next or the previous stage
    RECV_F, RECV_B   at the stage that needs it
    REDUCE_GRAD      after the last backward of a stage: gradients are scaled (and reduced)
    UNSHARD, RESHARD for sharded stages (FSDP): weights are gathered, freed
    WAIT_SEND_F, WAIT_SEND_B, WAIT_REDUCE_GRAD
                     the rank goes on when that SEND, or reduction, is over (PyTorch 2.15 and later)

Kinds and their notation (``3SEND_F1``: stage 3, microbatch 1) are those of
``torch.distributed.pipelining``. A program without SEND and RECV is *compute only*: how messages
travel is then given by :mod:`latecomer.verify.pipeline.lower`.

Durations and delays are in any one unit of time, memory is counted in activations of one stage and
microbatch: F takes 1, I and W each give 1/2 back, B gives 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from typing import Literal, NamedTuple

import msgspec

from latecomer.verify.core.schedule import Scalar

Kind = Literal[
    "F", "I", "W", "B",
    "SEND_F", "RECV_F", "SEND_B", "RECV_B",
    "UNSHARD", "RESHARD", "REDUCE_GRAD",
    "WAIT_SEND_F", "WAIT_SEND_B", "WAIT_REDUCE_GRAD",
]  # fmt: skip
COMPUTE = ("F", "I", "W", "B")
TOWARDS = {"F": 1, "I": -1, "B": -1}
"""How far from its own stage the result of a compute action is needed; that of W stays."""
SENDS = ("SEND_F", "SEND_B")
RECEIVES = ("RECV_F", "RECV_B")
PER_STAGE = ("UNSHARD", "RESHARD", "REDUCE_GRAD", "WAIT_REDUCE_GRAD")
"""Actions of a whole stage: they name no microbatch."""
WAIT_OF: dict[Kind, Kind] = {
    "SEND_F": "WAIT_SEND_F",
    "SEND_B": "WAIT_SEND_B",
    "REDUCE_GRAD": "WAIT_REDUCE_GRAD",
}
"""The kinds that can be waited for, and how their waits are called."""
AWAITED_BY: dict[Kind, Kind] = {wait: kind for kind, wait in WAIT_OF.items()}

Duplex = Literal["full", "half"]
Sends = Literal["rendezvous", "buffered"]
Number = int | float

_ACTION = re.compile(
    r"(\d{1,9})(?:(F|I|W|B|(?:WAIT_)?SEND_[FB]|RECV_[FB])(\d{1,9})"
    r"|(UNSHARD|RESHARD|(?:WAIT_)?REDUCE_GRAD))",
    re.ASCII,
)


class Action(NamedTuple):
    """One step of a rank; ``microbatch`` is None exactly for the kinds of ``PER_STAGE``."""

    stage: int
    kind: Kind
    microbatch: int | None = None

    def __str__(self) -> str:
        return f"{self.stage}{self.kind}{'' if self.microbatch is None else self.microbatch}"


def parse_action(text: str) -> Action:
    """The action that ``text`` denotes, as ``0F3`` or ``2REDUCE_GRAD``.

    Raises:
        ValueError: it denotes none.

    Examples:
        >>> from latecomer.verify.pipeline import parse_action
        >>> parse_action("2SEND_B1")
        Action(stage=2, kind='SEND_B', microbatch=1)
    """
    match = _ACTION.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no action, as for example 0F3 or 2SEND_B1")
    stage, kind, microbatch, kind_of_stage = match.groups()
    if kind_of_stage is not None:
        return Action(int(stage), kind_of_stage)  # type: ignore[arg-type]
    return Action(int(stage), kind, int(microbatch))  # type: ignore[arg-type]


# Both latency and occupancy: links that were slowed down in real runs behaved as if messages held
# them one after another, and latency alone explained half of what these runs took.
class Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is between two ranks, the same in both directions.

    Attributes:
        between: the two ranks.
        latency: time from the last byte sent to the last byte there; any number may be under way.
        occupancy: time a message holds the link (its size over the bandwidth); others wait.
        duplex: ``full``, each direction for itself, or ``half``, one message at a time in all.
    """

    between: tuple[int, int]
    latency: Number = 0
    occupancy: Number = 0
    duplex: Duplex = "full"


class Instance(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a schedule is made for.

    Attributes:
        forward, backward, weight: durations of F, I and W, one per stage.
        fused: durations of B, one per stage; None where it takes as long as I and W.
        links: those that take time; any other link takes none.
        memory: activations that each rank can hold, one limit per rank; None without limit.
        sends: ``rendezvous``, a send ends when it is received, or ``buffered``, at once.
    """

    forward: tuple[Number, ...]
    backward: tuple[Number, ...]
    weight: tuple[Number, ...]
    fused: tuple[Number, ...] | None = None
    links: tuple[Link, ...] = ()
    memory: tuple[Number, ...] | None = None
    sends: Sends = "rendezvous"


def uniform(stages: int, forward: Number = 1, backward: Number = 1, weight: Number = 1) -> Instance:
    """Stages that all take the same time, over links that take none.

    Examples:
        >>> from latecomer.verify.pipeline import uniform
        >>> uniform(3, forward=8, backward=10, weight=5).backward
        (10, 10, 10)
    """
    return Instance(
        forward=(forward,) * stages, backward=(backward,) * stages, weight=(weight,) * stages
    )


Program = tuple[Action, ...]


class LocatedAction(NamedTuple):
    """An action and where it stands: the position in the program of its rank, from 0."""

    rank: int
    position: int
    action: Action


class PipelineSchedule(msgspec.Struct, frozen=True, dict=True, kw_only=True):
    """A pipeline schedule; ``meta`` is information only and never believed."""

    stages: int
    microbatches: int
    instance: Instance = msgspec.field(name="situation")
    programs: tuple[Program, ...]
    meta: dict[str, Scalar] = {}

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return len(self.programs)

    @cached_property
    def has_messages(self) -> bool:
        """Whether any SEND or RECV is written out."""
        return any(action.kind in SENDS + RECEIVES for _, _, action in self.located())

    @cached_property
    def has_waits(self) -> bool:
        """Whether any wait is written out."""
        return any(action.kind in AWAITED_BY for _, _, action in self.located())

    @cached_property
    def rank_of(self) -> dict[int, int]:
        """The rank of each stage: the first whose program names it."""
        rank_of: dict[int, int] = {}
        for rank, _, action in self.located():
            rank_of.setdefault(action.stage, rank)
        return rank_of

    @cached_property
    def _fused(self) -> set[Action]:
        return {action for _, _, action in self.located() if action.kind == "B"}

    def located(self) -> Iterator[LocatedAction]:
        """All actions with where they stand, rank by rank."""
        for rank, program in enumerate(self.programs):
            for position, action in enumerate(program):
                yield LocatedAction(rank, position, action)

    def crossing(self, action: Action) -> Action | None:
        """The receive in which the result of an action ends; None if no other rank needs it."""
        step = TOWARDS.get(action.kind)
        return self._receive(action, action.stage, action.stage + step) if step else None

    def awaited(self, action: Action) -> Action | None:
        """The receive that brings what an action needs; None if it needs none."""
        step = TOWARDS.get(action.kind)
        return self._receive(action, action.stage - step, action.stage) if step else None

    def _receive(self, action: Action, source: int, target: int) -> Action | None:
        sender = self.rank_of.get(source)
        receiver = self.rank_of.get(target)
        if sender is None or receiver is None or sender == receiver:
            return None
        kind: Kind = "RECV_F" if action.kind == "F" else "RECV_B"
        return Action(target, kind, action.microbatch)

    def consumer(self, receive: Action) -> Action:
        """The compute action that uses what ``receive`` brings."""
        if receive.kind == "RECV_F":
            return receive._replace(kind="F")
        fused = receive._replace(kind="B")
        return fused if fused in self._fused else receive._replace(kind="I")


def send_of(receive: Action) -> Action:
    """The send that a receive belongs to."""
    if receive.kind == "RECV_F":
        return Action(receive.stage - 1, "SEND_F", receive.microbatch)
    return Action(receive.stage + 1, "SEND_B", receive.microbatch)
