"""What the reference pages take from the code is as the code says, and nothing is left out."""

from __future__ import annotations

import inspect
import re

from docs.site.reference import BLOCKS, END, PAGES, programs, rendered, variables
from latecomer.runtime.policy.options import MODES
from latecomer.verify import errors
from tests.docs.pages import DOCS, Page

OPTIONS = Page(DOCS / "reference/options.md")
ERRORS = Page(DOCS / "reference/errors.md")


def test_pages_are_up_to_date():
    """``python -m docs.site.reference --write`` mends it."""
    texts = [page.read_text() for page in PAGES]
    assert [rendered(text) for text in texts] == texts
    assert sum(text.count(END) for text in texts) == len(BLOCKS)


def test_a_stale_page_is_noticed():
    text = next(page for page in PAGES if page.stem == "errors").read_text()
    stale = text.replace("LossExceeded  ", "LossExpected  ")
    assert stale != text
    assert rendered(stale) == text


def test_all_commands_are_there():
    page = Page(DOCS / "reference/commands.md").text
    shown = re.findall(r"^\| `([^`]+)` \| [A-Z]", page, re.MULTILINE)
    assert shown == list(programs())
    assert len(shown) > 14


def test_all_environment_variables_are_there():
    names = re.findall(r"^\| `(LATECOMER_\w+)` \|", OPTIONS.text, re.MULTILINE)
    assert sorted(names) == sorted(variables())


def test_all_modes_are_there():
    row = re.compile(r"^\| `([a-z]+)` \| [^|]+ \| (?:refused|needed) ", re.MULTILINE)
    assert row.findall(OPTIONS.text) == list(MODES)


def test_all_errors_are_there():
    names = [text for level, text in ERRORS.headings if level == 2]
    assert sorted(names) == sorted(errors.__all__)

    _, *sections = re.split(r"^## .*$", ERRORS.text, flags=re.MULTILINE)
    for name, section in zip(names, sections, strict=True):
        assert "*What to do:*" in " ".join(section.split()), name
        for attribute in attributes_of(getattr(errors, name)):
            assert f"`{attribute}`" in section, (name, attribute)


def attributes_of(error: type[Exception]) -> list[str]:
    """What its own ``__init__`` sets, if it has one."""
    own = vars(error).get("__init__")
    if own is None:
        return []
    return re.findall(r"self\.(\w+)", inspect.getsource(own))
