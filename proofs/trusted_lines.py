"""Count the lines that have to be read and believed, for each way to check a schedule.

    python3 -m proofs.trusted_lines            prints them
    python3 -m proofs.trusted_lines --write    writes them into proofs/lines.md

Blank lines, comments and docstrings are not counted. Of the theories only statements' vocabulary
counts (definitions, without lemmas and their proofs): what is proved need not be believed, but what
the theorems are about must be read. A test compares lines.md with these numbers. Two more see to it
that nothing is left out: every theory with a headline and every module of ``verify`` is either
counted or named below, with the reason why it need not be read.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Set as AbstractSet
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

PAGE = ROOT / "proofs/lines.md"
PICTURE = ROOT / "docs/explanation/trust.md"
"""Its picture says the size of the checker of collectives, too."""
BEGIN = "<!-- rendered from the sources by python -m proofs.trusted_lines --write -->"
END = "<!-- rendered until here -->"

COLLECTIVES = ("Schedule", "Semantics", "Structure", "SameBits", "Bounds")
CLOSED_FORM = ("Corners", "Broadcast", "Tree", "ClosedForm")
DRIVER = ("json", "fields", "numbers", "main", "refute", "pipelines", "cases", "blocks", "devices")
COLLECTIVE_CHECKER = ("latecomer.verify.core.check", "latecomer.verify.core.format")
PIPELINE_CHECKER = (
    "latecomer.verify.pipeline.check",
    "latecomer.verify.pipeline.format",
    "latecomer.verify.pipeline.torch_csv",
    "latecomer.verify.pipeline.simu_txt",
)
THREAD_BLOCK_CHECKER = (
    "latecomer.verify.asynchronous.msccl",
    "latecomer.verify.asynchronous.mscclpp",
    "latecomer.verify.asynchronous.teccl",
)
PROGRAMS = ("model", "sizes", "kernel_model")
MSCCL_READER = ("msccl_xml", "msccl_steps", "msccl_program")
PLAN_READER = (
    *("mscclpp_plan", "mscclpp_operations", "mscclpp_order", "mscclpp_program"),
    *("mscclpp_barriers", "mscclpp_rounds", "mscclpp_doubts"),
)
DEVICE_CHECKER = (
    "latecomer.verify.device.check",
    "latecomer.verify.device.program",
    "latecomer.verify.device.stages",
)
LOSS_CHECKER = ("latecomer.verify.loss.examine",)
HALVES_CHECKER = ("latecomer.verify.halves",)
RENAMING = ("latecomer.verify.renaming",)
SECOND_PROOF = ("latecomer.verify.symbolic",)
COMMAND = ("cli", "running", "families", "options", "additions", "output")
CERTIFICATES = ("formula", "refutation", "check")

THEORIES: dict[str, tuple[tuple[str, ...], str]] = {
    "definitions of collectives": (COLLECTIVES, "A, B, C"),
    "definitions of completions": (("ExactlyOnce",), "A, completions"),
    "definitions of execution": (("Programs", "Waiting"), "A, execution"),
    "definitions of sending ahead": (("SendAhead",), "A, the executor for CPU tensors"),
    "definitions of questions": (("Impossible",), "A, impossibility"),
    "definitions of other bounds": (("Arrivals", "Spread"), "A, arrivals and disjoint pairs"),
    "definitions of pipelines": (("PipelineRun", "Pipeline"), "A, B, pipelines"),
    "definitions of messages": (("PipelineMessages",), "A, pipelines with messages"),
    "the makespan bound": (("PipelineBound",), "A, optimal pipelines"),
    "questions about pipelines": (("PipelineOptimal",), "A, certified pipelines"),
    "what the closed form is": (CLOSED_FORM, "A, the closed form for all n and k"),
    "what renaming is": (("Renaming", "Headline"), "A, any late rank"),
    "definitions of losses": (("Loss",), "A, losses"),
    "definitions of sums of integers": (
        ("SameSums", "SameRounding", "SameTraining"),
        "A, the same bits in every grouping",
    ),
    "definitions of two levels": (("TwoLevel",), "A, machines of two levels"),
    "definitions of any memory": (("AnyMemory",), "A, scratch memory and parts of chunks"),
    "what ring and transpose are": (("NobodyLate", "Ring", "Transpose"), "A, these families"),
    "definitions of thread blocks": (
        ("Asynchronous", "ThreadBlocks", "ThreadBlocksRuns"),
        "A, B, thread blocks",
    ),
    "definitions of pieces, sizes and slices": (
        ("ThreadBlocksPieces", "ThreadBlocksSizes", "ThreadBlocksSlices"),
        "A, thread blocks",
    ),
    "definitions of kernels": (
        ("DeviceOrder", "DeviceBlocks", "DeviceMemory", "DeviceCheck"),
        "A, B, one kernel per rank",
    ),
}
"""What must be read of theories, by what it is: which ones, and for which checks."""

NOT_TO_BE_READ = {
    "Knowledge": "its headlines are about the definitions of collectives, and numbers",
    "Volume": "its headline is about the definitions of collectives, and numbers",
    "Check": "the checker; its headlines are about the definitions of collectives",
    "ThreadBlocksCheck": "the checker; its headlines are about the definitions of thread blocks",
    "Certificate": "what it concludes is said in the definitions of collectives",
    "Formula": "the formula; that it asks the question is proved",
    "Refutation": "the checker of refutations; that it is sound is proved",
    "PipelineCertificate": "the checker of refutations; that it is sound is proved",
}
"""Theories with headlines that need no reading, and why."""

DECIDES_NOTHING = {
    "latecomer.verify": "hands on names",
    "latecomer.verify.__main__": "starts the command",
    "latecomer.verify.certify": "writes a file that Coq checks",
    "latecomer.verify.asynchronous.render": "prints a report",
    "latecomer.verify.loss.command": "prints a report",
    "latecomer.verify.loss.picture": "draws",
    "latecomer.verify.loss.render": "prints a report",
    "latecomer.verify.device.command": "prints a report",
    "latecomer.verify.pipeline.render": "prints a report",
    "latecomer.verify.pipeline.picture": "draws",
    "latecomer.verify.pipeline.measured": "compares measured times with planned ones",
    "latecomer.verify.pipeline.measured_picture": "draws",
    "latecomer.verify.replacing": "keeps files from being lost",
    "latecomer.verify.runs": "words numbers for a printed report",
    "latecomer.verify.report.addition": "prints a report",
    "latecomer.verify.report.svg": "draws",
    "latecomer.verify.report.trace_events": "draws",
    "latecomer.verify.version": "says which version this is",
    "latecomer.verify.viewer": "makes pages",
}
"""Modules of ``verify``, or packages with all that is in them, on which no verdict rests."""

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
    place = ROOT / module.removeprefix("latecomer.").replace(".", "/")
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
    return {name for name in names if name not in sys.stdlib_module_names} - {"latecomer"}


def modules(*roots: str, without: AbstractSet[Path] = frozenset()) -> int:
    """Lines of code in all that these modules import, but for some files."""
    return sum(map(python, closure(*roots) - without))


def readers(*names: str) -> int:
    """Lines of code of modules of ``latecomer.verify.asynchronous``."""
    return sum(python(ROOT / f"verify/asynchronous/{name}.py") for name in names)


def lines() -> list[tuple[int, str, str]]:
    """What proofs/lines.md states: lines, of what, and for which checks."""
    certificates = ROOT / "proofs/certificates"
    common = closure(*COLLECTIVE_CHECKER)
    command = [ROOT / f"verify/{name}.py" for name in COMMAND]
    theories = [(sum(map(theory, names)), name, use) for name, (names, use) in THEORIES.items()]
    programs = [
        (sum(map(ocaml, DRIVER)), "driver in OCaml", "B"),
        (python(ROOT / "verify/kernel.py"), "caller of the extracted checker", "B"),
        (
            sum(python(certificates / f"{name}.py") for name in CERTIFICATES),
            "certificate checker in Python",
            "D",
        ),
        (
            python(certificates / "refutation.py"),
            "refutation checker in Python",
            "D (part of the line above)",
        ),
        (
            python(ROOT / "verify/pipeline/refutation.py"),
            "pipeline refutation checker in Python",
            "F",
        ),
        (modules(*COLLECTIVE_CHECKER), "verify, collectives", "E"),
        (modules(*RENAMING, without=common), "verify, arrays and renaming", "E, other late ranks"),
        (
            modules(*HALVES_CHECKER, without=common),
            "verify, halves",
            "E, reduce-scatters, all-gathers",
        ),
        (modules(*LOSS_CHECKER, without=common), "verify, losses", "E, losses"),
        (modules(*PIPELINE_CHECKER, without=common), "verify, pipelines", "E, pipelines"),
        (
            modules(*THREAD_BLOCK_CHECKER, without=common),
            "verify, thread blocks",
            "E, thread blocks",
        ),
        (readers(*PROGRAMS), "a program, and handing it over (part of the line above)", "H"),
        (readers(*MSCCL_READER), "reader of MSCCL XML (part of it, too)", "H"),
        (readers(*PLAN_READER), "reader of MSCCL++ plans (part of it, too)", "H"),
        (modules(*DEVICE_CHECKER, without=common), "verify, kernels", "E, one kernel per rank"),
        (python(ROOT / "verify/symbolic.py"), "the question to Z3", "Z3"),
        (sum(map(python, command)), "verify, the command", "E, what it prints"),
    ]
    return theories + programs


def counts() -> dict[str, int]:
    """The lines by what they are of."""
    return {name: count for count, name, _ in lines()}


def counted() -> set[Path]:
    """The modules of ``verify`` that are counted."""
    roots = (
        *(*COLLECTIVE_CHECKER, *RENAMING, *LOSS_CHECKER, *PIPELINE_CHECKER, *THREAD_BLOCK_CHECKER),
        *(
            *DEVICE_CHECKER,
            *HALVES_CHECKER,
            *SECOND_PROOF,
            "latecomer.verify.kernel",
            "latecomer.verify.pipeline.refutation",
        ),
    )
    command = {ROOT / f"verify/{name}.py" for name in COMMAND}
    return closure(*roots) | command


def rendered(page: str) -> str:
    """The page with the table of lines made anew."""
    rows = "".join(f"| {count} | {name} | {use} |\n" for count, name, use in lines())
    table = f"{BEGIN}\n\n| lines | | for |\n|--:|:--|:--|\n{rows}\n{END}\n"
    pattern = re.compile(f"{re.escape(BEGIN)}\n.*?{re.escape(END)}\n", re.DOTALL)
    assert len(pattern.findall(page)) == 1
    return pattern.sub(lambda _: table, page)


def drawn(page: str) -> str:
    """The page with the picture, with the size of the checker of collectives made anew."""
    return re.sub(r"\d+ lines of Python", f"{modules(*COLLECTIVE_CHECKER)} lines of Python", page)


def main() -> None:
    """Print the counts, or write them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="write them into the pages")

    if parser.parse_args().write:
        PAGE.write_text(rendered(PAGE.read_text()))
        PICTURE.write_text(drawn(PICTURE.read_text()))
        return
    for name, count in counts().items():
        print(f"{count:6} {name}")


if __name__ == "__main__":
    main()
