"""The helpers' ReduceScatter while they wait: every raw chunk goes straight to its owner.

Chunk c of m * N chunks is owned by helper c mod N (N helpers, ranks 0 .. N-1). All transfers are
``reduce``, so the owner adds raw data to what it has; a set of N chunks, one per owner, at a time.

    duplex     rotation: in round t = 1 .. N-1 helper i sends to helper i + t
    matching   round-robin tournament (circle method): in each round disjoint pairs exchange;
               N - 1 rounds for even N, N for odd N, where one helper rests in each round
"""

from __future__ import annotations

from verify.core.schedule import Round, Transfer


def rotation(helpers: int, chunks_per_helper: int) -> tuple[Round, ...]:
    """(N - 1) * m rounds in the duplex model; none for one helper."""
    return tuple(
        tuple(
            Transfer(i, (i + t) % helpers, first + (i + t) % helpers, "reduce")
            for i in range(helpers)
        )
        for first in range(0, helpers * chunks_per_helper, helpers)
        for t in range(1, helpers)
    )


def tournament(helpers: int, chunks_per_helper: int) -> tuple[Round, ...]:
    """(N - 1) * m rounds for even N, N * m for odd N, in the matching model."""
    if helpers == 1:
        return ()
    pairings = _circle(helpers)
    return tuple(
        tuple(
            Transfer(src, dst, first + dst, "reduce")
            for a, b in pairs
            for src, dst in ((a, b), (b, a))
        )
        for first in range(0, helpers * chunks_per_helper, helpers)
        for pairs in pairings
    )


def _circle(players: int) -> list[list[tuple[int, int]]]:
    """Rounds of disjoint pairs in which everybody meets everybody once.

    On a circle of an odd number of seats, round t pairs the seats whose numbers add up to 2t;
    seat t is left over and meets the extra player, if there is one, or rests.
    """
    seats = players - 1 if players % 2 == 0 else players
    rounds = []
    for t in range(seats):
        pairs = [((t - d) % seats, (t + d) % seats) for d in range(1, seats // 2 + 1)]
        if seats < players:
            pairs.append((t, seats))
        rounds.append(pairs)
    return rounds
