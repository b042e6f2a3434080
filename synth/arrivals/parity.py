"""Before there is a full sum: what has to be ready for the first ones takes ports of its own.

Let l ranks come together in the last round of arrival (of ranks that are all on time take n - 1 for
them), L = ceil(log2 n), and R = k + L - 1, the dissemination bound. Of each chunk there is one tree
of additions (what :mod:`verify` calls same bits). Take as sources the data of these l ranks and of
one other. In t rounds a rank learns of 2^t sources at most. If l + 1 > 2^(L-1), no rank has a full
sum before the L-th round; only k rounds are left then, and a rank receives one chunk in each. So

    all sums but the full ones, k (l - 1) of them, are made in the first L - 1 rounds, which have
    n (L - 1) receives;
    in the L-th round every rank gets a full sum, by receiving one of the two sums S and T that it
    is added up from onto the other. The n transfers go round in circles, in which those of one
    chunk go from holders of S to holders of T or back. So a chunk has as many holders of S or T as
    full sums, and more if not all of its circles are its own: this takes two chunks at least for
    an odd n, since a circle of one chunk is even;
    beyond the first holder of S and the first of T each holder takes a receive of its own in the
    first L - 1 rounds (the other ranks' sum could be S or T, and be in several places, only if
    l = 2^(L-1)).

Where that does not fit, R >= k + L. On paper: proofs/paper/late-together.md. (proofs/coq has no
tree of additions.)

Kept because 8 of the instances in bench/tables/late-together.md are known to be optimal by this
bound alone, and computing it takes no time.
"""

from __future__ import annotations

from latecomer.synth.arrivals.instance import Arrivals


def parity_bound(arrivals: Arrivals) -> int:
    """k + L where the argument holds, else 0."""
    n = arrivals.ranks
    k = arrivals.chunks
    hops = (n - 1).bit_length()
    late = min(n - 1, arrivals.arrival.count(arrivals.last))
    half = 2 ** (hops - 1)
    if late < half:
        return 0
    fits = k > 1 or n % 2 == 0
    if n - late == 1 or late > half:
        fits &= k * (late - 1) + _copies(n, k) <= n * (hops - 1)
    return 0 if fits else k + hops


def _copies(n: int, k: int) -> int:
    """How many holders of an S or T there are at least, beyond the first two of each chunk.

    With no more than two holders a chunk has one full sum or two at first, and from then on copies
    of it. One is too few if 2^(k-1) < n. Of two chunks the one that is behind needs others that are
    left over; for n = 5 the last of them does not fit in (see the page).
    """
    if n % 2 == 0:
        return max(0, n - 2 * k)
    if k == 2:
        return n - 1 + (n == 5)
    return max(0, n + 2 - 2 * k, 2 if 2 ** (k - 1) < n else 0)


def least_rounds(arrivals: Arrivals) -> int:
    """The greatest of all bounds that have a proof."""
    return max(arrivals.bound, parity_bound(arrivals))
