"""What a schedule costs in the alpha-beta model, from its rounds or from a closed form.

Legend:

    S       bytes of the whole buffer; a chunk has S / chunks bytes
    alpha   seconds per message; chunks between the same two ranks in one round are one message
    beta    seconds per byte on one port; 1 / beta is the bandwidth of one direction of a link

A rank has one port each way, so what it sends in a round goes out message after message, and so
does what it receives: a round costs ``(most peers of any rank) * alpha + (most chunks of any rank)
* S / chunks * beta``, each way counted by itself. Where every rank deals with one peer, that is
``alpha + ...``, as usual. A round that moves nothing costs nothing. ``latency="round"`` pays one
alpha per round however many peers there are: true where messages to several peers are set up at
the same time, and a lower bound elsewhere.

Closed forms, with L = ceil(log2 n), p the greatest power of two <= n, any number k of chunks:

    ring        2 (n-1) alpha                     + 2 (n-1)/n S*beta
    rhd         2 log2 p alpha                    + 2 (p-1)/p S*beta
                (and 2 alpha + 2 S*beta more where n > p)
    tree        2 L alpha                         + 2 L S*beta
    doubling    log2 p alpha                      + log2 p S*beta
                (and 2 alpha + 2 S*beta more where n > p)
    direct      2 (n-1) alpha, or 2 per "round"   + 2 (n-1)/n S*beta
    straggler   (k + L - 1) (alpha + S*beta / k), at the lower bound, from the late rank's arrival

Deviation from Thakur et al. (2005): no term for the arithmetic of the reduction.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import isqrt
from typing import Literal

import numpy as np

from latecomer.verify.core.bounds import dissemination_bound
from latecomer.verify.core.schedule import IntArray, Schedule

Latency = Literal["message", "round"]
Family = Literal["ring", "rhd", "tree", "doubling", "direct", "straggler"]
FAMILIES: tuple[Family, ...] = ("ring", "rhd", "tree", "doubling", "direct", "straggler")

MOST_CHUNKS = 2**12
"""The largest number of chunks that is considered; see :func:`best_chunks`."""


@dataclass(frozen=True)
class Link:
    """One direction of a port: seconds per message, bytes per second."""

    alpha_s: float
    bandwidth: float


@dataclass(frozen=True)
class Cost:
    """``messages * alpha + share * S * beta``, kept exact until numbers are put in."""

    messages: int
    share: Fraction

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.messages + other.messages, self.share + other.share)

    def __str__(self) -> str:
        return f"{self.messages} alpha + {float(self.share):.4g} S*beta"

    def seconds(self, buffer_bytes: int, alpha_s: float, bandwidth: float) -> float:
        """The time for S = ``buffer_bytes``, in seconds; ``bandwidth`` is in bytes per second."""
        return self.messages * alpha_s + float(self.share) * buffer_bytes / bandwidth

    def over(self, buffer_bytes: int, link: Link) -> float:
        """The time for S = ``buffer_bytes`` over ``link``, in seconds."""
        return self.seconds(buffer_bytes, link.alpha_s, link.bandwidth)


@dataclass(frozen=True)
class Setting:
    """What the prediction needs to know: buffer size, latency and bandwidth of one direction."""

    buffer_bytes: int
    alpha_s: float
    bandwidth: float

    @property
    def link(self) -> Link:
        """One direction of a port."""
        return Link(self.alpha_s, self.bandwidth)

    def seconds(self, cost: Cost) -> float:
        """How long ``cost`` takes."""
        return cost.over(self.buffer_bytes, self.link)


@dataclass(frozen=True)
class Choice:
    """A family, its number of chunks (None but for the straggler's), its time, and why it is it."""

    family: Family
    chunks: int | None
    seconds: float
    reason: str


# -- from the rounds ---------------------------------------------------------------------------


def completion_cost(schedule: Schedule, latency: Latency = "message") -> Cost:
    """The cost of the rounds in which no rank is absent: what is felt after the last arrival.

    Args:
        schedule: a well formed one.
        latency: whether a rank pays one alpha per peer (``message``) or one in all (``round``).

    Examples:
        >>> from latecomer import synth
        >>> from latecomer.synth.cost import Link, completion_cost
        >>> print(cost := completion_cost(synth.generate(8)))  # a Cost
        9 alpha + 1.286 S*beta
        >>> cost.over(2**30, Link(alpha_s=3e-6, bandwidth=450e9)) < 0.004  # seconds for 1 GiB
        True
    """
    return _sum(schedule, latency, waiting=False)


def waiting_cost(schedule: Schedule, latency: Latency = "message") -> Cost:
    """The cost of the rounds that a rank is absent from: the wait that hides all of them.

    Arguments are those of ``completion_cost``.

    Examples:
        >>> from latecomer import synth
        >>> from latecomer.synth.cost import waiting_cost
        >>> print(waiting_cost(synth.generate(8)))
        6 alpha + 0.8571 S*beta
    """
    return _sum(schedule, latency, waiting=True)


def predict(
    schedule: Schedule, buffer_bytes: int, link: Link, latency: Latency = "message"
) -> float:
    """Seconds from the last arrival to the end, in the alpha-beta model.

    Args:
        schedule, latency: as for ``completion_cost``.
        buffer_bytes: of the whole buffer.
        link: one direction of each rank's port.

    Examples:
        >>> from latecomer import synth
        >>> from latecomer.synth.cost import Link, predict
        >>> link = Link(alpha_s=3e-6, bandwidth=450e9)
        >>> for schedule in (synth.ring(8), synth.generate(8)):
        ...     print(f"{predict(schedule, 2**30, link) * 1e3:.2f} ms")
        4.22 ms
        3.09 ms
    """
    return completion_cost(schedule, latency).over(buffer_bytes, link)


def _sum(schedule: Schedule, latency: Latency, *, waiting: bool) -> Cost:
    table = schedule.table
    n = schedule.ranks
    counts = [(bool(phase.absent), len(phase.rounds)) for phase in schedule.phases]
    wanted = np.repeat([is_waiting == waiting for is_waiting, _ in counts], [r for _, r in counts])
    chosen = wanted[table.round] if len(table) else np.empty(0, np.bool_)
    number = table.round[chosen]
    src = table.src[chosen]
    dst = table.dst[chosen]
    chunks = _busiest(number, src, dst, n)
    # Chunks between the same two ranks in one round are one message.
    pairs = np.unique((number * n + src) * n + dst)
    peers = _busiest(pairs // n**2, pairs // n % n, pairs % n, n)
    messages = peers.sum() if latency == "message" else np.count_nonzero(peers)
    return Cost(int(messages), Fraction(int(chunks.sum()), schedule.chunks))


def _busiest(number: IntArray, src: IntArray, dst: IntArray, n: int) -> IntArray:
    """For each round the most that any rank sends in it, or receives in it."""
    most = np.zeros(number.max(initial=-1) + 1, np.int64)
    for ends in (src, dst):
        # A number for each rank and round, so that one column is counted.
        ports, times = np.unique(number * n + ends, return_counts=True)
        np.maximum.at(most, ports // n, times)
    return most


# -- closed forms ------------------------------------------------------------------------------


def completion_cost_of(rounds: int, chunks: int) -> Cost:
    """The cost of ``rounds`` rounds in which no rank sends or receives more than one chunk."""
    return Cost(rounds, Fraction(rounds, chunks))


def ring_cost(n: int) -> Cost:
    """The cost of :func:`latecomer.synth.standard.ring`."""
    return Cost(2 * (n - 1), Fraction(2 * (n - 1), n))


def rhd_cost(n: int) -> Cost:
    """The cost of :func:`latecomer.synth.standard.rhd`."""
    log = n.bit_length() - 1
    p = 1 << log
    folding = 2 * (n > p)
    return Cost(2 * log + folding, Fraction(2 * (p - 1), p) + folding)


def direct_cost(n: int, latency: Latency = "message") -> Cost:
    """The cost of :func:`latecomer.synth.standard.direct`."""
    return Cost(2 * (n - 1) if latency == "message" else 2, Fraction(2 * (n - 1), n))


def tree_cost(n: int) -> Cost:
    """The cost of a binomial tree: the whole buffer up to one rank, and down again."""
    hops = 2 * (n - 1).bit_length()
    return Cost(hops, Fraction(hops))


def doubling_cost(n: int) -> Cost:
    """The cost of :func:`latecomer.synth.standard.doubling`."""
    log = n.bit_length() - 1
    rounds = log + 2 * (n > 1 << log)
    return Cost(rounds, Fraction(rounds))


def straggler_cost(n: int, chunks: int) -> Cost:
    """The cost of a completion at the lower bound, with one late rank."""
    return completion_cost_of(dissemination_bound(n, chunks), chunks)


def best_chunks(n: int, buffer_bytes: int, link: Link, most: int = MOST_CHUNKS) -> int:
    """The k in 1..most with the least ``straggler_cost``; the smallest of equals.

    (k + L - 1)(alpha + S beta / k) is convex in k with its minimum at
    k = sqrt((L - 1) S beta / alpha), so one of the two whole numbers around it is best. With
    alpha = 0 more chunks are always better (unless L = 1), and ``most`` decides.

    Args:
        n: ranks, 2 or more.
        buffer_bytes: of the whole buffer, 1 or more.
        link: one direction of each rank's port.
        most: chunks, at the most.

    Examples:
        >>> from latecomer.synth.cost import Link, best_chunks
        >>> link = Link(alpha_s=3e-6, bandwidth=450e9)
        >>> best_chunks(8, 2**30, link), best_chunks(8, 2**20, link)
        (40, 1)
    """
    spare = dissemination_bound(n, 1) - 1
    worth_s = spare * buffer_bytes / link.bandwidth
    # The minimum is at ``most`` or beyond; so also where alpha is 0, which can not be divided by.
    if worth_s >= link.alpha_s * most**2:
        return most if spare else 1
    low = min(most, max(1, isqrt(int(worth_s / link.alpha_s))))
    return min(
        (low, min(most, low + 1)),
        key=lambda chunks: straggler_cost(n, chunks).over(buffer_bytes, link),
    )


def family_cost(family: Family, n: int, chunks: int = 1, latency: Latency = "message") -> Cost:
    """The closed form of any family; ``chunks`` matters for the straggler's only."""
    if family == "straggler":
        return straggler_cost(n, chunks)
    if family == "direct":
        return direct_cost(n, latency)
    costs = {"ring": ring_cost, "rhd": rhd_cost, "tree": tree_cost, "doubling": doubling_cost}
    return costs[family](n)


def best(
    n: int,
    buffer_bytes: int,
    link: Link,
    *,
    most_chunks: int = MOST_CHUNKS,
    latency: Latency = "message",
) -> Choice:
    """The family (and its chunks) with the least predicted time after the last arrival, and why.

    The straggler's schedule is charged at its lower bound, and on the condition that its one late
    rank comes so late that the others' ReduceScatter (``waiting_cost``) is over. Of equal
    families the first in ``FAMILIES`` is chosen.

    Args:
        n, buffer_bytes, link, most_chunks: as for ``best_chunks``.
        latency: as for ``completion_cost``.

    Examples:
        >>> from latecomer.synth.cost import Link, best
        >>> choice = best(8, 2**30, Link(alpha_s=3e-6, bandwidth=450e9))  # a Choice
        >>> choice.family, choice.chunks
        ('straggler', 40)
        >>> print(choice.reason)
        straggler at the lower bound with 40 chunks: 42 alpha + 1.05 S*beta;
        next is rhd, 6 alpha + 1.75 S*beta, 1.59 times the time
    """
    chunks = best_chunks(n, buffer_bytes, link, most_chunks)
    costs = {family: family_cost(family, n, chunks, latency) for family in FAMILIES}
    times = {family: cost.over(buffer_bytes, link) for family, cost in costs.items()}
    first, second = sorted(FAMILIES, key=times.__getitem__)[:2]
    straggler = first == "straggler"
    shown = f"straggler at the lower bound with {chunks} chunks" if straggler else first
    lead = f"{times[second] / times[first]:.3g} times"
    return Choice(
        first,
        chunks if straggler else None,
        times[first],
        f"{shown}: {costs[first]}; next is {second}, {costs[second]}, {lead} the time",
    )
