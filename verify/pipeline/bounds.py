"""A lower bound on the makespan of any schedule for an instance, in closed form.

Legend, per stage s: F, I, W its durations (a fused B that is faster than I and W counts as that
much less W), c_s the latency plus occupancy between s and s + 1.

    head_s  earliest start of anything at s: sum over j < s of F_j + c_j
    rt_s    from the start of F to the start of I of a microbatch: F_s at the last stage, else
            F_s + 2 c_s + rt_(s+1) + I_(s+1)
    tail_s  what follows the last I at s: max over j <= s of W_j + sum over j <= k < s of c_k + I_k

A rank with stages lo..hi, w = N times the sum over its stages:

    load    head_lo + wF + wI + max(wW, tail_lo)                  all its work, then the tail
    turn    head_hi + rt_hi + wI + max(wW, tail_lo)               nothing but F before the first I

A rank with one stage and a limit of K activations (rounded up): the F number q K (from 0) waits
until more than those q K microbatches' own backwards have freed memory, that is at least until
two backward actions of later ones are done. So q K forwards cost q rounds of
P = rt + I + min(I, W), and n = N - q K >= 1 microbatches are left:

    memory  head + q P + max(n F, rt) + n I + max(n W, tail)

A link with occupancy o, from the last of its messages on (the first of N or 2 N, if half duplex):

    link    head_s + F_s + N o + latency + rt_(s+1) + I_(s+1) + c_s + I_s + tail_s     forwards
            head_(s+1) + rt_(s+1) + I_(s+1) + N o + latency + I_s + tail_s             gradients
            head_s + F_s + 2 N o + latency + I_s + tail_s                              half duplex

On a link between ranks with several stages only the messages of one pair of stages are counted.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from latecomer.verify.pipeline.costs import Costs
from latecomer.verify.pipeline.schedule import PipelineSchedule


@dataclass(frozen=True)
class Chain:
    """Durations and the head, round trip and tail of every stage, in ticks."""

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    weight: tuple[int, ...]
    head: tuple[int, ...]
    turn: tuple[int, ...]
    tail: tuple[int, ...]

    @classmethod
    def of(cls, schedule: PipelineSchedule, costs: Costs) -> Chain:
        """Those of the stages of ``schedule``, on its ranks."""
        stages = range(schedule.stages)
        forward = costs.forward
        backward = tuple(map(min, costs.backward, costs.fused))
        weight = tuple(
            max(0, min(w, b - i))
            for w, b, i in zip(costs.weight, costs.fused, backward, strict=True)
        )
        between = [
            sum(costs.link(schedule.rank_of[s], schedule.rank_of[s + 1])[:2]) for s in stages[:-1]
        ]
        head = [0]
        tail = [weight[0]]
        turn = [forward[-1]]
        for s in stages[:-1]:
            head.append(head[s] + forward[s] + between[s])
            tail.append(max(weight[s + 1], tail[s] + between[s] + backward[s]))
        for s in reversed(stages[:-1]):
            turn.append(forward[s] + 2 * between[s] + turn[-1] + backward[s + 1])
        return cls(forward, backward, weight, tuple(head), tuple(turn[::-1]), tuple(tail))


def lower_bound(schedule: PipelineSchedule, costs: Costs) -> int:
    """The bound in ticks; only sizes, placement and instance of ``schedule`` are looked at."""
    chain = Chain.of(schedule, costs)
    bounds = [_links(schedule, costs, chain)]
    stages_of: dict[int, list[int]] = defaultdict(list)
    for stage, rank in schedule.rank_of.items():
        stages_of[rank].append(stage)

    n = schedule.microbatches
    for rank, stages in stages_of.items():
        low = min(stages)
        high = max(stages)
        all_f = n * sum(chain.forward[s] for s in stages)
        all_i = n * sum(chain.backward[s] for s in stages)
        all_w = n * sum(chain.weight[s] for s in stages)
        first_i = max(chain.head[low] + all_f, chain.head[high] + chain.turn[high])
        bounds.append(first_i + all_i + max(all_w, chain.tail[low]))

        if costs.memory is not None and low == high:
            limit = max(1, -(-costs.memory[rank] // 2))
            bounds.append(_capped(chain, low, n, limit))
    return max(bounds)


def _capped(chain: Chain, s: int, microbatches: int, limit: int) -> int:
    """The bound ``memory`` for stage ``s``, at its best q."""
    f = chain.forward[s]
    i = chain.backward[s]
    w = chain.weight[s]
    period = chain.turn[s] + i + min(i, w)
    best = 0
    for q in range((microbatches - 1) // limit + 1):
        n = microbatches - q * limit
        total = q * period + max(n * f, chain.turn[s]) + n * i + max(n * w, chain.tail[s])
        best = max(best, chain.head[s] + total)
    return best


def _links(schedule: PipelineSchedule, costs: Costs, chain: Chain) -> int:
    """The bounds ``link``."""
    n = schedule.microbatches
    best = 0
    for s in range(schedule.stages - 1):
        latency, occupancy, half = costs.link(schedule.rank_of[s], schedule.rank_of[s + 1])
        first_send = chain.head[s] + chain.forward[s]
        turn = chain.turn[s + 1] + chain.backward[s + 1]
        end = latency + chain.backward[s] + chain.tail[s]
        by_forwards = first_send + n * occupancy + latency + turn + occupancy + end
        by_gradients = chain.head[s + 1] + turn + n * occupancy + end
        best = max(best, by_forwards, by_gradients)
        if half:
            best = max(best, first_send + 2 * n * occupancy + end)
    return best
