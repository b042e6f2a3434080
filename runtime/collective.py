"""The collectives that this runtime runs by schedules; what it does not know stays torch's."""

from __future__ import annotations

from typing import Literal, get_args

Collective = Literal["all_reduce", "reduce_scatter", "all_gather"]
COLLECTIVES: tuple[Collective, ...] = get_args(Collective)
ALL_REDUCE: Collective = "all_reduce"
