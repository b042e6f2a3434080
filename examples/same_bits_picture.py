"""The loss of some trainings as curves, and how far each is from that in float64."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np


def draw_losses(curves: dict[str, Sequence[float]], exact: Sequence[float], path: Path) -> None:
    """Write the picture to ``path`` (.svg, .png); ``exact``: the loss by step in float64.

    Needs matplotlib (``pip install matplotlib``).
    """
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "latecomer"
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(
        2, 1, figsize=(8, 5.5), sharex=True, height_ratios=[3, 2]
    )
    above.plot(exact, color="black", linewidth=3, alpha=0.25, label="float64")
    for (name, losses), style in zip(curves.items(), ("-", "--"), strict=True):
        (line,) = above.plot(losses, style, linewidth=1.2, label=name)
        differences = np.abs(np.array(losses) - np.array(exact))
        below.semilogy(differences, style, linewidth=1.2, color=line.get_color(), label=name)
    above.set_ylabel("loss")
    below.set_ylabel("off float64's by")
    below.set_xlabel("step")
    above.legend(frameon=False)
    for axes in (above, below):
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
    pyplot.close(figure)
