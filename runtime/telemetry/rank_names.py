"""Ranks as people read them: ``ranks 0-3, 7``."""

from __future__ import annotations

from collections.abc import Iterable

from latecomer.verify.runs import runs_of

MOST_SHOWN = 8  # ranks, or runs of them, that are named one by one
SHORT_RUN = 3  # ranks that follow each other and are still named one by one


def names(ranks: Iterable[int]) -> str:
    """Ranks as people read them: those that follow each other as one, and not hundreds."""
    runs = runs_of(ranks)
    parts: list[str] = []
    for run in runs:
        is_long = len(run) > SHORT_RUN
        parts += [f"{run[0]}-{run[-1]}"] if is_long else list(map(str, run))
    several = "" if len(parts) == 1 and len(runs[0]) == 1 else "s"
    shown = ", ".join(parts[:MOST_SHOWN])
    return f"rank{several} {shown}" + (" and others" if len(parts) > MOST_SHOWN else "")
