"""The browser, and a place for pages."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from latecomer.verify.viewer.command import page_of
from tests.verify.viewer.browser import browser, window

__all__ = ["browser", "window"]


@pytest.fixture
def page(tmp_path: Path) -> Callable[[dict[str, Any]], Path]:
    """Writes the page of a model."""

    def write(model: dict[str, Any]) -> Path:
        path = tmp_path / "page.html"
        path.write_text(page_of(model))
        return path

    return write
