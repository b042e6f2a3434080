"""The model of a program of thread blocks: its steps in one run, and who waits for whom.

A step stands as early as it can in a run in which each message takes one unit (messages as coarse
as they get). Where the program deadlocks, at the finest messages that are meant, steps that never
happen stand behind the last that does. A race is two steps whose places here say nothing: that is
what is wrong with them.
"""

from __future__ import annotations

from typing import Any

from latecomer.verify.asynchronous.model import NONE, Step
from latecomer.verify.asynchronous.msccl import FORMAT as MSCCL
from latecomer.verify.asynchronous.msccl_program import IN_PLACE
from latecomer.verify.asynchronous.mscclpp import FORMAT as PLAN
from latecomer.verify.asynchronous.order import NEVER, Events, FlatProgram, Run
from latecomer.verify.asynchronous.render import freedom_in_words, headline, meant_in_words
from latecomer.verify.asynchronous.verdict import AsynchronousReport
from latecomer.verify.core.verdict import Counterexample, Verdict
from latecomer.verify.errors import ArgumentError
from latecomer.verify.viewer.evidence import counterexamples, fault, head
from latecomer.verify.viewer.part import Part
from latecomer.verify.viewer.step_words import words_of

# More than a page can show is refused, with the way to show a part of it.
MOST_STEPS = 20_000
MOST_EVENTS = 400_000
MOST_BLOCKS = 1024

_WHY_OTHERS_RUN = {
    MSCCL: "the executor joins each nop with the step after it, and re after re into one place",
    PLAN: "an operation is one step for each of its channels or areas, nop and flush are none, "
    "and the operations of a pipeline are steps of each round",
}
"""Why the page has another number of steps than the file, by its format."""

HAPPENS = 0
STANDS = 1
NEVER_REACHED = 2
"""Whether a step happens, its block stands at it, or never gets to it; ``blocks.js`` knows these by
number."""


def model(name: str, report: AsynchronousReport, part: Part | None) -> dict[str, Any]:
    """What the page shows of a file of thread blocks; ``part``: the ranks to show, None: all.

    Raises:
        ArgumentError: more than a page can show, or no such ranks.
    """
    flat = FlatProgram(report.shown_program)
    low, high = part.within(report.ranks, "ranks") if part else (0, report.ranks)
    rows = [i for i, block in enumerate(flat.blocks) if low <= block.rank < high]
    rows.sort(key=lambda i: flat.blocks[i].rank)  # a rank's blocks are one group; stable
    steps = sum(len(flat.blocks[i].steps) for i in rows)
    if steps > MOST_STEPS or len(rows) > MOST_BLOCKS:
        raise ArgumentError(
            "--html-part" if part else "--html",
            part.text if part else name,
            f"has {steps:,} steps in {len(rows):,} blocks; a page shows at most {MOST_STEPS:,} "
            f"in {MOST_BLOCKS:,}",
            "Show the blocks of some ranks: --html-part FROM-TO",
        )
    in_words = headline(report)
    if len(flat.steps) != report.steps:
        in_words += f", run as {len(flat.steps):,} steps"
    page = head(name, "blocks", report.verdict, in_words, report.results)
    row_of = {block: row for row, block in enumerate(rows)}
    bars, number = _bars(flat, report, row_of)
    index = {flat.describe(i): number[i] for i in range(len(flat.steps)) if i in number}
    page |= {
        "rows": [{"rank": flat.blocks[i].rank, "block": flat.blocks[i].name} for i in rows],
        "steps": bars,
        "words": words_of(
            (flat.steps[index].text for index in number),
            report.format,
            in_place=report.shown_program.placement == IN_PLACE,
        ),
        "waits": _waits(flat, number),
        "faults": [
            fault(c, **_places(c, flat, index, number))
            for c in counterexamples(report.results.values())
        ],
        "facts": [
            *_steps_in_words(report, len(flat.steps), len(bars)),
            ["sizes", meant_in_words(report)],
            ["deadlock", freedom_in_words(report)],
            *(["executor", limit] for limit in report.limits),
        ],
    }
    if part:
        page["cut"] = f"Shown are the blocks of ranks {low} to {high - 1} of {report.ranks}."
    return page


