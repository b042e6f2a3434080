"""The numbers that keep the house readable, in one table; exit code 1 if one is beyond its limit.

    python -m tests.house

Lines are all lines of Python files, blank ones and comments included, but for the examples that end
docstrings and that the tests run: these are counted apart. A circle is a set of modules
that import each other, however late (imports within functions and for type checking count, too).
The trusted closure is what ``proofs.trusted_lines`` computes from imports.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import networkx as nx

from proofs.trusted_lines import counts

ROOT = Path(__file__).resolve().parents[1]
FLOORS = ("verify", "synth", "runtime")
ELSEWHERE = ("bench", "examples", "proofs", "tests")

OLD_WORDS = {
    "agent, coordinator": r"\b[Dd]esk\b",
    "ack sender": r"\bannouncers?\b",
    "all-reduce dispatcher": r"\breducers?\b",
    "batch reader": r"\bgathering\b",
    "candidates": r"\b(?:Offers|offers|_offer)\b",
    "control plane": r"\bplanes?\b(?<!control plane)(?<!control planes)(?<!data plane)(?<!_plane)",
    "credits": r"\bgrants\b",
    "diagnosis": r"\b[Bb]lam(?:e|es|ed|ing)\b",
    "dissemination bound": r"\bknowledge[ _]bound\b",
    "bandwidth bound": r"\bvolume[ _]bound\b",
    "estimator": r"\b_?expectations?\b",
    "health protocol": r"\b_?boards?\b",
    "instance": r"\bsituations?\b",
    "loss stats": r"\bledgers?\b",
    "outgoing message": r"\bLetter\b",
    "owner hooks": r"\bOutside\b",
    "policy inputs": r"\bKnowledge\b",
    "search, result": r"\b(?:Hunt|Prize|hunt|prize)\b",
    "stage context": r"\b[Ss]urroundings\b",
    "sync point": r"\bcouncils?\b",
    "watchdog": r"\b[Ww]atch(?:man|men)\b",
}
"""The field's word, and what it replaced (as far as a word alone can tell)."""

PUBLIC = re.compile(
    r"""[."](?:reducer|ledger)\b | \bdef\ (?:reducer|ledger)\b | ^\ +ledger: | "situation["."]""",
    re.VERBOSE,
)
"""Names that users type, or that stand in files of theirs: these stay."""

APART = {
    "runtime": ("device", "optireduce/udp/compiled", "telemetry/page"),
    "tests": (
        "docs",
        "frameworks",
        "proofs/test_claims.py",
        "proofs/test_pipeline_certificates.py",
        "runtime/device",
        "runtime/optireduce/compiled",
        "runtime/telemetry_page",
        "synth/export",
        "synth/test_together.py",
        "verify/asynchronous",
        "verify/device",
        "verify/viewer",
    ),
}
"""What came after the limits were set (GPUs, the compiled data path, pages to look at, others'
programs and schedules, certificates for pipelines, late ranks that come together, the docs' site),
and tests of it: counted apart."""


@dataclass(frozen=True)
class Figure:
    """One number of the house; ``limit`` is the most it may be."""

    name: str
    value: int
    limit: int | None = None
    detail: str = ""

    @property
    def holds(self) -> bool:
        """Whether the limit, if there is one, is kept."""
        return self.limit is None or self.value <= self.limit


