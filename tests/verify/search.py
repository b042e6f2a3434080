"""A search through all schedules of the smallest sizes; shares no code with what it checks."""

from collections import Counter
from collections.abc import Hashable, Iterator
from functools import cache
from itertools import count, permutations, product

from latecomer.verify import Incast
from latecomer.verify.core.schedule import Ports

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
                if after in following or not all(map(self._everybody, after)):
                    continue
                if all(len({*held}) == 1 for held in after):
                    return True
                following.add(after)
        self.states = following
        return False

    def _everybody(self, held: tuple[int, ...]) -> bool:
        """Whether no data is lost for good."""
        contributions = 0
        for value in held:
            contributions |= self.leaves[value]
        return contributions == (1 << self.n) - 1

    def _added(self, first: int, second: int) -> int:
        """The number of a sum of two values; useless, if it had a contribution twice."""
        if first == USELESS or self.leaves[first] & self.leaves[second]:
            return USELESS
        leaves = self.leaves[first] | self.leaves[second]
        key = frozenset((first, second)) if self.trees else leaves
        number = self.sums.setdefault(key, len(self.leaves))
        if number == len(self.leaves):
            self.leaves.append(leaves)
        return number

    def _options(self, state: State, present: list[int], dst: int) -> set[Option]:
        """All that is of use to a rank, in each order of its transfers."""
        options: set[Option] = {((), ())}
        sources = [src for src in present if src != dst]
        moves = [*product(sources, range(self.k), ("copy", "reduce"))]
        for count_of_moves in range(1, self.incast + 1):
            for chosen in permutations(moves, count_of_moves):
                held = self._held_after(chosen, state, dst)
                if all(value not in (USELESS, state[c][dst]) for c, value in held.items()):
                    senders = tuple(sorted(src for src, _, _ in chosen))
                    options.add((senders, tuple(sorted(held.items()))))
        return options

    def _held_after(
        self, chosen: tuple[tuple[int, int, str], ...], state: State, dst: int
    ) -> dict[int, int]:
        """What a rank then holds of the chunks that these transfers (src, chunk, op) write."""
        writes = Counter(chunk for _, chunk, _ in chosen)
        held: dict[int, int] = {}
        for src, chunk, op in chosen:
            moved = state[chunk][src]
            if op == "reduce":
                held[chunk] = self._added(held.get(chunk, state[chunk][dst]), moved)
            else:
                held[chunk] = moved if writes[chunk] == 1 else USELESS
        return held

    def _is_matching(self, present: list[int], choice: tuple[Option, ...]) -> bool:
        """Whether nobody meets two others."""
        pairs = set()
        for dst, (senders, _) in zip(present, choice, strict=True):
            if senders:
                pairs.add(frozenset((dst, *senders)))
        return len(frozenset().union(*pairs)) == 2 * len(pairs)

    def _next(self, state: State, present: list[int]) -> Iterator[State]:
        options = [self._options(state, present, dst) for dst in present]
        for choice in product(*options):
            senders = [src for sources, _ in choice for src in sources]
            if len({*senders}) < len(senders) and max(map(senders.count, senders)) > self.incast:
                continue
            if self.matching and not self._is_matching(present, choice):
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
    for number in count(1):
        absent = tuple(rank for rank, rounds in enumerate(arrival) if rounds >= number)
        if search.advance(absent):
            return number - max(arrival)
    raise AssertionError
