"""Schedules to lose transfers of: the textbook ones, and right ones that take odd ways.

The odd ones have one chunk and one transfer per round. Contributions merge until one rank holds
all, then it spreads them. A rank whose data has moved on holds leftovers: it may be written to by
anybody, may take over from another (its leftovers overwritten), and its leftovers go nowhere.
"""

from typing import Any

from hypothesis import strategies as st

from tests.verify.builders import Document, all_right, document

RIGHT = all_right()
textbook = st.sampled_from(sorted(RIGHT)).map(RIGHT.__getitem__)


@st.composite
def odd(draw: st.DrawFn, most_ranks: int = 5) -> Document:
    n = draw(st.integers(2, most_ranks))
    live, idle, done = set(range(n)), set[int](), set[int]()
    moves: list[list[Any]] = []

    def some(ranks: set[int]) -> int:
        return draw(st.sampled_from(sorted(ranks)))

    def leftovers() -> None:
        if idle and draw(st.booleans()):
            dst = some(idle)
            src = some(set(range(n)) - {dst})
            moves.append([src, dst, 0, draw(st.sampled_from(["copy", "reduce"]))])

    while len(live) > 1:
        src = some(live)
        if idle and draw(st.booleans()):
            dst = some(idle)
            moves.append([src, dst, 0, "copy"])
            idle.remove(dst)
        else:
            dst = some(live - {src})
            moves.append([src, dst, 0, "reduce"])
        live.remove(src)
        live.add(dst)
        idle.add(src)
        leftovers()
        if len(moves) > 4 * n:  # enough odd ways: straight on
            for other in sorted(live)[1:]:
                moves.append([other, min(live), 0, "reduce"])
            idle |= live - {min(live)}
            live = {min(live)}
    done = set(live)
    while idle:
        dst = some(idle)
        moves.append([some(done), dst, 0, "copy"])
        idle.remove(dst)
        done.add(dst)
        leftovers()
        if len(done) > 1 and draw(st.booleans()):
            dst = some(done)
            moves.append([some(done - {dst}), dst, 0, "copy"])
    return document(n, 1, [("all", [], [[move] for move in moves])])


schedules = st.one_of(textbook, odd())
