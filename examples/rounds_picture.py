"""One operation as a picture: a row per rank, a bar per round, a mark where each rank arrived.

Needs matplotlib (``pip install matplotlib``). Times of different ranks are comparable only
where they read one clock, that is on one machine.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from latecomer import Operation
from latecomer.runtime.telemetry.recorder import Rounds
from latecomer.runtime.telemetry.records import Round


class Timeline(Rounds):
    """Remembers the rounds of watched operations, and when each was entered and had its result."""

    def __init__(self, watched: range = range(0)) -> None:
        super().__init__()
        self.watched = watched
        self.arrived_s: dict[int, float] = {}
        self.done_s: dict[int, float] = {}

    def done(self, operation: Operation) -> None:
        """Remember arrival and completion."""
        self.arrived_s[operation.number] = operation.arrived_s
        self.done_s[operation.number] = operation.done_s


def draw_rounds(
    spans: Sequence[Sequence[Round]],
    arrived_s: Sequence[float],
    done_s: Sequence[float],
    path: str | os.PathLike[str],
    title: str,
) -> None:
    """Write the picture of one operation to ``path`` (.svg, .png, .pdf).

    Args:
        spans: per rank, its rounds.
        arrived_s, done_s: per rank, when it entered the operation and had the result.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    start = min(arrived_s)

    def ms(seconds: float) -> float:
        return (seconds - start) * 1e3

    phases = list(dict.fromkeys(span.phase for rank in spans for span in rank))
    colours = dict(zip(phases, pyplot.get_cmap("tab10").colors, strict=False))  # type: ignore[attr-defined]
    figure, axes = pyplot.subplots(figsize=(11, 0.55 * len(spans) + 1.8))
    for rank, rounds in enumerate(spans):
        for span in rounds:
            left = ms(span.began_s)
            width = (span.ended_s - span.began_s) * 1e3
            axes.barh(
                rank, width, left=left, height=0.62, color=colours[span.phase],
                edgecolor="white", linewidth=0.8, alpha=0.45 + 0.45 * (span.round % 2),
            )  # fmt: skip
        axes.plot(ms(arrived_s[rank]), rank, marker=">", color="black", markersize=7, clip_on=False)
        axes.plot(ms(done_s[rank]), rank, marker="|", color="black", markersize=16)
    last = max(range(len(spans)), key=lambda rank: arrived_s[rank])
    axes.axvline(ms(arrived_s[last]), color="crimson", linestyle="--", linewidth=1)
    axes.set_yticks(range(len(spans)), [f"rank {r}" for r in range(len(spans))])
    axes.invert_yaxis()
    axes.set_xlabel("ms since the first rank arrived")
    axes.set_title(title, loc="left")
    handles = [
        pyplot.Rectangle((0, 0), 1, 1, color=colours[phase], alpha=0.8)  # type: ignore[attr-defined]
        for phase in phases
    ]
    marks = [
        axes.plot([], [], marker=">", color="black", linestyle="")[0],
        axes.plot([], [], marker="|", color="black", linestyle="", markersize=12)[0],
        axes.plot([], [], color="crimson", linestyle="--")[0],
    ]
    texts = [*phases, "arrives", "has the result", f"rank {last} arrives, the last"]
    axes.legend(
        [*handles, *marks], texts, loc="upper center", bbox_to_anchor=(0.5, -0.14),
        ncols=len(texts), frameon=False,
    )  # fmt: skip
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(path, bbox_inches="tight", dpi=130)
    pyplot.close(figure)
