"""The glossary names what is there."""

from __future__ import annotations

import re

import pytest

from tests.docs.pages import DOCS, Page, named

GLOSSARY = Page(DOCS / "glossary.md")
ROWS = re.findall(r"^\| ([^|`]+?) \| (.+) \| (`[^|]+`) \|$", GLOSSARY.text, re.MULTILINE)
NAMES = sorted({name for _, _, cell in ROWS for name in re.findall(r"`([^`]+)`", cell)})


@pytest.mark.parametrize("name", NAMES)
def test_what_the_glossary_names_is_there(name):
    named(name)


def test_every_word_has_a_meaning_and_a_name():
    lines = [line for line in GLOSSARY.text.splitlines() if line.startswith("| ")]
    heads = [line for line in lines if line.startswith("| word |")]
    assert len(ROWS) == len(lines) - len(heads) > 60
    words = [word for words, _, _ in ROWS for word in words.split(", ")]
    assert len(words) == len(set(words))
    assert all(meaning.endswith(".") for _, meaning, _ in ROWS)
