"""Property 8: lower bounds and optimality, recomputed; claims in ``meta`` are only compared.

For ports that let a rank send and receive at most I transfers in a round (duplex, matching: I = 1):

    dissemination   A rank r must send each of its k chunks at least once, I per round, so some
                    chunk first leaves r in the ceil(k / I)-th round after r arrives, or later; who
                    knows of that chunk can grow (I + 1)-fold per round, with or without r. Rounds
                    from the arrival of r to the end >= ceil(k / I) + ceil(log_{I+1} n) - 1.
    spread          After r arrives, r must receive something of every chunk, I transfers per round
                    at most; and every other rank must receive, for each of r's chunks, something
                    that knows of r's part. In the t-th round after the arrival (t = 0, 1, ...) at
                    most (I + 1)^t ranks know anything of r's and can send it. So of the n k
                    receives at most min(C, I (I + 1)^t + I) fit into it, with C the most that the
                    ports allow: n I, or n - 1 for an odd number of ranks in disjoint pairs.
    bandwidth       A chunk moves at least 2(n - 1) times: n - 1 transfers before some rank knows
                    all contributions, one more for each other rank. At most n * I transfers fit
                    into a round. Rounds in all >= ceil(2 k (n - 1) / (n I)).

The bound that is reported is for the completion: the rounds in which no rank is absent. It holds
for every right schedule with the same other phases in the same order. A rank that arrives with the
completion, and after which no rank is absent again, gets the whole of the first two bounds there
(StragglAR's k + ceil(log2 n) - 1; with disjoint pairs and an odd number of ranks the second can be
higher); p other rounds after its arrival make it less by p.

"Optimal" says more: that no right schedule has fewer rounds in which every rank takes no part
before it arrives, however its rounds are cut into phases. A rank arrives with the first phase that
it is not absent from. If nobody is absent again after its arrival, then the completion is all
rounds after the last arrival, and who meets the bound is optimal. If somebody is, then rounds after
the last arrival do not count as completion; whoever marked bystanders as absent from them would
meet any bound.
"""

from __future__ import annotations

from itertools import count, dropwhile, pairwise
from typing import Literal

from latecomer.verify.core.schedule import Incast, Ports, Scalar, Schedule
from latecomer.verify.core.verdict import PROVED, Counterexample, Result, refuted, unknown

Optimality = bool | Literal["unknown"]


def dissemination_bound(ranks: int, chunks: int, ports: int = 1) -> int:
    """Rounds that a rank's own data needs to reach everybody, counted from its arrival."""
    return -(-chunks // ports) + _log_ceil(ranks, ports + 1) - 1


def spread_bound(ranks: int, chunks: int, ports: Ports = "duplex") -> int:
    """Rounds that the receives after a rank's arrival need, counted from its arrival."""
    per_rank = _transfers_per_rank(ports)

    # In disjoint pairs one of an odd number of ranks has no partner.
    capacity = ranks // 2 * 2 if ports == "matching" else ranks * per_rank

    # Rounds in which those who know anything of the rank's are too few to use the capacity ...
    missing_receives = ranks * chunks
    rounds = 0
    knowers = 1
    while missing_receives > 0 and per_rank * (knowers + 1) < capacity:
        missing_receives -= per_rank * (knowers + 1)
        rounds = rounds + 1
        knowers = knowers * (per_rank + 1)

    # ... and full ones for the receives that are still missing, if any, rounded up.
    return rounds - -missing_receives // capacity


def bandwidth_bound(ranks: int, chunks: int, ports: int = 1) -> int:
    """Rounds that all transfers together need, whoever is present."""
    return -(-2 * chunks * (ranks - 1) // (ranks * ports))


def lower_bound(schedule: Schedule) -> int:
    """A lower bound on the completion rounds of any schedule for this instance."""
    n = schedule.ranks
    k = schedule.chunks
    per_rank = _transfers_per_rank(schedule.ports)

    # Of a rank that arrives: the bound counts from its arrival, and rounds outside the completion
    # may lie after that. All ranks that are on time have the same such rounds, so one will do.
    on_time = next((rank for rank in range(n) if rank not in schedule.late), 0)
    candidates = {*schedule.late, on_time}
    after_arrival = min(_elsewhere_after_arrival(schedule, rank) for rank in candidates)
    from_arrival = max(dissemination_bound(n, k, per_rank), spread_bound(n, k, schedule.ports))

    elsewhere = schedule.rounds - schedule.completion_rounds
    in_all = bandwidth_bound(n, k, per_rank)
    return max(0, from_arrival - after_arrival, in_all - elsewhere)


def somebody_leaves(schedule: Schedule) -> bool:
    """Whether a rank is absent from a phase after its arrival.

    Phases without rounds count: they, too, say who has arrived.
    """
    successive = pairwise(schedule.phases)
    return any(set(later.absent) - set(earlier.absent) for earlier, later in successive)


def optimality(schedule: Schedule) -> Optimality:
    """Whether a *right* schedule has the fewest rounds after the last arrival.

    ``True`` at the lower bound, if nobody is absent again after its arrival; ``False`` where a
    completion round moves nothing (leaving it out gives a shorter right schedule); otherwise
    unknown: the bound may not be attainable.
    """
    if schedule.completion_rounds == lower_bound(schedule) and not somebody_leaves(schedule):
        return True
    if any(not phase.absent and not moves for phase, _, moves in schedule.located_rounds()):
        return False
    return "unknown"


def claims(schedule: Schedule, optimal: Optimality) -> Result:
    """Property 8: what ``meta`` claims must agree with what was recomputed.

    Checked keys: ``rounds``, ``completion_rounds``, ``lower_bound``, ``gap`` (completion rounds
    above the bound) and ``optimal``; other keys claim nothing.
    """
    bound = lower_bound(schedule)
    recomputed: dict[str, Scalar] = {
        "rounds": schedule.rounds,
        "completion_rounds": schedule.completion_rounds,
        "lower_bound": bound,
        "gap": schedule.completion_rounds - bound,
    }
    if optimal != "unknown":
        recomputed["optimal"] = optimal
    for name, value in recomputed.items():
        claimed = schedule.meta.get(name, value)
        if claimed != value or type(claimed) is not type(value):
            return refuted(
                Counterexample(
                    property="claims",
                    expected=f"{name} = {value!r} (recomputed)",
                    found=f"meta claims {name} = {claimed!r}",
                )
            )
    if "optimal" in schedule.meta and optimal == "unknown":
        return unknown(
            f"meta claims optimal = {schedule.meta['optimal']!r}; "
            f"{schedule.completion_rounds} rounds against the bound {bound} decide nothing"
        )
    return PROVED


def _elsewhere_after_arrival(schedule: Schedule, rank: int) -> int:
    """Rounds outside the completion, from the first phase that ``rank`` takes part in."""
    phases = dropwhile(lambda phase: rank in phase.absent, schedule.phases)
    return sum(len(phase.rounds) for phase in phases if phase.absent)


def _transfers_per_rank(ports: Ports) -> int:
    """How many transfers a rank may send, and receive, in one round."""
    return ports.incast if isinstance(ports, Incast) else 1


def _log_ceil(value: int, base: int) -> int:
    """The least e with base**e >= value."""
    return next(exponent for exponent in count() if base**exponent >= value)
