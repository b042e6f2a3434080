"""The standard AllReduce schedules for ranks that are all on time, to compare with and to use.

    ring       ReduceScatter and AllGather around a ring (Patarasuk and Yuan, 2009)
    rhd        recursive halving, then recursive doubling (Thakur, Rabenseifner and Gropp, 2005)
    doubling   recursive doubling of the whole buffer as one chunk (the same paper)
    tree       up a binomial tree and down again, the whole buffer as one chunk (the same paper)
    direct     every shard straight to its owner, every result straight to everybody: two rounds
    circulant  as rhd, with as few rounds and bytes for every n (Träff, arXiv 2410.14234, 2024)

Deviation in ``rhd`` and ``doubling`` for n not a power of two: in the paper an extra rank and its
partner each reduce one half of the buffer before the extra rank steps aside; here it sends the
whole buffer at once. That is as many bytes over its link, in one round less, with the addition all
on one side.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from latecomer.verify.core.schedule import Incast, Op, Phase, Ports, Round, Schedule, Transfer
from latecomer.verify.errors import ArgumentError

# Ring and direct have 2 n (n - 1) transfers then: two million, which are objects here.
MOST_RANKS = 1024


def ring(n: int) -> Schedule:
    """2(n - 1) rounds, n chunks, duplex: cost 2(n-1) alpha + 2(n-1)/n S*beta.

    Raises:
        ArgumentError: ``n`` is not in 2..1024.

    Examples:
        >>> from latecomer import synth
        >>> ring = synth.ring(8)
        >>> ring.rounds, ring.chunks
        (14, 8)
    """
    require_ranks(n)

    # lag: 0 while sums grow, 1 when they are full, for each rank then starts one chunk further
    def round_of(step: int, lag: int, op: Op) -> Round:
        return tuple(Transfer(r, (r + 1) % n, (r + lag - step) % n, op) for r in range(n))

    return _schedule(
        "ring",
        n,
        n,
        "duplex",
        [
            ("reduce_scatter", [round_of(step, 0, "reduce") for step in range(n - 1)]),
            ("all_gather", [round_of(step, 1, "copy") for step in range(n - 1)]),
        ],
    )


def rhd(n: int, *, nearest_first: bool = False) -> Schedule:
    """2 log2(p) rounds on p chunks for p the greatest power of two <= n, two more if n > p.

    The ports are the smallest incast that lets a whole half travel in one round.

    Args:
        n: ranks.
        nearest_first: neighbours exchange the first halves, which are half of all bytes, and ranks
            that are p/2 apart the smallest parts (in the paper: distance doubling). So where the
            ranks of a machine have consecutive numbers most bytes stay inside. Default: the other
            way round.

    Raises:
        ArgumentError: ``n`` is not in 2..1024.

    Examples:
        >>> from latecomer import synth
        >>> halving_and_doubling = synth.rhd(8)
        >>> halving_and_doubling.rounds, halving_and_doubling.ports
        (6, Incast(incast=4))
    """
    require_ranks(n)
    p = 1 << (n.bit_length() - 1)
    distances = [1 << bit for bit in range(p.bit_length() - 1)]
    if not nearest_first:
        distances.reverse()

    def blocks(distance: int, op: Op) -> Round:
        """Rank r deals with the chunks that it has not halved away so far; it sends its partner's
        half of them (halving) or its own half (doubling).
        """
        half = distance if op == "reduce" else 0
        return tuple(
            Transfer(r, r ^ distance, chunk, op)
            for r in range(p)
            for chunk in kept(r ^ half, distance)
        )

    def kept(rank: int, distance: int) -> range:
        """The chunks of a rank when it has halved up to this distance: those that agree with it
        in all bits that were looked at."""
        if nearest_first:
            return range(rank % (2 * distance), p, 2 * distance)
        first = rank // distance * distance
        return range(first, first + distance)

    halving = [blocks(distance, "reduce") for distance in distances]
    doubling = [blocks(distance, "copy") for distance in reversed(distances)]
    extra = range(p, n)
    if extra:
        halving.insert(0, tuple(Transfer(e, e - p, c, "reduce") for e in extra for c in range(p)))
        doubling.append(tuple(Transfer(e - p, e, c, "copy") for e in extra for c in range(p)))
    ports = Incast(max(_busiest(transfers) for transfers in [*halving, *doubling]))
    return _schedule("rhd", n, p, ports, [("halving", halving), ("doubling", doubling)])


def doubling(n: int) -> Schedule:
    """log2(p) rounds of one chunk for p the greatest power of two <= n, two more if n > p; duplex.

    In each round partners send each other the sums that they hold, and add.

    Raises:
        ArgumentError: ``n`` is not in 2..1024.

    Examples:
        >>> from latecomer import synth
        >>> doubling = synth.doubling(8)
        >>> doubling.rounds, doubling.chunks
        (3, 1)
    """
    require_ranks(n)
    p = 1 << (n.bit_length() - 1)
    rounds = [
        tuple(Transfer(r, r ^ 1 << bit, 0, "reduce") for r in range(p))
        for bit in range(p.bit_length() - 1)
    ]
    if n > p:
        rounds.insert(0, tuple(Transfer(e, e - p, 0, "reduce") for e in range(p, n)))
        rounds.append(tuple(Transfer(e - p, e, 0, "copy") for e in range(p, n)))
    return _schedule("doubling", n, 1, "duplex", [("doubling", rounds)])


def tree(n: int) -> Schedule:
    """2 ceil(log2 n) rounds, one chunk, duplex: cost 2L alpha + 2L S*beta with L = ceil(log2 n).

    Raises:
        ArgumentError: ``n`` is not in 2..1024.

    Examples:
        >>> from latecomer import synth
        >>> tree = synth.tree(8)
        >>> tree.rounds, tree.chunks
        (6, 1)
    """
    require_ranks(n)

    def level(distance: int) -> list[tuple[int, int]]:
        """(child, parent): the ranks that are an odd multiple of ``distance``, and those below."""
        return [(r, r - distance) for r in range(distance, n, 2 * distance)]

    distances = [1 << bit for bit in range((n - 1).bit_length())]
    up = [tuple(Transfer(r, to, 0, "reduce") for r, to in level(d)) for d in distances]
    down = [tuple(Transfer(to, r, 0, "copy") for r, to in level(d)) for d in reversed(distances)]
    return _schedule("tree", n, 1, "duplex", [("reduce", up), ("broadcast", down)])


def direct(n: int) -> Schedule:
    """2 rounds, n chunks, incast n - 1: cost 2(n-1) alpha + 2(n-1)/n S*beta, or 2 alpha where
    messages to several peers are set up at the same time.

    Raises:
        ArgumentError: ``n`` is not in 2..1024.

    Examples:
        >>> from latecomer import synth
        >>> direct = synth.direct(8)
        >>> direct.rounds, direct.ports
        (2, Incast(incast=7))
    """
    require_ranks(n)
    pairs = [(owner, other) for owner in range(n) for other in range(n) if other != owner]
    gather: Round = tuple(Transfer(other, owner, owner, "reduce") for owner, other in pairs)
    spread: Round = tuple(Transfer(owner, other, owner, "copy") for owner, other in pairs)
    return _schedule(
        "direct", n, n, Incast(n - 1), [("reduce_scatter", [gather]), ("all_gather", [spread])]
    )


def circulant(n: int) -> Schedule:
    """2 ceil(log2 n) rounds, n chunks: cost 2L alpha + 2(n-1)/n S*beta with L = ceil(log2 n).

    In a round of the first half each rank sends the last chunks of those that it still sums up,
    counted from its own on, to the rank so many further, and adds what comes from the rank so many
    before; the second half is the same backwards. The ports are the smallest incast that lets all
    of them travel in one round. Source: Träff 2024, algorithms 1 and 2, with halved distances.

    Raises:
        ArgumentError: ``n`` is not in 2..1024.

    Examples:
        >>> from latecomer import synth
        >>> circulant = synth.circulant(6)
        >>> circulant.rounds, circulant.chunks, circulant.ports
        (6, 6, Incast(incast=3))
    """
    require_ranks(n)
    scatter: list[Round] = []
    gather: list[Round] = []
    summed = n  # chunks that each rank still sums up, from its own on
    while summed > 1:
        distance = -(-summed // 2)
        moves = [
            (rank, (rank + distance) % n, (rank + chunk) % n)
            for rank in range(n)
            for chunk in range(distance, summed)
        ]
        scatter.append(tuple(Transfer(rank, to, chunk, "reduce") for rank, to, chunk in moves))
        gather.append(tuple(Transfer(to, rank, chunk, "copy") for rank, to, chunk in moves))
        summed = distance
    gather.reverse()
    ports = Incast(n // 2)
    return _schedule(
        "circulant", n, n, ports, [("reduce_scatter", scatter), ("all_gather", gather)]
    )


def require_ranks(n: int, most: int = MOST_RANKS) -> None:
    """Refuse a number of ranks that no schedule is made for (ArgumentError)."""
    if not 2 <= n <= most:
        raise ArgumentError("--n", n, f"must be in 2..{most}")


def require_rank(option: str, rank: int, n: int) -> None:
    """Refuse what is no rank among ``n`` (ArgumentError)."""
    if not 0 <= rank < n:
        raise ArgumentError(option, rank, f"must be a rank, 0..{n - 1} for n = {n}")


def require_chunks(chunks: int | None, m: int | None = None) -> None:
    """Refuse numbers of chunks, of the buffer or per helper, below 1; None is not given."""
    for option, number in (("--m", m), ("--chunks", chunks)):
        if number is not None and number < 1:
            raise ArgumentError(option, number, "must be 1 or more")


def _busiest(transfers: Round) -> int:
    ends: Iterable[tuple[str, int]] = (
        end for t in transfers for end in (("send", t.src), ("receive", t.dst))
    )
    return max(Counter(ends).values())


def _schedule(
    method: str, n: int, chunks: int, ports: Ports, phases: list[tuple[str, list[Round]]]
) -> Schedule:
    return Schedule(
        ranks=n,
        chunks=chunks,
        ports=ports,
        phases=tuple(Phase(name, (), tuple(rounds)) for name, rounds in phases),
        meta={"method": method},
    )
