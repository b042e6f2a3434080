"""Pages are short, and have the glossary's words; how words are counted: ``tests.docs.pages``."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from tests.docs.pages import CODE, Page, pages
from tests.house import OLD_WORDS

OTHER_SENSES = {"estimator", "credits"}
"""An expectation is right where statistics are meant, and a receiver grants credit."""
WORDS = {word: old for word, old in OLD_WORDS.items() if word not in OTHER_SENSES}


def old_words(page: Page) -> list[str]:
    """What stands in the running text of a page, and is an older word for something."""
    text = CODE.sub("", page.prose)
    return [
        f"{match[0]}: say {word}" for word, old in WORDS.items() for match in re.finditer(old, text)
    ]


each_page = pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)


@each_page
def test_old_words_are_gone(page):
    assert not old_words(page)


def test_old_words_are_noticed(tmp_path):
    path = tmp_path / "page.md"
    path.write_text("# A page\n\nThe desk has a ledger.\nNot `ledger`.\n")
    assert old_words(Page(path)) == ["desk: say agent, coordinator", "ledger: say loss stats"]


@each_page
def test_no_page_is_too_long(page):
    assert page.words <= 2500


@each_page
def test_no_level_of_headings_is_left_out(page):
    levels = [level for level, _ in page.headings]
    assert all(below <= above + 1 for above, below in pairwise(levels))
