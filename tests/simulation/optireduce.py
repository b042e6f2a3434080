"""OptiReduce on simulated hosts: what its plans are, and what must hold of their results.

A rank's engine records which datagrams of an operation did not arrive. From all ranks' records and
inputs it follows to the last bit, by the definition and not by the engine's code
(``selftest.audit.expected``), what each element of each result is. So a datagram that is counted
twice, taken for another, or lost without being recorded shows as a wrong element.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from latecomer.runtime.optireduce.engine import OptiReduceEngine
from latecomer.runtime.optireduce.missing import Missing, missing
from latecomer.runtime.optireduce.options import Options
from latecomer.runtime.optireduce.udp.bucket import Bucket, shard_bounds
from latecomer.runtime.optireduce.udp.protocol import UdpProtocol
from latecomer.runtime.selftest.audit import expected
from latecomer.runtime.simulation.meeting import Store
from latecomer.runtime.simulation.world import Dice
from latecomer.verify.errors import LossExceeded
from tests.simulation.plan import Cut, Plan, Stop

DATAGRAM_BYTES = (128, 512, 1472)
MOST_DATAGRAMS = 1000  # of all ranks in one operation: with large tensors they are large, too


@dataclass
class Lossy:
    """What an engine tells of its operations, by number from the first over UBT on."""

    records: dict[int, Missing] = field(default_factory=dict)
    results: dict[int, torch.Tensor] = field(default_factory=dict)
    reliable: int = 0  # operations before, over TCP
    lost: int = 0  # datagrams, as it counts them
    recorded: int = 0  # operations that the count has

    def record(self, operation: int) -> Missing | None:
        """What is recorded of an operation over UBT; none of one that never ended."""
        return self.records.get(operation - self.reliable)


def options_of(plan: Plan) -> Options:
    """The options of a plan's engines; bounds leave a transfer its time."""
    dice = Dice(plan.seed, "optireduce")
    warmup_steps = dice.one_of((0, 0, 2))
    moving_s = 8 * plan.ranks * 4 * max(plan.sizes) * plan.window / plan.rate
    bound_s = dice.one_of((0.05, 0.3, 2.0)) + moving_s + 20 * plan.latency_s
    absence_s = dice.one_of((0.5, 3.0)) + plan.window * max(plan.lateness_s) * len(plan.sizes)
    # Ranks may be as far apart as an operation may take, and at a sync point they wait.
    apart_s = plan.window * (absence_s + 2 * bound_s)
    can_meet = apart_s < plan.timeout_s / 3
    if not can_meet:
        warmup_steps = 0
    return Options(
        datagram_bytes=_datagram_bytes(plan, dice),
        authenticate=dice.happens(0.2),
        offload=dice.happens(0.7),
        compiled="off",
        warmup_steps=warmup_steps,
        reliable_steps=min(1, warmup_steps),
        bound_s=bound_s,
        absence_s=absence_s,
        dead_s=min(2.0, plan.timeout_s / 3),
        incast=dice.one_of((1, 2, 255)),
        grant_bytes=dice.one_of((128, 32 * 1024)),
        window_bytes=dice.one_of((4096, 256 * 1024)),
        hadamard="off",
        resync_steps=dice.one_of((0, 3, 50)) if can_meet else 0,
    )


def _datagram_bytes(plan: Plan, dice: Dice) -> int:
    moved = 2 * (plan.ranks - 1) * 4 * max(plan.sizes)
    few_enough = [nbytes for nbytes in DATAGRAM_BYTES if moved <= MOST_DATAGRAMS * nbytes]
    return dice.one_of(tuple(few_enough))


def engine(plan: Plan, rank: int, store: Store, lossy: Lossy) -> OptiReduceEngine:
    """A rank's engine; ``lossy`` gets what is missing of each operation when it ends."""
    options = options_of(plan)
    lossy.reliable = options.reliable_steps  # each operation is a step
    made = OptiReduceEngine(
        store,  # type: ignore[arg-type]
        rank,
        plan.ranks,
        options=options,
        timeout_s=plan.timeout_s,
    )
    ended = made.ledger.ended

    def recorded(bucket: Bucket, protocol: UdpProtocol, seconds: float) -> LossExceeded | None:
        lossy.records[bucket.number] = missing(bucket)
        return ended(bucket, protocol, seconds)

    made.ledger.ended = recorded  # type: ignore[method-assign]
    return made


