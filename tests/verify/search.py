"""A search through all schedules of the smallest sizes; shares no code with what it checks."""

from collections import Counter
from collections.abc import Hashable, Iterator
from functools import cache
from itertools import count, permutations, product

from verify import Incast
from verify.core.schedule import Ports

USELESS = -1
State = tuple[tuple[int, ...], ...]
"""[chunk][rank]: the number of the value that is held."""
Option = tuple[tuple[int, ...], tuple[tuple[int, int], ...]]
"""What a rank may do in a round: the senders, and (chunk, value) that it then holds."""


class Search:
    """All states that rounds lead to, one round after the other.

    Values 0 .. n-1 are the ranks' data, the others unordered sums of two values. ``trees`` tells
    sums of the same data in another order apart, as who wants the same bits must.
    """

    def __init__(self, n: int, k: int, ports: Ports = "duplex", *, trees: bool = False) -> None:
        self.n = n
        self.k = k
        self.trees = trees
        self.matching = ports == "matching"
        self.incast = ports.incast if isinstance(ports, Incast) else 1
        self.leaves = [1 << rank for rank in range(n)]
        self.sums: dict[Hashable, int] = {}
        self.states: set[State] = {(tuple(range(n)),) * k}

    def advance(self, absent: tuple[int, ...] = ()) -> bool:
        """One more round without these ranks; whether all data is everywhere after it."""
        present = [rank for rank in range(self.n) if rank not in absent]
        following: set[State] = set()
        for state in self.states:
            for after in self._next(state, present):
                if after not in following and all(map(self._everybody, after)):
                    if all(len({*held}) == 1 for held in after):
                        return True
                    following.add(after)
        self.states = following
        return False

    def _everybody(self, held: tuple[int, ...]) -> bool:
        """Whether no data is lost for good."""
        found = 0
        for value in held:
            found |= self.leaves[value]
        return found == (1 << self.n) - 1

    def _added(self, one: int, other: int) -> int:
        if one == USELESS or self.leaves[one] & self.leaves[other]:
            return USELESS
        both = self.leaves[one] | self.leaves[other]
        number = self.sums.setdefault(
            frozenset((one, other)) if self.trees else both, len(self.leaves)
        )
        if number == len(self.leaves):
            self.leaves.append(both)
        return number

    def _options(self, state: State, present: list[int], dst: int) -> set[Option]:
        """All that is of use to a rank, in each order of its transfers."""
        found: set[Option] = {((), ())}
        sources = [src for src in present if src != dst]
        moves = [*product(sources, range(self.k), ("copy", "reduce"))]
        for some in (p for m in range(1, self.incast + 1) for p in permutations(moves, m)):
            writes = Counter(chunk for _, chunk, _ in some)
            held: dict[int, int] = {}
            for src, chunk, op in some:
                kept = held.get(chunk, state[chunk][dst])
                moved = state[chunk][src]
                held[chunk] = moved if op == "copy" else self._added(kept, moved)
                if op == "copy" and writes[chunk] > 1:
                    held[chunk] = USELESS
            if all(value not in (USELESS, state[c][dst]) for c, value in held.items()):
                found.add((tuple(sorted(move[0] for move in some)), tuple(sorted(held.items()))))
        return found

    def _next(self, state: State, present: list[int]) -> Iterator[State]:
        options = [self._options(state, present, dst) for dst in present]
        for choice in product(*options):
            senders = [src for sources, _ in choice for src in sources]
            if len({*senders}) < len(senders) and max(map(senders.count, senders)) > self.incast:
                continue
            if self.matching:
                pairs = {
                    frozenset((dst, *way[0]))
                    for dst, way in zip(present, choice, strict=True)
                    if way[0]
                }
                if len(frozenset().union(*pairs)) < 2 * len(pairs):
                    continue
            after = [list(held) for held in state]
            for dst, (_, written) in zip(present, choice, strict=True):
                for chunk, value in written:
                    after[chunk][dst] = value
            yield tuple(sorted(map(tuple, after)))  # chunks have no names


@cache
def fewest_rounds(chunks: int, arrival: tuple[int, ...]) -> int:
    """Rounds after the last arrival, of a schedule that gives all ranks the same bits."""
    search = Search(len(arrival), chunks, trees=True)
    return next(
        t - max(arrival)
        for t in count(1)
        if search.advance(tuple(r for r, when in enumerate(arrival) if when >= t))
    )
