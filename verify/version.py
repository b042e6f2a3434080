"""Which version of latecomer this is."""

from __future__ import annotations

import importlib.metadata


def version() -> str:
    """The version of latecomer, or "unknown" where it runs without being installed."""
    try:
        return importlib.metadata.version("latecomer")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
