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
from collections.abc import Iterable, Iterator
from typing import Literal, get_args

from latecomer.synth.standard import require_ranks
from latecomer.verify.core.schedule import Incast, Op, Phase, Round, Scalar, Schedule, Transfer
from latecomer.verify.errors import ArgumentError

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
        >>> from latecomer.synth.transpose.generate import transpose
        >>> transpose(8).rounds, transpose(8, incast=2).rounds, transpose(8, groups=4).rounds
        (14, 8, 4)
    """
    _require(n, incast, groups, exchange)
    ranks_per_group = n // groups
    shards = _shards(n, groups, exchange)
    steps = list(_steps(ranks_per_group, incast))

    scatter = [_inside(groups, shards, shifts, "reduce") for shifts in steps]
    gather = [_inside(groups, shards, shifts, "copy") for shifts in steps]
    if groups > 1 and exchange == "transpose":
        between = _between_transpose(ranks_per_group, groups, incast)
    else:
        between = _between_doubling(ranks_per_group, groups)

    phases = []
    for name, rounds in (
        ("reduce_scatter", scatter),
        ("exchange", between),
        ("all_gather", gather),
    ):
        if rounds:
            phases.append(Phase(name, (), tuple(rounds)))

    meta: dict[str, Scalar] = {"method": "transpose", "incast": incast, "groups": groups}
    if groups > 1:
        meta["exchange"] = exchange
    return Schedule(
        ranks=n,
        chunks=sum(map(len, shards)),
        ports=Incast(_busiest([*scatter, *between, *gather])),
        phases=tuple(phases),
        meta=meta,
    )


def _shards(n: int, groups: int, exchange: Exchange) -> list[range]:
    """The chunks of each shard; in every group the rank with the shard's index owns them."""
    ranks_per_group = n // groups
    if groups > 1 and exchange == "transpose":
        # one chunk for each group: the one that the group adds up between the two stages
        return [range(index, n, ranks_per_group) for index in range(ranks_per_group)]
    return [range(index, index + 1) for index in range(ranks_per_group)]


def _inside(groups: int, shards: list[range], shifts: range, op: Op) -> Round:
    """One round of TAR within every group: to the owner (reduce) or from it (copy).

    Args:
        shards: the chunks that each rank of a group owns.
        shifts: every rank sends to the ranks so much further on in its group.
    """
    ranks_per_group = len(shards)
    transfers = []
    for shift in shifts:
        for first_rank in range(0, groups * ranks_per_group, ranks_per_group):
            for sender in range(ranks_per_group):
                receiver = (sender + shift) % ranks_per_group
                owner = receiver if op == "reduce" else sender
                for chunk in shards[owner]:
                    src = first_rank + sender
                    dst = first_rank + receiver
                    transfers.append(Transfer(src, dst, chunk, op))
    return tuple(transfers)


def _between_transpose(ranks_per_group: int, groups: int, incast: int) -> list[Round]:
    """TAR among the groups' ranks of one index; chunk c is owned by rank c, the n chunks by n
    ranks.
    """
    n = ranks_per_group * groups

    def round_of(shifts: range, op: Op) -> Round:
        transfers = []
        for shift in shifts:
            for src in range(n):
                dst = (src + shift * ranks_per_group) % n
                owner = dst if op == "reduce" else src
                transfers.append(Transfer(src, dst, owner, op))
        return tuple(transfers)

    scatter = [round_of(shifts, "reduce") for shifts in _steps(groups, incast)]
    gather = [round_of(shifts, "copy") for shifts in _steps(groups, incast)]
    return scatter + gather


def _between_doubling(ranks_per_group: int, groups: int) -> list[Round]:
    """Recursive doubling among the groups' ranks of one index; groups beyond a power of two send
    theirs to another one first, and get the sum in the end.
    """
    power = 1 << (groups.bit_length() - 1)

    def round_of(pairs: Iterable[tuple[int, int]], op: Op) -> Round:
        transfers = []
        for src_group, dst_group in pairs:
            for index in range(ranks_per_group):
                src = src_group * ranks_per_group + index
                dst = dst_group * ranks_per_group + index
                transfers.append(Transfer(src, dst, index, op))
        return tuple(transfers)

    rounds = []
    for bit in range(power.bit_length() - 1):
        pairs = [(group, group ^ 1 << bit) for group in range(power)]
        rounds.append(round_of(pairs, "reduce"))

    if groups > power:
        fold = [(group, group - power) for group in range(power, groups)]
        unfold = [(group - power, group) for group in range(power, groups)]
        rounds.insert(0, round_of(fold, "reduce"))
        rounds.append(round_of(unfold, "copy"))
    return rounds


def _steps(ranks: int, incast: int) -> Iterator[range]:
    """For each round the shifts to send on by: 1 .. ranks - 1, ``incast`` of them at a time."""
    for first in range(1, ranks, incast):
        yield range(first, min(first + incast, ranks))


def _busiest(rounds: list[Round]) -> int:
    """The most transfers that a rank sends or receives in a round."""
    busiest = 0
    for transfers in rounds:
        sent = Counter(transfer.src for transfer in transfers)
        received = Counter(transfer.dst for transfer in transfers)
        busiest = max(busiest, *sent.values(), *received.values())
    return busiest


def _require(n: int, incast: int, groups: int, exchange: str) -> None:
    require_ranks(n)
    if not 1 <= incast < n:
        raise ArgumentError("--incast", incast, f"must be in 1..{n - 1} for n = {n}")
    if groups < 1 or n % groups:
        fitting = ", ".join(str(g) for g in range(1, n + 1) if n % g == 0)
        raise ArgumentError("--groups", groups, f"must divide n = {n}", f"One of {fitting}")
    if exchange not in EXCHANGES:
        raise ArgumentError("--exchange", exchange, f"must be one of {', '.join(EXCHANGES)}")
