"""The site's own code: navigation, links that leave docs/, and the picture of the README."""

from __future__ import annotations

import runpy

from docs.site.hooks import leaves_docs, navigation
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
