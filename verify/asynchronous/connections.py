"""The ends of FIFOs match, and what is waited for is signalled: asked before anything else.

A FIFO has one block at each end, as many messages are received as are sent, and the k-th is as
large at both ends, at every size of the buffer that is meant. A counter has one block that raises
it, and it is raised as far as anybody waits for it to be.
"""

from __future__ import annotations

import numpy as np

from verify.asynchronous.model import NONE, IntArray
from verify.asynchronous.order import NEVER, Flat
from verify.asynchronous.sizes import Sizes, in_words, limits
from verify.core.verdict import PROVED, Counterexample, Result, refuted


def at_step(
    flat: Flat, index: int, broken: str, expected: str, found: str, *others: int
) -> Counterexample:
    """A counterexample at one step, with the others that matter."""
    block = flat.blocks[int(flat.block[index])]
    step = flat.steps[index]
    return Counterexample(
        property=broken,
        rank=block.rank,
        position=step.place,
        action=f"{block.name}: {step.text}",
        expected=expected,
        found=found,
        actions=tuple(flat.describe(other) for other in (index, *others)),
    )


def connections_match(flat: Flat, sizes: Sizes | None) -> Result:
    """Every FIFO joins one block to one block, which agree on number and sizes of messages."""
    ends = [_by_fifo(flat, side) for side in (flat.sends, flat.receives)]
    for side, what in zip(ends, ("sends to", "receives from"), strict=True):
        for fifo, steps in side.items():
            other = np.flatnonzero(flat.block[steps] != flat.block[steps[0]])
            if len(other):
                return refuted(
                    at_step(
                        flat,
                        int(steps[other[0]]),
                        "connections_match",
                        f"one block that {what} {flat.program.fifos[fifo]}",
                        "two blocks, whose messages mix as they happen to come",
                        int(steps[0]),
                    )
                )
    sends, receives = ends
    for fifo, name in enumerate(flat.program.fifos):
        sent, taken = (side.get(fifo, np.zeros(0, np.int64)) for side in (sends, receives))
        if flat.count[sent].tolist() == flat.count[taken].tolist():
            continue
        for limit in limits(flat.largest, sizes):
            out, into = (_messages(flat.count[side], limit) for side in (sent, taken))
            if out == into:
                continue
            k = next((k for k, (a, b) in enumerate(zip(out, into, strict=False)) if a != b), -1)
            if k < 0:
                k = min(len(out), len(into))
                found = f"messages: {len(out)} sent, {len(into)} received"
            else:
                found = f"message {k} has {out[k]} chunks where sent, {into[k]} where received"
            if sizes is not None:
                found += f" (buffer of {in_words(sizes.least_with(limit))})"
            where = [
                int(side[np.searchsorted(np.cumsum(-(-flat.count[side] // limit)), k, "right")])
                for side, own in ((sent, out), (taken, into))
                if k < len(own)
            ]
            return refuted(
                at_step(
                    flat,
                    where[0],
                    "connections_match",
                    f"both ends of {name} to agree on its messages",
                    found,
                    *where[1:],
                )
            )
    return PROVED


def _by_fifo(flat: Flat, fifo_of_step: IntArray) -> dict[int, IntArray]:
    used = np.flatnonzero((fifo_of_step != NONE) & (flat.count > 0))
    order = used[np.argsort(fifo_of_step[used], kind="stable")]
    names, starts = np.unique(fifo_of_step[order], return_index=True)
    return dict(zip(names.tolist(), np.split(order, starts[1:]), strict=True)) if len(order) else {}


def _messages(counts: IntArray, limit: int) -> list[int]:
    return [min(limit, c - low) for c in counts.tolist() for low in range(0, c, limit)]


def signals_match(flat: Flat) -> Result:
    """Every counter is raised by one block, and as far as it is waited for."""
    raises: dict[int, int] = {}
    for index, step in enumerate(flat.steps):
        for counter, _ in step.signals:
            other = raises.setdefault(counter, index)
            if flat.block[other] != flat.block[index]:
                return refuted(
                    at_step(
                        flat,
                        index,
                        "signals_match",
                        f"one block that raises {flat.program.counters[counter]}",
                        "two blocks, so that nobody knows whose signal ends a wait",
                        other,
                    )
                )
    for index, by in flat.waits:
        if by == NEVER:
            counter, value = next(
                wait for wait in flat.steps[index].waits if not _raised(flat, *wait)
            )
            return refuted(
                at_step(
                    flat,
                    index,
                    "signals_match",
                    f"{flat.program.counters[counter]} to reach {value}",
                    "nobody raises it so far",
                )
            )
    return PROVED


def _raised(flat: Flat, counter: int, value: int) -> bool:
    return any(c == counter and v >= value for step in flat.steps for c, v in step.signals)
