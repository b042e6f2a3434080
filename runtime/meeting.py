"""What ranks tell each other through the store, each once, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Iterable
from datetime import timedelta

from runtime.torch_versions import Store
from verify.errors import RankFailure


def hear(store: Store, keys: dict[int, str], timeout_s: float) -> dict[int, str]:
    """By rank, what it has set under its key; ranks that have not in time are missing."""
    until_s = time.monotonic() + timeout_s
    told = {}
    for rank, key in keys.items():
        left_s = max(0.01, until_s - time.monotonic())
        try:
            store.wait([key], timedelta(seconds=left_s))
        except RuntimeError:
            continue
        told[rank] = store.get(key).decode()
    return told


def tell_all(
    store: Store, key: str, rank: int, size: int, said: str, timeout_s: float
) -> dict[int, str]:
    """Say something under ``key`` and hear what the others say; the absent are missing."""
    store.set(f"{key}/{rank}", said)
    return hear(store, {peer: f"{key}/{peer}" for peer in range(size)}, timeout_s)


def require_all(told: Iterable[int], ranks: Iterable[int], timeout_s: float) -> None:
    """Raise RankFailure for those of ``ranks`` that have not told."""
    if absent := sorted(set(ranks) - set(told)):
        names = ", ".join(map(str, absent))
        raise RankFailure(absent, f"rank(s) {names}: did not join within {timeout_s:g} s")
