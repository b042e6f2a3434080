"""Count the lines that have to be read and believed, for each way to check a schedule.

    python3 -m proofs.trusted_lines

Blank lines, comments and docstrings are not counted. Of the theories only statements' vocabulary
counts (definitions, without lemmas and their proofs): what is proved need not be believed, but what
the theorems are about must be read. trust.md states these numbers; a test compares them.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

COLLECTIVES = ("Schedule", "Semantics", "Structure", "SameBits", "Bounds")
EXECUTION = ("Programs", "Waiting")
COMPLETIONS = ("ExactlyOnce",)
QUESTIONS = ("Impossible",)
PIPELINES = ("PipelineRun", "Pipeline")
MESSAGES = ("PipelineMessages",)
LOSSES = ("Loss",)
TWO_LEVELS = ("TwoLevel",)
MEMORIES = ("AnyMemory",)
HEADLINE = ("Renaming", "Headline")
STANDARD = ("NobodyLate", "Ring", "Transpose")
CLOSED_FORM = ("Corners", "Broadcast", "Tree", "ClosedForm")
DRIVER = ("json", "fields", "numbers", "main", "refute", "pipelines", "cases")
COLLECTIVE_CHECKER = ("verify.core.check", "verify.core.format")
PIPELINE_CHECKER = (
    "verify.pipeline.check",
    "verify.pipeline.format",
    "verify.pipeline.torch_csv",
)
CERTIFICATES = ("formula", "refutation", "check")

_PROVED = re.compile(
    r"^ *(?:Lemma|Theorem|Corollary|Fact)\b.*?\b(?:Qed|Defined)\.", re.DOTALL | re.MULTILINE
)
_PREAMBLE = re.compile(r"^ *(?:From|Import|Open|Require|Ltac)\b.*?\.$", re.DOTALL | re.MULTILINE)


def _filled(text: str) -> int:
    return sum(bool(line.strip()) for line in text.splitlines())


def _innermost_comments_removed(text: str) -> str:
    previous = None
    while previous != text:
        previous = text
        text = re.sub(r"\(\*(?:(?!\(\*|\*\)).)*\*\)", "", text, flags=re.DOTALL)
    return text


def theory(name: str) -> int:
    """Lines of definitions in one theory, before its proofs begin if it says where."""
    text = (ROOT / f"proofs/coq/{name}.v").read_text().split("(** * Proofs *)")[0]
    text = _innermost_comments_removed(text)
    return _filled(_PREAMBLE.sub("", _PROVED.sub("", text)))


def ocaml(name: str) -> int:
    """Lines of code in one file of the driver."""
    return _filled(_innermost_comments_removed((ROOT / f"proofs/kernel/{name}.ml").read_text()))


def python(path: Path) -> int:
    """Lines of code in one module."""
    tree = ast.parse(path.read_text())
    doc_lines: set[int] = set()
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            assert node.end_lineno is not None
            doc_lines.update(range(node.lineno, node.end_lineno + 1))
    lines = path.read_text().splitlines()
    return sum(
        bool(line.strip()) and not line.lstrip().startswith("#") and number not in doc_lines
        for number, line in enumerate(lines, 1)
    )


def imported(path: Path) -> set[str]:
    """The modules that a file imports, wherever in it."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    assert not any(isinstance(node, ast.ImportFrom) and node.level for node in nodes)
    plain = {name.name for node in nodes if isinstance(node, ast.Import) for name in node.names}
    origins = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    inner = {f"{node.module}.{name.name}" for node in origins for name in node.names}
    return plain | {str(node.module) for node in origins} | {n for n in inner if file_of(n)}


def file_of(module: str) -> Path | None:
    """Where a module of this project is; None for other projects' and for names that are none.

    A package counts where it is itself imported from. (``verify/__init__.py``, which Python runs
    before any module in it, only hands on names.)
    """
    place = ROOT / module.replace(".", "/")
    paths = (place.with_suffix(".py"), place / "__init__.py")
    return next((path for path in paths if path.is_file()), None)


def closure(*modules: str) -> set[Path]:
    """The project's files that these modules import, directly or not, and their own."""
    found: set[Path] = set()
    pending = list(modules)
    while pending:
        path = file_of(pending.pop())
        if path is not None and path not in found:
            found.add(path)
            pending += imported(path)
    return found


def others(*modules: str) -> set[str]:
    """What else is imported by the files of the closure: third parties by their top name."""
    names = {name.split(".")[0] for path in closure(*modules) for name in imported(path)}
    return {name for name in names if name not in sys.stdlib_module_names} - {"verify"}


def counts() -> dict[str, int]:
    """What docs/explanation/trust.md states, by name."""
    certificates = ROOT / "proofs/certificates"
    return {
        "definitions of collectives": sum(map(theory, COLLECTIVES)),
        "definitions of completions": sum(map(theory, COMPLETIONS)),
        "definitions of execution": sum(map(theory, EXECUTION)),
        "definitions of questions": sum(map(theory, QUESTIONS)),
        "definitions of pipelines": sum(map(theory, PIPELINES)),
        "definitions of messages": sum(map(theory, MESSAGES)),
        "the makespan bound": theory("PipelineBound"),
        "questions about pipelines": theory("PipelineOptimal"),
        "what the closed form is": sum(map(theory, CLOSED_FORM)),
        "what renaming is": sum(map(theory, HEADLINE)),
        "definitions of losses": sum(map(theory, LOSSES)),
        "definitions of two levels": sum(map(theory, TWO_LEVELS)),
        "definitions of any memory": sum(map(theory, MEMORIES)),
        "what ring and transpose are": sum(map(theory, STANDARD)),
        "driver in OCaml": sum(map(ocaml, DRIVER)),
        "certificate checker in Python": sum(
            python(certificates / f"{name}.py") for name in CERTIFICATES
        ),
        "refutation checker in Python": python(certificates / "refutation.py"),
        "pipeline refutation checker in Python": python(ROOT / "verify/pipeline/refutation.py"),
        "verify, collectives": sum(map(python, closure(*COLLECTIVE_CHECKER))),
        "verify, pipelines": sum(
            map(python, closure(*PIPELINE_CHECKER) - closure(*COLLECTIVE_CHECKER))
        ),
    }


def main() -> None:
    """Print the counts."""
    for name, lines in counts().items():
        print(f"{lines:6} {name}")


if __name__ == "__main__":
    main()
