"""Every sentence of the pages that claims something, and the row of the table that it rests on.

``claims.toml`` goes from the table to the pages; this goes the other way. A sentence with one of
the words of :data:`CLAIMS` is taken to claim something. In ``sentences.toml`` a few words of it
must stand under its page, with the row of ``claims.toml`` (its ``id``) that it rests on, or with
the reason (a key of ``reasons``) why it claims nothing that needs a row.

    python -m proofs.claims --unmapped     lists sentences that are in no row, and what is stale

Sentences are put together across line breaks and without the targets of links, so that a paragraph
may be wrapped anew. Blocks of code and output, headers of tables and what is rendered from
``claims.toml`` are left out. To a page of the API belong the docstrings that it shows, without
their examples.
"""

from __future__ import annotations

import inspect
import pkgutil
import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MAPPING = ROOT / "proofs/sentences.toml"

CLAIMS = re.compile(
    r"""\b(?:
        proved | proves | optimal(?:ity)? | optimum | theorems? | guarantee(?:s|d)? |
        never | impossible | cannot | can't | exactly | (?:is|are)\ exact |
        nothing\ (?:can|could|beats|is\ (?:faster|shorter|better|counted)|has\ fewer) |
        for\ (?:every|all\ n|any\ n) | every\ (?:number|n)\b | whatever\ n\b |
        at\ (?:the|its|their|a)\ (?:lower\ )?bound | fewest |
        no\ deadlock | free\ of\ deadlock | (?:deadlock|race)\ free |
        (?:neither|interleaving)\ hangs |
        no\ (?:[\w*]+\ )?(?:AllReduce|schedule|tree|order|timing|method|interleaving)
    )\b""",
    re.IGNORECASE | re.VERBOSE,
)
"""Words that make a sentence one that claims something about what always or never happens."""

_RENDERED = re.compile(r"<!-- rendered from.*?<!-- rendered until here -->", re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_CODE = re.compile(r"^( *)(```+|~~~+).*?^ *\2 *$", re.DOTALL | re.MULTILINE)
_TABLE_HEADER = re.compile(r"^\|.*\|\n(?=\|[ :|-]+\|$)", re.MULTILINE)
_TABLE_RULE = re.compile(r"^\|[ :|-]+\|$", re.MULTILINE)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_SHOWN = re.compile(r"^::: ([\w.]+)", re.MULTILINE)
_EXAMPLES = re.compile(r"^ *Examples?:\n(?:(?: .*)?\n)*", re.MULTILINE)
_ENTRY = re.compile(r"^(?=(?: *[A-Z]\w+:$)|(?: +[\w, ]+: ))", re.MULTILINE)
_STARTS_BLOCK = re.compile(r"#+ |[-*+] |\d+\. |\||> ")
_SENTENCE_END = re.compile(r"""(?<=[.!?])["*)_]*\s+(?=["*(`A-Z0-9=])""")


def pages() -> list[Path]:
    """README, all pages of the documentation, and the pages beside the proofs."""
    folders = ROOT / "docs", ROOT / "proofs"
    return [ROOT / "README.md", *(page for each in folders for page in sorted(each.rglob("*.md")))]


def _docstrings(name: str) -> Iterator[str]:
    """The docstring of what is called so and, of a class, of those public methods that are ours."""
    shown = pkgutil.resolve_name(name)
    objects = [shown]
    if inspect.isclass(shown):
        methods = inspect.getmembers(shown, inspect.isfunction)
        objects += [
            method
            for other, method in methods
            if not other.startswith("_") and method.__module__.startswith("latecomer.")
        ]

    for each in objects:
        text = _EXAMPLES.sub("", f"{inspect.getdoc(each) or ''}\n")
        yield _ENTRY.sub("\n", text)  # an argument, attribute or error is a block of its own


def text_of(path: Path) -> str:
    """A page, with the docstrings that it shows."""
    text = path.read_text()
    docstrings = [doc for name in _SHOWN.findall(text) for doc in _docstrings(name)]
    return "\n\n".join([text, *docstrings])


def _blocks(text: str) -> Iterator[str]:
    """Paragraphs, items of lists, rows of tables and headings, each without line breaks."""
    for pattern in (_RENDERED, _COMMENT, _CODE, _TABLE_HEADER, _TABLE_RULE):
        text = pattern.sub("", text)

    lines: list[str] = []
    for line in [*text.splitlines(), ""]:
        stripped = line.strip()
        is_row = stripped.startswith(("|", "#"))

        if lines and (not stripped or _STARTS_BLOCK.match(stripped)):
            yield " ".join(lines)
            lines = []
        if stripped:
            lines.append(re.sub(r"^(?:#+|[-*+]|\d+\.|>) ", "", stripped))
        if is_row:
            yield " ".join(lines)
            lines = []


def sentences(text: str) -> list[str]:
    """The sentences of a page, in order; a row of a table and a heading count as one."""
    return [
        " ".join(sentence.split())
        for block in _blocks(text)
        for sentence in _SENTENCE_END.split(_LINK.sub(r"\1", block).replace("**", ""))
    ]


def claiming(text: str) -> list[str]:
    """Those of them that claim something."""
    return [sentence for sentence in sentences(text) if CLAIMS.search(sentence)]


@dataclass(frozen=True)
class Mapping:
    """What ``sentences.toml`` says.

    Attributes:
        reasons: key -> why sentences of this kind need no row.
        pages: page -> words of a sentence -> the id of a row, or a reason.
    """

    reasons: dict[str, str]
    pages: dict[str, dict[str, str]]


def read(path: Path = MAPPING) -> Mapping:
    """Read the file."""
    table = tomllib.loads(path.read_text())
    return Mapping(table.pop("reasons"), table)


def problems(page: str, text: str, of: Mapping, rows: set[str]) -> Iterator[str]:
    """What is wrong with a page: sentences without a row, words in no sentence, unknown rows."""
    known = of.pages.get(page, {})
    found = claiming(text)

    for sentence in found:
        if not any(words in sentence for words in known):
            yield f"{page}: in no row: {sentence}"

    for words, target in known.items():
        if not any(words in sentence for sentence in found):
            yield f"{page}: no sentence that claims anything has these words: {words}"
        if target not in rows and target not in of.reasons:
            yield f"{page}: neither a row's id nor a reason: {target}"


def all_problems(of: Mapping, rows: set[str]) -> list[str]:
    """The same of all pages, and of pages that are not there."""
    texts = {str(path.relative_to(ROOT)): text_of(path) for path in pages()}
    listed = [problem for page in texts for problem in problems(page, texts[page], of, rows)]
    return listed + [f"{page}: no such page" for page in of.pages if page not in texts]
