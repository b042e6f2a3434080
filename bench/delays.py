"""Time after the last arrival against how late one rank is, beside what one would do otherwise.

    python -m bench.delays [--plot docs/pictures/delays.svg]
    python -m bench.delays --every 24

Counted, not measured: what each schedule takes after the arrival in units of S*beta (S: bytes of
the buffer, beta: seconds per byte of one direction of a link), latency left out, against the delay
in the same unit. Every schedule of latecomer in the table was proved. Port models: latecomer, ring
and wait-then-complete send and receive one chunk per round; halving-doubling one message of many
chunks to one partner; direct sends to and receives from all others at once (incast n - 1), which
share its port. wait-then-complete is taken at its lower bound.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from latecomer.synth.arrivals.generate import ArrivalsAnswer, search
from latecomer.synth.cost import completion_cost
from latecomer.synth.standard import direct, rhd, ring

SITUATIONS = [(8, 4, 2), (16, 2, 2)]
"""Ranks, chunks per helper, rounds from one delay to the next."""

SEVERAL = [
    (8, {6: 3, 7: 9}, 4),
    (8, {6: 10, 7: 20}, 4),
    (8, {6: 24, 7: 48}, 4),
    (8, {4: 5, 5: 10, 6: 15, 7: 20}, 6),
    (16, {12: 5, 13: 10, 14: 15, 15: 20}, 4),
    (33, {30: 10, 31: 22, 32: 33}, 1),
    (8, {6: 40, 7: 40}, 4),
    (8, {5: 40, 6: 40, 7: 40}, 4),
]
"""Ranks, arrivals, chunks per rank that is on time."""


@dataclass(frozen=True)
class Row:
    """One delay; all times in S*beta."""

    rounds: int
    delay: float
    ours: float
    bound: float
    wait_then_complete: float
    method: str
    note: str


def rows(n: int, m: int, step: int) -> list[Row]:
    """From no delay to beyond the ReduceScatter of the n - 1 others."""
    k = (n - 1) * m
    of_delays = []
    for delay in range(0, (n - 2) * m + 2 * step + 1, step):
        answer = search(n, {n - 1: delay}, m=m)
        row = Row(
            rounds=delay,
            delay=delay / k,
            ours=float(completion_cost(answer.schedule).share),
            bound=max(1.0, (2 - delay / k) * (n - 1) / n),
            wait_then_complete=wait_then_complete(answer),
            method=answer.method,
            note=f", gap {answer.gap}" if answer.schedule.ports == "duplex" else "",
        )
        of_delays.append(row)
    return of_delays


def wait_then_complete(answer: ArrivalsAnswer) -> float:
    """What it takes to wait for the whole ReduceScatter, and then complete, in S*beta."""
    for candidate in answer.candidates:
        if candidate.method == "wait-then-complete":
            return float(candidate.cost.share)
    raise AssertionError


def table(n: int, m: int, of_delays: list[Row]) -> None:
    """Print a Markdown table."""
    standard = {
        make.__name__: float(completion_cost(make(n)).share) for make in (ring, rhd, direct)
    }
    print(f"\nn = {n}, k = {(n - 1) * m} chunks\n")
    print(
        "| delay, rounds | delay | latecomer | limit | wait-then-complete | ring | RHD | direct |"
    )
    print("|--:|--:|--:|--:|--:|--:|--:|--:|")
    standard_cells = " | ".join(f"{share:.3f}" for share in standard.values())
    for row in of_delays:
        print(
            f"| {row.rounds} | {row.delay:.3f} | {row.ours:.3f} ({row.method}{row.note}) "
            f"| {row.bound:.3f} | {row.wait_then_complete:.3f} | {standard_cells} |",
            flush=True,
        )


def several() -> None:
    """Print a Markdown table for several late ranks."""
    print("\nseveral late ranks\n")
    print("| n | k | arrivals | rounds | lower bound | time | ring, RHD | wait-then-complete |")
    print("|--:|--:|:--|--:|--:|--:|--:|--:|")
    for n, arrivals, m in SEVERAL:
        answer = search(n, arrivals, m=m)
        late = ", ".join(f"{rank}: {arrival}" for rank, arrival in arrivals.items())
        ours = float(completion_cost(answer.schedule).share)
        standard = float(completion_cost(ring(n)).share)
        print(
            f"| {n} | {answer.schedule.chunks} | {late} | {answer.report.completion_rounds} "
            f"| {answer.bound} | {ours:.3f} | {standard:.3f} | {wait_then_complete(answer):.3f} |",
            flush=True,
        )


def every(most_ranks: int) -> None:
    """Up to so many ranks, one late by any number of rounds: how far above the lower bound."""
    gaps: Counter[int] = Counter()
    for n in range(2, most_ranks + 1):
        above = []
        for m in (1, 2):
            for delay in range((n - 2) * m + 2):
                answer = search(n, {n - 1: delay}, m=m)
                gap = int(answer.gap) if answer.schedule.ports == "duplex" else 0
                gaps[gap] += 1
                if gap:
                    above.append((m, delay, gap))
        print(f"n = {n}: above (m, delay, gap): {above}; so far {dict(gaps)}", flush=True)


def plot(path: Path, tables: dict[int, list[Row]]) -> None:
    """One panel for each number of ranks."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "latecomer"
    from matplotlib import pyplot as plt

    figure, panels = plt.subplots(1, len(tables), figsize=(10, 3.8), sharey=True)
    for panel, (n, of_delays) in zip(panels, tables.items(), strict=True):
        delays = [row.delay for row in of_delays]
        standard = float(completion_cost(ring(n)).share)
        waiting = [row.wait_then_complete for row in of_delays]
        bounds = [row.bound for row in of_delays]
        ours = [row.ours for row in of_delays]
        panel.axhline(standard, color="tab:gray", label="ring, RHD, direct after the arrival")
        panel.plot(
            delays, waiting, "s--", color="tab:orange", label="wait, then complete (StragglAR)"
        )
        panel.plot(delays, bounds, ":", color="black", label="limit, any k")
        panel.plot(delays, ours, "o-", color="tab:blue", label="latecomer")
        panel.set_title(f"n = {n}")
        panel.set_xlabel("delay of the late rank, S·beta")
    panels[0].set_ylabel("time after its arrival, S·beta")
    panels[0].legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Print the tables; draw them where asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--plot", type=Path, help="an svg file to draw")
    parser.add_argument("--every", type=int, metavar="N", help="only count gaps, up to N ranks")
    options = parser.parse_args()

    if options.every is not None:
        every(options.every)
        return
    tables = {n: rows(n, m, step) for n, m, step in SITUATIONS}
    for n, m, _ in SITUATIONS:
        table(n, m, tables[n])
    several()
    if options.plot is not None:
        plot(options.plot, tables)


if __name__ == "__main__":
    main()
