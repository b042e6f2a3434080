"""The browser of the pages."""

from tests.verify.viewer.browser import browser, window

__all__ = ["browser", "window"]