def tell(made: OptiReduceEngine, lossy: Lossy) -> None:
    """Take down what a closed engine has recorded."""
    ledger = made.ledger
    steps = list(ledger.steps)
    lossy.lost = sum(sum(step.lost) for step in steps)
    lossy.recorded = sum(step.operations for step in steps)


def problems(
    plan: Plan, lossies: dict[int, Lossy], contribution: Callable[[int, int], torch.Tensor]
) -> list[str]:
    """What does not hold of the results.

    ``contribution`` gives what a rank submits, from the rank and the number of elements.
    """
    found = []
    for rank, lossy in lossies.items():
        counted = sum(record.lost for record in lossy.records.values())
        if counted != lossy.lost and len(lossy.records) == lossy.recorded:
            text = f"{lossy.lost} lost datagrams are counted, {counted} recorded"
            found.append(f"rank {rank}: {text}")
        for operation in lossy.results:
            elements = plan.sizes[operation]
            inputs = [contribution(peer, elements) for peer in range(plan.ranks)]
            wrong = _wrong(plan, lossies, inputs, rank, operation)
            if wrong:
                found.append(f"rank {rank}, operation {operation}: {wrong}")
        if is_undisturbed(plan) and lossy.lost:
            found.append(
                f"rank {rank} has lost {lossy.lost} datagrams on a network that loses none"
            )
    return found


def is_undisturbed(plan: Plan) -> bool:
    """Whether nothing happens for which a datagram may come too late, or never."""
    delays = plan.lost or plan.delayed or plan.pause or "datagrams that a socket holds" in plan.bent
    return not delays and not plan.faults and plan.latency_s < 1e-3


def _wrong(
    plan: Plan,
    lossies: dict[int, Lossy],
    inputs: list[torch.Tensor],
    rank: int,
    operation: int,
) -> str:
    """Empty if a rank's result is what follows from what arrived; else where it is not."""
    result = lossies[rank].results[operation]
    right = torch.stack(inputs).sum(dim=0)
    is_known = torch.ones(len(right), dtype=torch.bool)
    if operation >= lossies[rank].reliable:
        records = [lossies[peer].record(operation) for peer in range(plan.ranks)]
        given = [record or Missing() for record in records]
        payload_bytes = options_of(plan).payload_bytes
        right = expected(inputs, given, rank, average=False, payload=payload_bytes)
        per_datagram = payload_bytes // right.element_size()
        bounds = shard_bounds(len(right), plan.ranks)
        for owner, record in enumerate(records):
            if record is not None:
                continue  # else it died in the operation: what it has summed up is not known,
            of_owner = is_known[bounds[owner] : bounds[owner + 1]]
            of_owner[:] = False
            for number in given[rank].results.get(owner, []):  # where that came back
                of_owner[number * per_datagram : (number + 1) * per_datagram] = True

    is_wrong = is_known & (result != right)
    if not bool(is_wrong.any()):
        return ""
    element = int(is_wrong.nonzero()[0])
    count = int(is_wrong.sum())
    values = f"{result[element]} in place of {right[element]}"
    return f"element {element} of {len(right)} is {values}, and {count} in all are wrong"


def longest_s(plan: Plan) -> float:
    """What an operation may take: its bounds, those of what is before it, a sync point."""
    options = options_of(plan)
    pauses_s = sum(fault.for_s for fault in plan.faults if isinstance(fault, Stop | Cut))
    bounds_s = plan.window * (options.absence_s + 2 * options.bound_s + options.dead_s)
    return bounds_s + pauses_s + 2 * plan.timeout_s


def is_excused(plan: Plan, errors: dict[int, str]) -> bool:
    """Whether an engine has ended since too much is lost.

    It says so, or it has heard nothing at all of a peer that has finished and closed; nor of its
    goodbye, if it was cut off from it meanwhile.
    """
    text = next(iter(errors.values()), "")
    is_closed = plan.lost > 0 and "closed while others wait" in text
    is_unheard = bool(plan.cut_off) and "no sign of life" in text
    return is_closed or is_unheard or "datagrams of the last" in text
