"""Pages are short, and their headings are in order; how words are counted: ``tests.docs.pages``."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.docs.pages import pages

each_page = pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)


@each_page
def test_no_page_is_too_long(page):
    assert page.words <= 2500


@each_page
def test_no_level_of_headings_is_left_out(page):
    levels = [level for level, _ in page.headings]
    assert all(below <= above + 1 for above, below in pairwise(levels))