def modules(*trees: str) -> dict[str, Path]:
    """Every module of ``trees``, by its dotted name."""
    found = {}
    for tree in trees:
        for path in sorted((ROOT / tree).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            found[name.removesuffix(".__init__")] = path
    return found


def imports(name: str, path: Path, known: dict[str, Path]) -> Iterator[str]:
    """Modules of ours that a module imports anywhere in its text."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            targets = [f"{node.module}.{alias.name}" for alias in node.names]
            targets = [t if t in known else node.module for t in targets]
        else:
            continue
        yield from (target for target in targets if target in known and target != name)


def circles() -> list[list[str]]:
    """Sets of modules that import each other."""
    known = modules(*FLOORS, *ELSEWHERE)
    graph = nx.DiGraph()
    for name, path in known.items():
        graph.add_edges_from((name, target) for target in imports(name, path, known))
    return [sorted(c) for c in nx.strongly_connected_components(graph) if len(c) > 1]


def examples(path: Path) -> int:
    """Lines of the examples in a module's docstrings, each from its title on."""
    text = path.read_text()
    own = text.splitlines() if ">>>" in text and path.suffix == ".py" else []
    found = 0
    for node in ast.walk(ast.parse(text)) if own else ():
        if not isinstance(node, ast.ClassDef | ast.FunctionDef):
            continue
        if ">>>" in (ast.get_docstring(node) or ""):
            last = node.body[0].end_lineno or 0
            about = range(node.body[0].lineno, last)
            titles = [at for at in about if own[at - 1].strip() == "Examples:"]
            found += last - titles[0] if titles else 0
    return found


def lines(tree: str, *without: Path) -> int:
    """Lines of a tree's Python files."""
    return sum(
        len(path.read_text().splitlines()) - examples(path)
        for path in ([ROOT / tree] if tree.endswith(".py") else (ROOT / tree).rglob("*.py"))
        if not any(path.is_relative_to(folder) for folder in without)
    )


def entries(folder: str) -> int:
    """Modules and folders in ``folder``, without ``__init__.py`` and ``__main__.py``."""
    return sum(
        path.suffix == ".py" or (path.is_dir() and any(path.rglob("*.py")))
        for path in (ROOT / folder).iterdir()
        if not path.name.startswith("__")
    )


def largest(*trees: str) -> tuple[int, str]:
    """The longest module of ``trees``."""
    sizes = ((lines(str(path.relative_to(ROOT))), name) for name, path in modules(*trees).items())
    return max(sizes)


def old_words() -> dict[str, list[str]]:
    """By the field's word, the places (``file:line``) in code that still have the old one."""
    found: dict[str, list[str]] = {}
    for path in modules(*FLOORS).values():
        for number, text in enumerate(path.read_text().splitlines(), 1):
            line = PUBLIC.sub("", text)
            for word, old in OLD_WORDS.items():
                if re.search(old, line):
                    found.setdefault(word, []).append(f"{path.relative_to(ROOT)}:{number}")
    return found


def private_torch(known: dict[str, Path]) -> list[str]:
    """Imports of torch's private modules and names, outside of ``runtime/torch_versions.py``."""
    found = []
    for name, path in known.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if name != "runtime.torch_versions" and isinstance(node, ast.Import | ast.ImportFrom):
                module = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
                wholes = [f"{module}{alias.name}" for alias in node.names]
                found += [f"{name}: {w}" for w in wholes if re.match(r"torch\..*\b_", w)]
    return found


def figures() -> Iterator[Figure]:
    """All of them."""
    for tree, limit in (("runtime", 12_500), ("tests", 15_500)):
        apart = [path for name in APART[tree] if (path := ROOT / tree / name).exists()]
        yield Figure(f"lines of {tree} (some counted apart)", lines(tree, *apart), limit)
        for path in apart:
            name = str(path.relative_to(ROOT))
            yield Figure(f"lines of {name}", lines(name))
    found = sum(examples(path) for path in modules(*FLOORS).values())
    yield Figure("lines of examples in docstrings", found)
    yield Figure("lines of verify", lines("verify"))
    yield Figure("lines of synth", lines("synth"))
    size, name = largest(*FLOORS)
    yield Figure("lines of the longest module", size, 300, name)
    yield Figure("trusted closure of verify/core", counts()["verify, collectives"], 750)
    for folder in sorted({str(p.parent.relative_to(ROOT)) for p in modules(*FLOORS).values()}):
        yield Figure(f"entries of {folder}", entries(folder), 15 if folder == "runtime" else None)
    rings = circles()
    yield Figure("import circles", len(rings), 0, "; ".join(" <-> ".join(c) for c in rings))
    private = private_torch(modules(*FLOORS))
    yield Figure("private parts of torch elsewhere", len(private), 0, ", ".join(private))
    words = old_words()
    places = [f"{word}: {', '.join(where[:8])}" for word, where in words.items()]
    yield Figure("old words left", sum(map(len, words.values())), 0, "\n  ".join(["", *places]))


def main() -> None:
    """Print the table."""
    broken = False
    for figure in figures():
        limit = "" if figure.limit is None else f"at most {figure.limit:,}"
        mark = "" if figure.holds else "  BROKEN"
        print(f"{figure.name:<40} {figure.value:>7,}   {limit:<15} {figure.detail}{mark}".rstrip())
        broken |= not figure.holds
    sys.exit(broken)


if __name__ == "__main__":
    main()
