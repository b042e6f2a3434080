"""All pages: links and anchors lead somewhere, blocks are what they say."""

from __future__ import annotations

import json
import pkgutil

import pytest

from tests.docs.pages import BESIDE_CODE, KINDS, ROOT, Page, pages

PAGES = pages()
LANGUAGES = {"", "console", "json", "python", "sh"}
"""``mermaid`` is not among them: the site would load it from elsewhere."""
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def broken(page: Page, target: str) -> str:
    """What is wrong with a link, or an empty string."""
    if "://" in target or target.startswith("mailto:"):
        return ""

    path, _, fragment = target.partition("#")
    file = (page.path.parent / path).resolve() if path else page.path
    if not file.is_file() or not file.is_relative_to(ROOT):
        return f"{target}: no such file"

    if fragment and file.suffix == ".md":
        linked_page = Page(file)
        if ":::" in linked_page.text:  # names of Python, rendered by mkdocstrings
            pkgutil.resolve_name(fragment)
        else:
            headings = linked_page.anchors.count(fragment)
            if headings != 1:
                return f"{target}: {headings} headings have this anchor"
    return ""


BESIDE = [
    Page(path)
    for folder in ("bench", "proofs", "runtime", "synth", "verify")
    for path in sorted((ROOT / folder).rglob("*.md"))
]
"""Pages beside the code, to which those of docs lead: proofs on paper, tables, formats."""


@pytest.mark.parametrize("page", [*PAGES, *BESIDE], ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in page.links:
        assert broken(page, target) == ""


@each_page
def test_a_page_has_one_title_and_a_kind(page):
    first, *other_headings = page.headings
    assert page.text.lstrip().startswith("# ") or page.text.startswith("<!--")
    assert first[0] == 1
    assert all(level > 1 for level, _ in other_headings)
    folders = page.path.relative_to(ROOT).parts[:-1]
    assert folders in {(), ("docs",)} or folders[1] in KINDS or page.path in BESIDE_CODE


@each_page
def test_blocks_are_what_they_say(page):
    for block in page.blocks:
        where = f"{page.name}:{block.line}"
        assert block.language in LANGUAGES, where
        if block.language == "python":
            compile(block.text, where, "exec")
        if block.language == "json" and not block.above.startswith("<!-- not JSON: "):
            json.loads(block.text)


def page_of(tmp_path, text: str) -> Page:
    path = tmp_path / "page.md"
    path.write_text(text)
    return Page(path)


def test_what_is_broken_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr("tests.docs.test_pages.ROOT", tmp_path)
    page = page_of(tmp_path, "# A `b` c\n\n## Twice\n\n## Twice\n")
    assert not broken(page, "page.md#a-b-c")
    assert not broken(page, "#a-b-c")
    assert "no such file" in broken(page, "other.md")
    assert "no such file" in broken(page, "../page.md")
    assert "0 headings" in broken(page, "#d")
    assert "2 headings" in broken(page, "page.md#twice")


def test_words_are_those_of_the_running_text(tmp_path):
    text = (
        "# Two words\n\nA [link of four words](x.md) and `code` - that is all.\n\n"
        "| a | table |\n|--|--|\n\n    k + L - 1\n    more\n\n"
        "```\nnot this\n```\n<!-- nor this -->\n"
    )
    page = page_of(tmp_path, text)
    assert page.words == 2 + 5 + 2 + 3
    assert page.links == ["x.md"]
    assert [block.text for block in page.blocks] == ["not this\n"]
