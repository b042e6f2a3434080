"""The order of the tests: the longest ones first, so that no worker ends with one of them alone."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked ``slow_first`` come first; all others stay as they were."""
    items.sort(key=lambda item: item.get_closest_marker("slow_first") is None)
