"""One table of claims (``claims.toml``), and the pages that are rendered from it.

    python -m proofs.claims            are the pages as the table says? exit code 1 if not
    python -m proofs.claims --write    renders them
    python -m proofs.claims --unmapped sentences of the pages that are in no row of the table

What is rendered stands in a page between two comments and is never written by hand. Which sentence
rests on which row: ``sentences.py``.
"""

from __future__ import annotations

import argparse
import re
import sys
import tomllib
from collections.abc import Callable
from os.path import relpath
from pathlib import Path
from typing import Any

from proofs import sentences

ROOT = Path(__file__).resolve().parents[1]
TABLE = ROOT / "proofs/claims.toml"
BEGIN = "<!-- rendered from proofs/claims.toml by python -m proofs.claims --write -->"
END = "<!-- rendered until here -->"

Claims = dict[str, Any]
WEAK = {
    "paper": "on paper",
    "solver": "solver",
    "measured": "measured|tested",
    "assumed": "for granted|taken to",
}
"""What a page must say beside a claim that rests on this: a regular expression."""


def read() -> Claims:
    """The table: ``claim`` and ``table``, each a list."""
    return tomllib.loads(TABLE.read_text())


def ids(table: Claims) -> set[str]:
    """By which ``sentences.toml`` names rows."""
    return {claim["id"] for claim in table["claim"] if "id" in claim}


def running(text: str) -> str:
    """A page's text without line breaks, also those within quotes, to look for words in it."""
    return " ".join(re.sub(r"^[ >]+", "", text, flags=re.MULTILINE).split())


def _row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |\n".replace("|  |", "| |").replace("|  |", "| |")


def _quoted(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _link(page: str) -> str:
    """To a page, from one in proofs."""
    return f"[{Path(page).name}]({relpath(page, 'proofs')})"


def claims(table: Claims) -> str:
    """All claims, for proofs/claims.md."""
    text = _row("claim", "basis", "proved or seen", "by", "to be believed", "check it", "said in")
    text += "|:--|:--|:--|:--|:--|:--|:--|\n"
    for claim in table["claim"]:
        by = "; ".join(filter(None, [claim.get("by"), _quoted(claim.get("theorems", []))]))
        pages = [_link(page) for page in claim.get("said", {}) if not page.endswith("/trust.md")]
        text += _row(
            claim["claim"],
            claim["basis"],
            claim["extent"],
            by or "the proof on the page named last",
            claim["believe"],
            claim.get("check", ""),
            ", ".join(pages),
        )
    return text


def theorems(table: Claims) -> str:
    """All theorems, for proofs/theorems.md."""
    text = ""
    for part in table["table"]:
        text += f"\n## {part['title']}\n" if "title" in part else ""
        text += f"\n{part['intro']}\n" if "intro" in part else ""
        symbols = any("symbols" in theorem for theorem in part["theorem"])
        text += "\n" + _row("theorem", "in words", *(["in symbols"] if symbols else []))
        text += "|:--|:--|:--|\n" if symbols else "|:--|:--|\n"
        for theorem in part["theorem"]:
            last = [theorem.get("symbols", "")] if symbols else []
            text += _row(_quoted(theorem["names"]), theorem["words"], *last)
    return text.lstrip("\n")


def weaker(table: Claims) -> str:
    """The claims that no theorem proves, for proofs/theorems.md."""
    listed = [claim for claim in table["claim"] if claim["basis"] in WEAK]
    return "".join(
        f"- {claim['claim']}: {claim['basis']}"
        + "".join(f", {_link(page)}" for page in claim["said"])
        + "\n"
        for claim in listed
    )


RENDERED: dict[str, tuple[Callable[[Claims], str], ...]] = {
    "proofs/claims.md": (claims,),
    "proofs/theorems.md": (theorems, weaker),
}
"""What stands between the comments of a page, in this order."""


def rendered(page: str, table: Claims) -> str:
    """The whole page with its parts rendered anew."""
    text = (ROOT / page).read_text()
    parts = iter(RENDERED[page])
    pattern = re.compile(f"{re.escape(BEGIN)}\n.*?{re.escape(END)}\n", re.DOTALL)
    assert len(pattern.findall(text)) == len(RENDERED[page]), page
    return pattern.sub(lambda _: f"{BEGIN}\n\n{next(parts)(table)}\n{END}\n", text)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="render the pages")
    parser.add_argument("--unmapped", action="store_true", help="list sentences without a row")
    options = parser.parse_args()
    write = options.write
    table = read()

    if options.unmapped:
        problems = sentences.all_problems(sentences.read(), ids(table))
        print(*problems or ["every sentence that claims anything is in a row"], sep="\n")
        sys.exit(bool(problems))

    stale = [page for page in RENDERED if rendered(page, table) != (ROOT / page).read_text()]
    for page in stale:
        if write:
            (ROOT / page).write_text(rendered(page, table))
        print(f"{page}: {'written' if write else 'is not what proofs/claims.toml says'}")
    sys.exit(bool(stale) and not write)


if __name__ == "__main__":
    main()
