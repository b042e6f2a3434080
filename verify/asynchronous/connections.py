"""The ends of FIFOs match, and what is waited for is signalled: asked before anything else.

A FIFO has one block at each end, as many messages are received as are sent, and the k-th is as
large at both ends, at every size of the buffer that is meant. A counter has one block that raises
it, and it is raised as far as anybody waits for it to be.
"""

from __future__ import annotations

import numpy as np

from latecomer.verify.asynchronous.model import NONE, IntArray, Signal
from latecomer.verify.asynchronous.order import NEVER, FlatProgram
from latecomer.verify.asynchronous.sizes import Sizes, in_words, limits
from latecomer.verify.core.verdict import PROVED, Counterexample, Result, refuted


def at_step(
    flat: FlatProgram, index: int, broken: str, expected: str, found: str, *others: int
) -> Counterexample:
    """A counterexample at one step, with the others that matter.

    Args:
        flat: the program; ``index`` and ``others`` are steps of it.
        broken: the property that is refuted.
    """
    block = flat.blocks[int(flat.block[index])]
    step = flat.steps[index]
    return Counterexample(
        property=broken,
        rank=block.rank,
        position=step.position,
        action=f"{block.name}: {step.text}",
        expected=expected,
        found=found,
        actions=tuple(flat.describe(other) for other in (index, *others)),
    )


def connections_match(flat: FlatProgram, sizes: Sizes | None) -> Result:
    """Every FIFO joins one block to one block, which agree on number and sizes of messages."""
    senders = _by_fifo(flat, flat.sends)
    receivers = _by_fifo(flat, flat.receives)
    shared = _shared_end(flat, senders, "sends to")
    shared = shared or _shared_end(flat, receivers, "receives from")
    if shared is not None:
        return refuted(shared)

    no_steps = np.zeros(0, np.int64)
    for fifo in range(len(flat.program.fifos)):
        sending = senders.get(fifo, no_steps)
        receiving = receivers.get(fifo, no_steps)
        # The same counts are cut alike at every size.
        if flat.count[sending].tolist() == flat.count[receiving].tolist():
            continue
        for limit in limits(flat.largest, sizes):
            difference = _difference(flat, fifo, sending, receiving, limit, sizes)
            if difference is not None:
                return refuted(difference)
    return PROVED


def _by_fifo(flat: FlatProgram, fifo_of_step: IntArray) -> dict[int, IntArray]:
    """Per FIFO that is used, its steps in order; a step of no chunks has no messages."""
    steps = np.flatnonzero((fifo_of_step != NONE) & (flat.count > 0))
    if not len(steps):
        return {}
    by_fifo = steps[np.argsort(fifo_of_step[steps], kind="stable")]
    fifos, starts = np.unique(fifo_of_step[by_fifo], return_index=True)
    return dict(zip(fifos.tolist(), np.split(by_fifo, starts[1:]), strict=True))


def _shared_end(
    flat: FlatProgram, steps_of_fifo: dict[int, IntArray], does: str
) -> Counterexample | None:
    """A FIFO of which two blocks have the same end; None if there is none."""
    for fifo, steps in steps_of_fifo.items():
        of_others = np.flatnonzero(flat.block[steps] != flat.block[steps[0]])
        if len(of_others):
            return at_step(
                flat,
                int(steps[of_others[0]]),
                "connections_match",
                f"one block that {does} {flat.program.fifos[fifo]}",
                "two blocks, whose messages mix as they happen to come",
                int(steps[0]),
            )
    return None


def _difference(
    flat: FlatProgram,
    fifo: int,
    sending: IntArray,
    receiving: IntArray,
    limit: int,
    sizes: Sizes | None,
) -> Counterexample | None:
    """The first message on which the ends of a FIFO differ; None if they agree.

    Args:
        sending, receiving: the steps at its ends.
        limit: the most chunks that a message has.
    """
    sent = _messages(flat.count[sending], limit)
    received = _messages(flat.count[receiving], limit)
    if sent == received:
        return None

    for number, (chunks_sent, chunks_received) in enumerate(zip(sent, received, strict=False)):
        if chunks_sent != chunks_received:
            found = (
                f"message {number} has {chunks_sent} chunks where sent, "
                f"{chunks_received} where received"
            )
            break
    else:
        number = min(len(sent), len(received))
        found = f"messages: {len(sent)} sent, {len(received)} received"
    if sizes is not None:
        found += f" (buffer of {in_words(sizes.least_with(limit))})"

    steps = []
    if number < len(sent):
        steps.append(_step_of_message(flat, sending, limit, number))
    if number < len(received):
        steps.append(_step_of_message(flat, receiving, limit, number))
    return at_step(
        flat,
        steps[0],
        "connections_match",
        f"both ends of {flat.program.fifos[fifo]} to agree on its messages",
        found,
        *steps[1:],
    )


def _messages(counts: IntArray, limit: int) -> list[int]:
    """Chunks of each message of steps of so many chunks."""
    messages = []
    for count in counts.tolist():
        messages += [min(limit, count - low) for low in range(0, count, limit)]
    return messages


def _step_of_message(flat: FlatProgram, steps: IntArray, limit: int, number: int) -> int:
    """Which of the steps at an end of a FIFO has the message of that number."""
    messages_so_far = np.cumsum(-(-flat.count[steps] // limit))  # rounded up
    return int(steps[np.searchsorted(messages_so_far, number, side="right")])


def signals_match(flat: FlatProgram) -> Result:
    """Every counter is raised by one block, and as far as it is waited for."""
    first_raise: dict[int, int] = {}  # counter -> step
    for index, step in enumerate(flat.steps):
        for counter, _ in step.signals:
            first = first_raise.setdefault(counter, index)
            if flat.block[first] != flat.block[index]:
                return refuted(
                    at_step(
                        flat,
                        index,
                        "signals_match",
                        f"one block that raises {flat.program.counters[counter]}",
                        "two blocks, so that nobody knows whose signal ends a wait",
                        first,
                    )
                )

    for index, ended_by in flat.waits:
        if ended_by == NEVER:
            unended = (wait for wait in flat.steps[index].waits if not _is_raised(flat, wait))
            counter, value = next(unended)
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


def _is_raised(flat: FlatProgram, wait: Signal) -> bool:
    """Whether some step raises the counter as far as the wait needs it."""
    signals = (signal for step in flat.steps for signal in step.signals)
    return any(s.counter == wait.counter and s.value >= wait.value for s in signals)
