"""Every sentence of the pages that claims something rests on a row, or on a reason for none."""

from __future__ import annotations

import re

import pytest

from proofs import claims, sentences
from proofs.sentences import Mapping

MAPPING = sentences.read()
TABLE = claims.read()
ROWS = claims.ids(TABLE)
BASIS = {claim["id"]: claim["basis"] for claim in TABLE["claim"] if "id" in claim}
STRAGGLER = sentences.ROOT / "docs/explanation/straggler.md"
PAGES = sorted(str(path.relative_to(sentences.ROOT)) for path in sentences.pages())


@pytest.mark.parametrize("page", PAGES)
def test_every_claim_of_a_page_is_in_a_row(page: str) -> None:
    """``python -m proofs.claims --unmapped`` lists all that are not."""
    text = sentences.text_of(sentences.ROOT / page)
    assert not list(sentences.problems(page, text, MAPPING, ROWS))


def test_docstrings_that_the_api_shows_belong_to_its_page() -> None:
    page = sentences.ROOT / "docs/reference/api/verify.md"
    added = set(sentences.claiming(sentences.text_of(page)))
    added -= set(sentences.claiming(page.read_text()))
    assert "Decide every property of ``schedule``; never raises for a bad schedule." in added
    assert not any(">>>" in sentence for sentence in added)


def test_every_page_that_is_listed_is_there() -> None:
    assert not sentences.all_problems(MAPPING, ROWS)
    more = Mapping(MAPPING.reasons, {**MAPPING.pages, "docs/gone.md": {}})
    assert sentences.all_problems(more, ROWS) == ["docs/gone.md: no such page"]


def test_ids_are_unique_and_every_reason_is_used() -> None:
    named = [claim["id"] for claim in TABLE["claim"] if "id" in claim]
    assert len(named) == len(set(named))
    assert not set(named) & MAPPING.reasons.keys()
    used = {target for page in MAPPING.pages.values() for target in page.values()}
    assert MAPPING.reasons.keys() <= used


PLANTED = [
    "No schedule is faster than ours.",
    "Nothing beats this.",
    "It is proved that time flows backwards.",
    "A rank never waits.",
    "This is optimal for every network, and nothing\nhas fewer rounds.",
    "- An item: it cannot\n  fail.",
    "> A quote that\n> proves too much.",
    "| a cell | guaranteed |",
    "## For all n",
    "| what | when |\n|:--|:--|\n| a sum | is exactly right |",
]


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_claim_is_found(planted: str) -> None:
    text = STRAGGLER.read_text() + f"\n{planted}\n"
    page = str(STRAGGLER.relative_to(sentences.ROOT))
    (problem,) = sentences.problems(page, text, MAPPING, ROWS)
    assert "in no row" in problem


NOT_CLAIMS = [
    "```console\n$ verify a.json\nPROVED, optimal\n```",
    "| proved | optimal |\n|:--|:--|\n| 1 | 2 |",
    "A sentence that says how to install it.",
    "<!-- nothing beats a comment -->",
    "[a page](never/optimal.md)",
]


@pytest.mark.parametrize("planted", NOT_CLAIMS)
def test_what_claims_nothing_is_left_alone(planted: str) -> None:
    assert sentences.claiming(planted) == []


def test_stale_words_and_unknown_rows_are_found() -> None:
    mapping = Mapping({}, {"a.md": {"It never": "no such row", "It always ends": "verify"}})
    problems = list(sentences.problems("a.md", "It never ends.", mapping, {"verify"}))
    assert len(problems) == 2
    assert "neither a row's id nor a reason: no such row" in problems[0]
    assert "no sentence that claims anything has these words: It always ends" in problems[1]


def test_wrapping_a_page_anew_changes_nothing() -> None:
    text = STRAGGLER.read_text()
    paragraph = next(part for part in text.split("\n\n") if "reaches the bound" in part)
    rewrapped = re.sub(r"\s+", "\n", paragraph)
    assert sentences.claiming(text.replace(paragraph, rewrapped)) == sentences.claiming(text)


@pytest.mark.parametrize("page", PAGES)
def test_where_a_claim_is_weaker_than_a_theorem_the_page_says_so(page: str) -> None:
    text = claims.running(sentences.text_of(sentences.ROOT / page))
    for words, target in MAPPING.pages.get(page, {}).items():
        if BASIS.get(target) in ("paper", "solver"):
            assert re.search(claims.WEAK[BASIS[target]], text, re.IGNORECASE), words
