"""OptiReduce on simulated hosts: what its plans are, and what must hold of their results.

A rank's engine records which datagrams of an operation did not arrive. From all ranks' records and
inputs it follows, by the definition and not by the engine's code, what each element of each result
is: where an owner has all contributions their sum, else an estimate from those that it has; and
where the owner's datagram is lost a rank's own contribution for all. So a datagram that is counted
twice, taken for another, or lost without being recorded shows as a wrong element.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from latecomer.runtime.optireduce.engine import OptiReduceEngine
from latecomer.runtime.optireduce.missing import Missing, missing
from latecomer.runtime.optireduce.options import Options
from latecomer.runtime.optireduce.udp.bucket import Bucket
from latecomer.runtime.optireduce.udp.protocol import UdpProtocol
from latecomer.runtime.simulation.meeting import Store
from latecomer.runtime.simulation.world import Dice
from latecomer.verify.errors import LossExceeded
from tests.simulation.plan import Cut, Plan, Stop

DATAGRAM_BYTES = (128, 512, 1472)
CLOSE = 1e-5  # of a value: sums are made in float32


@dataclass
class Lossy:
    """What an engine tells of its operations, by number from the first over UBT on."""

    records: dict[int, Missing] = field(default_factory=dict)
    results: dict[int, torch.Tensor] = field(default_factory=dict)
    reliable: int = 0  # operations before, over TCP
    lost: int = 0  # datagrams, as it counts them
    recorded: int = 0  # operations that the count has


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
        datagram_bytes=dice.one_of(DATAGRAM_BYTES),
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
    plan: Plan, lossies: dict[int, Lossy], inputs: dict[tuple[int, int], torch.Tensor]
) -> list[str]:
    """What does not hold of the results. ``inputs``: by rank and operation."""
    found = []
    for rank, lossy in lossies.items():
        counted = sum(record.lost for record in lossy.records.values())
        if counted != lossy.lost and len(lossy.records) == lossy.recorded:
            text = f"{lossy.lost} lost datagrams are counted, {counted} recorded"
            found.append(f"rank {rank}: {text}")
        for operation, result in lossy.results.items():
            wrong = _wrong(plan, lossies, inputs, rank, operation, result)
            if wrong:
                found.append(f"rank {rank}, operation {operation}: {wrong}")
        if is_undisturbed(plan) and lossy.lost:
            found.append(
                f"rank {rank} has lost {lossy.lost} datagrams on a network that loses none"
            )
    return found


def is_undisturbed(plan: Plan) -> bool:
    """Whether nothing happens for which a datagram may come too late, or never."""
    delays = plan.lost or plan.doubled or plan.delayed or plan.pause or plan.bent
    return not delays and not plan.faults and not any(plan.lateness_s) and plan.latency_s < 1e-3


def _wrong(
    plan: Plan,
    lossies: dict[int, Lossy],
    inputs: dict[tuple[int, int], torch.Tensor],
    rank: int,
    operation: int,
    result: torch.Tensor,
) -> str:
    """Empty if a result is what follows from what arrived; else where it is not."""
    elements = plan.sizes[operation]
    expected, is_known = _expected(plan, lossies, inputs, rank, operation)
    is_close = (result - expected).abs() <= CLOSE * expected.abs()
    is_wrong = is_known & ~is_close
    if not bool(is_wrong.any()):
        return ""
    place = int(is_wrong.nonzero()[0])
    count = int(is_wrong.sum())
    values = f"{result[place]} in place of {expected[place]}"
    return f"element {place} of {elements} is {values}, and {count} in all are wrong"


def _expected(
    plan: Plan,
    lossies: dict[int, Lossy],
    inputs: dict[tuple[int, int], torch.Tensor],
    rank: int,
    operation: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What each element has to be, and whether it is known: of owners that died it is not."""
    elements = plan.sizes[operation]
    all_inputs = [inputs[peer, operation] for peer in range(plan.ranks)]
    total = torch.stack(all_inputs).sum(dim=0)
    is_known = torch.ones(elements, dtype=torch.bool)
    if operation < lossies[rank].reliable:
        return total, is_known

    per_datagram = options_of(plan).payload_bytes // 4
    bounds = [elements * owner // plan.ranks for owner in range(plan.ranks + 1)]
    expected = total.clone()
    for owner in range(plan.ranks):
        shard = slice(bounds[owner], bounds[owner + 1])
        record = _record(lossies[owner], operation)
        if record is None:
            is_known[shard] = False
            continue
        present = torch.ones(plan.ranks, bounds[owner + 1] - bounds[owner])
        for sender, numbers in record.contributions.items():
            for number in numbers:
                present[sender, number * per_datagram : (number + 1) * per_datagram] = 0.0
        contributions = torch.stack([each[shard] for each in all_inputs]) * present
        expected[shard] = contributions.sum(dim=0) * plan.ranks / present.sum(dim=0)

    own = _record(lossies[rank], operation)
    if own is None:
        return expected, torch.zeros(elements, dtype=torch.bool)
    for owner, numbers in own.results.items():
        for number in numbers:
            first = bounds[owner] + number * per_datagram
            stop = min(bounds[owner + 1], first + per_datagram)
            expected[first:stop] = inputs[rank, operation][first:stop] * plan.ranks
            is_known[first:stop] = True
    return expected, is_known


def _record(lossy: Lossy, operation: int) -> Missing | None:
    """What an engine recorded of an operation over UBT; none of one that it never ended."""
    return lossy.records.get(operation - lossy.reliable)


def longest_s(plan: Plan) -> float:
    """What an operation may take: its bounds, those of what is before it, a sync point."""
    options = options_of(plan)
    pauses_s = sum(fault.for_s for fault in plan.faults if isinstance(fault, Stop | Cut))
    bounds_s = plan.window * (options.absence_s + 2 * options.bound_s + options.dead_s)
    return bounds_s + pauses_s + 2 * plan.timeout_s


def is_excused(plan: Plan, errors: dict[int, str]) -> bool:
    """Whether an engine has ended since too much is lost.

    It says so, or it has heard nothing at all of a peer that has finished and closed.
    """
    text = next(iter(errors.values()), "")
    is_closed = plan.lost > 0 and "closed while others wait" in text
    return is_closed or "datagrams of the last" in text