def _steps_in_words(report: AsynchronousReport, run: int, shown: int) -> list[list[str]]:
    """Why so many steps run, where the file has another number; how many of them are shown."""
    lines = []
    if run != report.steps:
        reason = _WHY_OTHERS_RUN[report.format]
        lines.append(f"The file has {report.steps:,} steps, and {run:,} run: {reason}.")
    if shown != run:
        lines.append(f"{shown:,} of the {run:,} that run are shown, those of these ranks.")
    return [["steps", " ".join(lines)]] if lines else []


def _run(flat: FlatProgram, report: AsynchronousReport) -> Run:
    stuck = report.results["deadlock_free"].verdict is Verdict.REFUTED
    limit = min(report.sizes.finest, flat.largest) if stuck and report.sizes else flat.largest
    events = Events(flat, limit)
    # Messages as coarse as they get are fewer: the page then shows a run at a smaller size.
    if len(events) > MOST_EVENTS:
        events = Events(flat, flat.largest)
    return Run(events, flat.program.slots if stuck else None)


def _bars(
    flat: FlatProgram, report: AsynchronousReport, row_of: dict[int, int]
) -> tuple[list[list[object]], dict[int, int]]:
    """[row, begin, end, state, kind, text] of each step shown, and step -> its place there."""
    run = _run(flat, report)
    events = run.events
    at = _levels(run)
    first = events.first.tolist()
    last = events.last.tolist()
    bars: list[list[object]] = []
    number: dict[int, int] = {}
    for block, row in row_of.items():
        free = 0
        state = HAPPENS
        for index in range(flat.first[block], flat.first[block + 1]):
            step = flat.steps[index]
            if last[index] in at:
                begin = at[first[index]]
                end = at[last[index]] + 1
            else:
                begin = free
                end = free + 1
                state = STANDS if state == HAPPENS else NEVER_REACHED
            number[index] = len(bars)
            bars.append([row, begin, end, state, _kind(step), f"step {step.position}: {step.text}"])
            free = max(free, end)
    return bars, number


def _levels(run: Run) -> dict[int, int]:
    """For each event that happens how many happen before it, one after another."""
    events = run.events
    needs: dict[int, list[int]] = {}
    for before, after in zip(run.before.tolist(), run.after.tolist(), strict=True):
        needs.setdefault(after, []).append(before)
    block = events.block.tolist()
    level = dict[int, int]()
    for event in run.sequence:
        waits = needs.get(event, [])
        if event and block[event] == block[event - 1]:
            waits = [*waits, event - 1]
        level[event] = max((level[wait] + 1 for wait in waits), default=0)
    return level


def _kind(step: Step) -> int:
    """0 waits or signals only, 1 computes or copies, 2 sends, 3 receives, 4 both."""
    sends = step.sends != NONE
    receives = step.receives != NONE
    if sends or receives:
        return 2 * sends + 3 * receives - (sends and receives)
    return int(bool(step.targets))


def _waits(flat: FlatProgram, number: dict[int, int]) -> list[list[int]]:
    """(earlier, later) steps of different blocks: flags, and messages of FIFOs by turn."""
    pairs = [(earlier, later) for later, earlier in flat.waits if earlier != NEVER]
    whole = Events(flat, flat.largest)
    for sent, received in zip(whole.sent, whole.received, strict=True):
        for send, receive in zip(sent.tolist(), received.tolist(), strict=False):
            pairs.append((int(whole.step[send]), int(whole.step[receive])))
    block = flat.block.tolist()
    return [
        [number[a], number[b]]
        for a, b in dict.fromkeys(pairs)
        if a in number and b in number and block[a] != block[b]
    ]


def _places(
    counterexample: Counterexample, flat: FlatProgram, index: dict[str, int], number: dict[int, int]
) -> dict[str, object]:
    """The steps that a counterexample names; per line who waits for whom, where it says so."""
    waits: list[list[int] | None] = []
    for line in counterexample.actions:
        named = [text for text in index if text in line]
        named = [a for a in named if not any(a != b and a in b for b in named)]
        ends = sorted(named, key=line.index)[:2]
        waits.append([index[text] for text in ends] if ends else None)
    faulty = [step for pair in waits if pair for step in pair]
    if not faulty and counterexample.action is not None:
        at = (counterexample.rank, counterexample.position, counterexample.action)
        for i, step in enumerate(flat.steps):
            block = flat.blocks[int(flat.block[i])]
            here = (block.rank, step.position, f"{block.name}: {step.text}")
            if i in number and here == at:
                faulty.append(number[i])
    return {"faulty": list(dict.fromkeys(faulty)), "waits": waits}
