"""What the reference pages take from the code: commands, options, environment variables, errors.

    python -m docs.site.reference            are the pages as the code says? exit code 1 if not
    python -m docs.site.reference --write    renders them

What is rendered stands in a page between two comments and is never written by hand.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import re
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FLOORS = ("verify", "synth", "runtime")
BEGIN = "<!-- rendered ({}) by python -m docs.site.reference --write -->\n"
END = "<!-- rendered until here -->"


@functools.cache
def programs() -> dict[str, Any]:
    """Every command (of click) by what is typed, as ``synth generate``."""
    from typer.main import get_command

    from latecomer.command import app as latecomer
    from latecomer.synth.cli import app as synth
    from latecomer.verify.cli import app as verify

    found = {}
    for name, app in (("synth", synth), ("verify", verify), ("latecomer", latecomer)):
        command = get_command(app)
        below = getattr(command, "commands", None)
        found |= {f"{name} {each}": of for each, of in below.items()} if below else {name: command}
    return found


def _cell(text: object) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", " ".join(str(text).split()))


def _row(*cells: object) -> str:
    return "|" + "|".join(f" {_cell(cell)} " if _cell(cell) else " " for cell in cells) + "|\n"


def _table(*heads: str) -> str:
    return _row(*heads) + "|" + ":--|" * len(heads) + "\n"


def _paragraphs(command: Any) -> list[str]:
    """The paragraphs of a command's help."""
    text = re.sub(r"(?m)^ *\[(?!\.)[a-z]+\]", "", inspect.cleandoc(command.help or ""))
    return re.split(r"\n\s*\n", text.replace("\b\n", "").strip())


def examples() -> list[str]:
    """The commands that the help of all programs shows."""
    return [
        line.strip()
        for command in programs().values()
        for paragraph in _paragraphs(command)
        if paragraph.startswith("Examples:\n")
        for line in paragraph.splitlines()[1:]
    ]


def commands(program: str) -> str:
    """The commands of a program, and the first paragraph of each one's help."""
    rows = [
        _row(f"`{name}`", _paragraphs(command)[0])
        for name, command in programs().items()
        if name == program or name.startswith(f"{program} ")
    ]
    return _table("command", "does") + "".join(rows)


def _comments(of: type) -> dict[str, str]:
    """What a dataclass's source says beside each field."""
    found = {}
    for line in inspect.getsource(of).splitlines():
        if match := re.match(r"    (\w+): .*?  # (.+)", line):
            found[match[1]] = match[2]
    return found


def fields(of: type, names: tuple[str, ...] = ()) -> str:
    """The options of a dataclass (all, or those named): ranges, and the comments beside them."""
    beside = _comments(of)
    rows = []
    for field in dataclasses.fields(of):
        if names and field.name not in names:
            continue
        default = getattr(field.default, "__name__", field.default)
        shown = "" if field.default is dataclasses.MISSING else f"`{default}`"
        ends = field.metadata.get("range")
        span = f"{ends[0]:,} to {ends[1]:,}" if ends else ""
        rows.append(_row(f"`{field.name}`", shown, span, _markdown(beside.get(field.name, ""))))
    return _table("option", "default", "range", "why") + "".join(rows)


def arguments() -> str:
    """What ``latecomer.configure`` says of its arguments."""
    from latecomer import runtime

    text = inspect.getdoc(runtime.configure) or ""
    block = text.split("Args:\n")[1].split("\n\n")[0]
    found = re.findall(r"^    (\w+): (.*(?:\n     .*)*)", block, re.MULTILINE)
    rows = [_row(f"`{name}`", _markdown(says)) for name, says in found]
    return _table("argument", "what it is") + "".join(rows)


def _markdown(docstring: str) -> str:
    """References and literals of a docstring as code."""
    return re.sub(r":\w+:`~?([\w.]+)`", r"`\1`", docstring).replace("``", "`")


OPTIREDUCE = ("datagram_bytes", "authenticate", "bound_factor", "absence_s", "resync_steps")
"""What a job may need to set; the others are on the page of the protocol."""


def _optireduce(names: tuple[str, ...] = ()) -> str:
    from latecomer.runtime.optireduce.options import Options

    return fields(Options, names)


def _adaptation() -> str:
    from latecomer.runtime.pipeline.agent import Adaptation
    from latecomer.runtime.pipeline.detector import Sensitivity

    return f"{fields(Adaptation)}\n`Sensitivity`:\n\n{fields(Sensitivity)}"


def variables() -> dict[str, list[str]]:
    """The environment variables of our own, and the modules whose code names each."""
    found: dict[str, list[str]] = {}
    for floor in FLOORS:
        for path in sorted((ROOT / floor).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Constant) and re.fullmatch(
                    r"LATECOMER_[A-Z]+", str(node.value)
                ):
                    found.setdefault(str(node.value), []).append(name.removesuffix(".__init__"))
    return {variable: sorted(set(where)) for variable, where in sorted(found.items())}


def errors() -> str:
    """The tree of errors, as :mod:`latecomer.verify.errors` draws it."""
    from latecomer.verify import errors as every_error

    tree = (every_error.__doc__ or "").split("\n\n")[1].replace("``", "")
    return f"```\n{textwrap.dedent(tree)}\n```\n"


BLOCKS: dict[str, Callable[[], str]] = {
    "synth": lambda: commands("synth"),
    "verify": lambda: commands("verify"),
    "latecomer": lambda: commands("latecomer"),
    "configure": arguments,
    "optireduce, some": lambda: _optireduce(OPTIREDUCE),
    "optireduce": _optireduce,
    "adaptation": _adaptation,
    "errors": errors,
}
PAGES = [
    *(ROOT / f"docs/reference/{name}.md" for name in ("commands", "options", "errors")),
    ROOT / "runtime/optireduce/udp/PROTOCOL.md",
]


def rendered(text: str) -> str:
    """A page with what is rendered in it made anew."""
    for name, block in BLOCKS.items():
        begin = BEGIN.format(name)
        before, found, rest = text.partition(begin)
        if found:
            text = f"{before}{begin}\n{block()}\n{END}{rest.partition(END)[2]}"
    return text


def main() -> None:
    """Compare, or write."""
    stale = [page for page in PAGES if rendered(page.read_text()) != page.read_text()]
    for page in stale:
        if "--write" in sys.argv:
            page.write_text(rendered(page.read_text()))
        print(f"{'written' if '--write' in sys.argv else 'stale'}: {page.relative_to(ROOT)}")
    sys.exit(bool(stale) and "--write" not in sys.argv)


if __name__ == "__main__":
    main()
