"""The helpers' ReduceScatter while they wait: every raw chunk goes straight to its owner.

Chunk c of k chunks is owned by helper c mod N (N helpers, ranks 0 .. N-1). All transfers are
``reduce``, so the owner adds raw data to what it has; a set of N chunks, one per owner, at a time
(the last set may be smaller: then some owners rest).

    duplex     rotation: in round t = 1 .. N-1 helper i sends to helper i + t
    matching   round-robin tournament (circle method): in each round disjoint pairs exchange;
               N - 1 rounds for even N, N for odd N, where one helper rests in each round
"""

from __future__ import annotations

from latecomer.verify.core.schedule import Round, Transfer


def rotation(helpers: int, chunks: int) -> tuple[Round, ...]:
    """(N - 1) * ceil(k / N) rounds in the duplex model; none for one helper."""
    return tuple(
        tuple(
            Transfer((owner - t) % helpers, owner, first + owner, "reduce")
            for owner in range(min(helpers, chunks - first))
        )
        for first in range(0, chunks, helpers)
        for t in range(1, helpers)
    )


def tournament(helpers: int, chunks: int) -> tuple[Round, ...]:
    """(N - 1) * ceil(k / N) rounds for even N, N * ceil(k / N) for odd N, in the matching model."""
    if helpers == 1:
        return ()
    pairings = _circle(helpers)
    return tuple(
        tuple(
            Transfer(src, dst, first + dst, "reduce")
            for a, b in pairs
            for src, dst in ((a, b), (b, a))
            if first + dst < chunks
        )
        for first in range(0, chunks, helpers)
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
