"""Transpose AllReduce (TAR): one owner per chunk, and no contribution takes a detour.

    reduce_scatter   every rank sends each chunk straight to its owner, which adds it
    all_gather       every owner sends the sum straight to everybody

Source: OptiReduce (arXiv 2310.06993), section 3.1. In round t each rank sends to the rank t places
further on, so everybody sends and receives one message per round; with incast I, I places per
round: 2 ceil((n - 1) / I) rounds. No schedule without detours has fewer: an owner needs
ceil((n - 1) / I) rounds to receive the others' contributions and as many to send the sum.

Deviation: the source pairs ranks in a round-robin tournament. The rotation takes n - 1 rounds for
odd n too, where a tournament takes n, and every rank has work in each of them.

With groups (the source's 2-D form) the same is done inside each of G groups of n / G ranks; between
the two stages ranks of the same place in their groups exchange the groups' sums:

    doubling    by recursive doubling, whole shards: ceil(log2 G) rounds, two more (and the floor of
                log2) if G is no power of two; the fewest rounds
    transpose   by a TAR of their own, in which a group owns 1/G of each shard: 2 ceil((G - 1) / I)
                rounds; the fewest bytes

Deviation: in the source every rank sends its group's sum to each of its G - 1 counterparts, and all
add what they get, in G - 1 rounds. From three groups on each then adds in an order of its own, and
replicas drift apart by rounding (``verify`` refutes ``same_bits``); besides, a rank that sends on
what it had at first needs a second buffer. Doubling takes no more rounds, but for three groups: 3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Literal, get_args

from synth.standard import require_ranks
from verify.core.schedule import Incast, Op, Phase, Round, Scalar, Schedule, Transfer
from verify.errors import ArgumentError

Exchange = Literal["doubling", "transpose"]
EXCHANGES = get_args(Exchange)


def transpose(
    n: int, *, incast: int = 1, groups: int = 1, exchange: Exchange = "doubling"
) -> Schedule:
    """Transpose AllReduce of ``n`` ranks, ``incast`` messages in and out of a rank per round.

    Args:
        n: ranks, 2 .. 1024.
        incast: 1 .. n - 1. Where a message has several chunks (``exchange="transpose"``) the
            schedule's ports, which count chunks, allow so many more.
        groups: divides ``n``; ranks n / groups * g and following are group g. One group is plain
            TAR.
        exchange: how the groups add up their sums; unused with one group.

    Raises:
        ArgumentError: an argument is out of its range.

    Examples:
        >>> from synth.transpose.generate import transpose
        >>> transpose(8).rounds, transpose(8, incast=2).rounds, transpose(8, groups=4).rounds
        (14, 8, 4)
    """
    _require(n, incast, groups, exchange)
    size = n // groups
    if exchange == "transpose" and groups > 1:
        shards = [range(place, n, size) for place in range(size)]  # one chunk for each group
        between = _between_transpose(size, groups, incast)
    else:
        shards = [range(place, place + 1) for place in range(size)]
        between = _between_doubling(size, groups)
    scatter, gather = (
        [_inside(groups, size, shards, shifts, op) for shifts in _blocks(size, incast)]
        for op in ("reduce", "copy")
    )
    phases = {"reduce_scatter": scatter, "exchange": between, "all_gather": gather}
    meta: dict[str, Scalar] = {"method": "transpose", "incast": incast, "groups": groups}
    if groups > 1:
        meta["exchange"] = exchange
    return Schedule(
        ranks=n,
        chunks=sum(map(len, shards)),
        ports=Incast(_busiest([*scatter, *between, *gather])),
        phases=tuple(Phase(name, (), tuple(rounds)) for name, rounds in phases.items() if rounds),
        meta=meta,
    )


def _inside(groups: int, size: int, shards: list[range], shifts: range, op: Op) -> Round:
    """One round of TAR within every group: to the owner (reduce) or from it (copy)."""
    return tuple(
        Transfer(first + place, first + other, chunk, op)
        for shift in shifts
        for first in range(0, groups * size, size)
        for place in range(size)
        for other in [(place + shift) % size]
        for chunk in shards[other if op == "reduce" else place]
    )


def _between_transpose(size: int, groups: int, incast: int) -> list[Round]:
    """TAR among the ranks of one place; chunk c is owned by rank c, the n chunks as n ranks."""
    n = size * groups

    def round_of(shifts: range, op: Op) -> Round:
        return tuple(
            Transfer(rank, other, other if op == "reduce" else rank, op)
            for shift in shifts
            for rank in range(n)
            for other in [(rank + shift * size) % n]
        )

    ops: tuple[Op, ...] = ("reduce", "copy")
    return [round_of(shifts, op) for op in ops for shifts in _blocks(groups, incast)]


def _between_doubling(size: int, groups: int) -> list[Round]:
    """Recursive doubling among the ranks of one place; groups beyond a power of two fold first."""
    power = 1 << (groups.bit_length() - 1)

    def round_of(pairs: Iterator[tuple[int, int]], op: Op) -> Round:
        return tuple(
            Transfer(a * size + place, b * size + place, place, op)
            for a, b in pairs
            for place in range(size)
        )

    rounds = [
        round_of(((g, g ^ 1 << bit) for g in range(power)), "reduce")
        for bit in range(power.bit_length() - 1)
    ]
    if groups > power:
        extra = range(power, groups)
        rounds.insert(0, round_of(((g, g - power) for g in extra), "reduce"))
        rounds.append(round_of(((g - power, g) for g in extra), "copy"))
    return rounds


def _blocks(ranks: int, incast: int) -> Iterator[range]:
    """The places 1 .. ranks - 1 to send on by, ``incast`` of them per round."""
    return (range(low, min(low + incast, ranks)) for low in range(1, ranks, incast))


def _busiest(rounds: list[Round]) -> int:
    """The most transfers that a rank sends or receives in a round."""
    return max(
        count
        for transfers in rounds
        for ends in ((t.src for t in transfers), (t.dst for t in transfers))
        for count in Counter(ends).values()
    )


def _require(n: int, incast: int, groups: int, exchange: str) -> None:
    require_ranks(n)
    if not 1 <= incast < n:
        raise ArgumentError("--incast", incast, f"must be in 1..{n - 1} for n = {n}")
    if groups < 1 or n % groups:
        fitting = ", ".join(str(g) for g in range(1, n + 1) if n % g == 0)
        raise ArgumentError("--groups", groups, f"must divide n = {n}", f"One of {fitting}")
    if exchange not in EXCHANGES:
        raise ArgumentError("--exchange", exchange, f"must be one of {', '.join(EXCHANGES)}")
