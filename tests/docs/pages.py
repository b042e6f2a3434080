"""A page as the tests see it: code blocks, prose, headings with their anchors, links, words.

An anchor is what both GitHub and the built site make of a heading: lower case, without punctuation,
a hyphen for each space. Words are those of the running text: groups of characters between blanks
with a letter or digit among them. Tables, code blocks, formulas (indented by four columns after an
empty line) and comments are not counted, a link counts as its text.
"""

from __future__ import annotations

import pkgutil
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from docs.site.reference import FLOORS

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
README = ROOT / "README.md"
BESIDE_CODE = (
    ROOT / "bench/lab/README.md",
    ROOT / "runtime/optireduce/udp/PROTOCOL.md",
    *sorted((ROOT / "bench/tables").glob("*.md")),
)
"""Pages for those who read that code, and the tables of the measurements."""
KINDS = ("tutorial", "howto", "explanation", "reference", "measurements")

FENCE = re.compile(r"^( *)(```+)([^\n`]*)\n(.*?)^ *\2 *$", re.MULTILINE | re.DOTALL)
RENDERED = re.compile(r"^::: .*\n(?: +.*\n)*", re.MULTILINE)
COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
CODE = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
LINK = re.compile(r"\]\(\s*([^()\s]+)(?:\s+\"[^\"]*\")?\s*\)")
HEADING = re.compile(r"^(#{1,6}) +(.+?) *#*$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language ("" if it names none), text, first line, and what is above."""

    language: str
    text: str
    line: int
    above: str


@dataclass(frozen=True)
class Page:
    """A Markdown file."""

    path: Path

    @property
    def name(self) -> str:
        """The path in the repository."""
        return self.path.relative_to(ROOT).as_posix()

    @cached_property
    def text(self) -> str:
        """All of it."""
        return self.path.read_text()

    @cached_property
    def blocks(self) -> list[Block]:
        """The fenced blocks, without the indentation that a list gives them."""
        blocks = []
        for match in FENCE.finditer(self.text):
            indent, _, info, body = match.groups()
            lines = [line.removeprefix(indent) for line in body.splitlines()]
            start = self.text.count("\n", 0, match.start()) + 2
            above = self.text[: match.start()].rstrip().rpartition("\n")[2]
            language = info.split()[0] if info.strip() else ""
            blocks.append(Block(language, "\n".join(lines) + "\n", start, above))
        return blocks

    @cached_property
    def prose(self) -> str:
        """The text without blocks, comments, and what mkdocstrings renders."""
        return RENDERED.sub("", COMMENT.sub("", FENCE.sub("", self.text)))

    @cached_property
    def spans(self) -> list[str]:
        """The code within sentences, each on one line."""
        return [" ".join(match[2].split()) for match in CODE.finditer(self.prose)]

    @cached_property
    def headings(self) -> list[tuple[int, str]]:
        """(level, text) in order."""
        return [(len(marks), text) for marks, text in HEADING.findall(self.prose)]

    @cached_property
    def anchors(self) -> list[str]:
        """The anchors of the headings."""
        return [anchor(text) for _, text in self.headings]

    @cached_property
    def links(self) -> list[str]:
        """Targets of links and pictures."""
        return LINK.findall(CODE.sub("", self.prose))

    @cached_property
    def words(self) -> int:
        """How many there are in the running text."""
        running = []
        before = ""
        for line in self.prose.splitlines():
            begins_formula = not before.strip() or before == "formula"
            in_formula = line.startswith("    ") and begins_formula
            in_table = line.lstrip().startswith("|")
            if not in_table and not in_formula:
                running.append(line)
            before = "formula" if in_formula else line

        text = LINK.sub("]", "\n".join(running))
        return sum(is_word(characters) for characters in text.split())


def is_word(characters: str) -> bool:
    """Whether a letter or digit is among them."""
    return any(character.isalnum() for character in characters)


def anchor(heading: str) -> str:
    """The anchor of a heading."""
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")


def named(name: str) -> Any:
    """What a page names; parts of latecomer stand there without ``latecomer.`` before them."""
    is_ours = name.partition(".")[0] in FLOORS
    return pkgutil.resolve_name(f"latecomer.{name}" if is_ours else name)


def pages() -> list[Page]:
    """README.md, all pages of docs/, and those beside the code."""
    return [Page(path) for path in (README, *sorted(DOCS.rglob("*.md")), *BESIDE_CODE)]
