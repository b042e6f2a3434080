"""What ``latecomer whatif`` predicts, against the simulated runtime: the same arrivals, size, link.

    python -m bench.predictions [--steps 12] [--ranks 1024] [--bytes 2GiB] [--bandwidth 25Gbit/s]

Of the three traces in examples/arrivals, the first steps of each, at the trace's own number of
ranks: a step's wait for its last rank, a ring after that (native), and what *now* and the limit of
``whatif`` would save, against what the modes save that the shipped state machines decide in on
simulated hosts. With ``--ranks`` also at so many, to which the simulator resamples a trace; there
``whatif`` has nothing to say but the ceiling, since it extrapolates nothing.

Seconds a step, on average. A mode may save less than *now*: that takes the schedule that is best
for arrivals that are known beforehand, which a mode learns, or is told of only in part.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from latecomer.runtime.policy.options import Mode
from latecomer.runtime.simulation.arrivals import Arrivals, OfTrace, Trace, read
from latecomer.runtime.simulation.cluster import StepWork
from latecomer.runtime.simulation.comparison import Setting, compare
from latecomer.runtime.whatif.gains import Link
from latecomer.runtime.whatif.operations import of_arrivals
from latecomer.runtime.whatif.report import Case, Row, answer
from latecomer.synth.units import parse_bandwidth, parse_bytes

ARRIVALS = Path(__file__).parents[1] / "examples" / "arrivals"
TRACES = ("AR", "SE", "ST")
MODES: tuple[Mode, ...] = ("native", "static", "predict", "eager", "auto")
LATENCY_S = 20e-6


def of_first_steps(trace: Trace, steps: int) -> Trace:
    """The trace with its first steps alone."""
    return msgspec.structs.replace(trace, steps=trace.steps[:steps])


def predicted(trace: Trace, nbytes: int, bandwidth: float) -> Row:
    """What whatif says."""
    case = Case(link=Link(latency_s=LATENCY_S, bandwidth=bandwidth), nbytes=nbytes)
    (row,) = answer(of_arrivals(trace), [case]).rows
    return row


def simulated(trace: Trace, ranks: int, nbytes: int, bandwidth: float) -> dict[str, float]:
    """By mode, what a step saves against native; and native's own time after the last arrival."""

    def arrivals() -> Arrivals:
        return OfTrace(trace, ranks, seed=1)

    setting = Setting(
        arrivals=arrivals,
        latency_s=LATENCY_S,
        bandwidth=bandwidth,
        work=StepWork(nbytes=nbytes),
        steps=len(trace.steps),
        seed=1,
    )
    comparison = compare(setting, MODES)
    native_s = comparison.native.step_s
    saved = {result.mode: native_s - result.step_s for result in comparison.results}
    saved["native"] = native_s - comparison.compute_s - comparison.wait_s
    return saved


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--ranks", type=int, default=1024, help="0: the traces' own alone")
    parser.add_argument("--bytes", default="2GiB")
    parser.add_argument("--bandwidth", default="25Gbit/s")
    options = parser.parse_args()
    nbytes = parse_bytes("--bytes", options.bytes)
    bandwidth = parse_bandwidth("--bandwidth", options.bandwidth)

    print(f"{options.bytes} at {options.bandwidth}, {options.steps} steps; seconds a step")
    print(
        "| trace | ranks | native: whatif | simulated | now: whatif | limit | "
        "static | predict | eager | auto |"
    )
    print("|:--|--:|" + "--:|" * 8)
    for name in TRACES:
        trace = of_first_steps(read(ARRIVALS / f"{name}.json"), options.steps)
        row = predicted(trace, nbytes, bandwidth)
        for ranks in dict.fromkeys((trace.ranks, options.ranks or trace.ranks)):
            saved = simulated(trace, ranks, nbytes, bandwidth)
            is_own = ranks == trace.ranks
            figures = [
                row.native_s if is_own else None,
                saved["native"],
                row.now_s if is_own else None,
                row.limit_s if is_own else None,
                *(saved[mode] for mode in MODES[1:]),
            ]
            cells = ["" if figure is None else f"{figure:.3f}" for figure in figures]
            print(f"| {name} | {ranks} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
