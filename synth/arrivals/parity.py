"""One chunk and an odd number of ranks: often one round more than the other bounds say.

Let l ranks come together in the last round of arrival, and no more than one chunk be there. Of each
chunk there is one tree of additions (what :mod:`verify` calls same bits). Take as sources the data
of these l ranks and of one other, if there is one. L = ceil(log2 n).

    In t rounds a rank learns of 2^t sources at most. If there are more than 2^(L-1) of them, no
    rank holds the full sum before the L-th round. To be over with it, every rank has to hold one of
    the two parts S and T that the full sum is added up from, and to receive the other. Each rank
    sends once, so there are as many that hold S as hold T, and n is even.

So for odd n it takes L + 1 rounds at least. (On paper: proofs/coq has no tree of additions.)
"""

from __future__ import annotations

from synth.arrivals.instance import Arrivals


def parity_bound(arrivals: Arrivals) -> int:
    """L + 1 where the argument holds, else 0."""
    n = arrivals.ranks
    hops = (n - 1).bit_length()
    together = arrivals.arrival.count(arrivals.last)
    sources = min(n, together + 1)
    return hops + 1 if arrivals.chunks == 1 and n % 2 and sources > 2 ** (hops - 1) else 0


def least_rounds(arrivals: Arrivals) -> int:
    """The greatest of all bounds that have a proof."""
    return max(arrivals.bound, parity_bound(arrivals))
