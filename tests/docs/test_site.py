"""The site's own code: navigation, links that leave docs/, and the picture of the README."""

from __future__ import annotations

import runpy

import pytest

from docs.site.hooks import elsewhere, leaves_docs, navigation
from tests.docs.pages import DOCS, KINDS, ROOT


def test_the_picture_is_what_is_drawn_now():
    """``python docs/pictures/straggler.py`` draws it anew."""
    draw = runpy.run_path(str(DOCS / "pictures/straggler.py"))["draw"]
    assert (DOCS / "pictures/straggler.svg").read_text() == draw()


def test_a_page_is_in_the_navigation_because_it_is_there():
    pages = [
        "explanation/auto.md", "explanation/trust.md", "explanation/cost.md", "glossary.md",
        "howto/ddp.md", "index.md", "reference/api/synth.md", "reference/commands.md",
    ]  # fmt: skip
    index = "Read [why](explanation/trust.md), then [what it costs](./explanation/cost.md#model)."
    assert navigation(pages, index) == [
        "index.md",
        {"How-to": ["howto/ddp.md"]},
        {"Explanation": ["explanation/trust.md", "explanation/cost.md", "explanation/auto.md"]},
        {"Reference": ["reference/commands.md", {"API": ["reference/api/synth.md"]}]},
        "glossary.md",
    ]


def test_all_folders_of_docs_are_kinds_or_hold_no_pages():
    folders = {page.relative_to(DOCS).parts[0] for page in DOCS.glob("*/**/*.md")}
    assert folders <= set(KINDS)


def test_links_that_leave_docs_are_told_from_others():
    assert leaves_docs("../../examples/demo.py", "howto/x.md", ROOT) == "examples/demo.py"
    assert leaves_docs("../README.md", "index.md", ROOT) == "README.md"
    assert leaves_docs("../howto/runtime.md", "explanation/x.md", ROOT) is None
    assert leaves_docs("../../examples/none.py", "howto/x.md", ROOT) is None
    assert leaves_docs("../../../elsewhere", "howto/x.md", ROOT) is None


@pytest.mark.parametrize(
    "tag",
    [
        '<script async src="https://example.org/x.js">',
        '<link href="https://example.org/x.css" rel="stylesheet">',
        '<link rel="stylesheet" href="https://example.org/x.css">',
        '<link rel="preconnect" href="https://example.org" crossorigin>',
        "<img alt=x src=//example.org/x.png>",
    ],
)
def test_what_is_loaded_from_elsewhere_is_noticed(tag):
    assert elsewhere(f"<p>{tag}</p>") == [tag]


def test_links_and_own_files_are_not_from_elsewhere():
    html = '<a href="https://example.org">x</a><script src="../x.js"></script>'
    assert not elsewhere(html + '<link rel="stylesheet" href="../x.css">')
