"""What is wrong with a command that a page shows: a program, target or option that is not there.

The commands of ``synth``, ``verify`` and ``python -m runtime`` are parsed by the programs' own
parsers (nothing is executed), torchrun's by torch's; for other modules and scripts of the
repository an option has to stand in the file, and for ``make`` a target in the Makefile.
"""

from __future__ import annotations

import ast
import functools
import re
import shlex
from pathlib import Path
from typing import Any

from docs.site.reference import programs
from tests.docs.pages import ROOT

FOREIGN = {
    "cat", "cd", "coqc", "cp", "curl", "cvc5", "diff", "docker", "echo", "export", "git", "grep",
    "head", "ls", "mkdir", "pip", "scp", "sed", "sh", "sleep", "ssh", "tail", "zstd",
}  # fmt: skip
STANDARD = {"http.server", "json.tool", "timeit", "venv"}
"""Programs and modules of others, whose options are theirs."""
USERS = {"train.py"}
"""What stands for the reader's own script."""
SEPARATORS = {"&&", "||", ";", "|", "&"}


def commands(line: str) -> list[list[str]]:
    """The commands of a shell's line, without assignments before them and redirections."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="&|;<>")
    lexer.whitespace_split = True
    found: list[list[str]] = [[]]
    words = iter(lexer)
    for word in words:
        if word in SEPARATORS:
            found.append([])
        elif set(word) <= {"<", ">"}:
            next(words)
        elif found[-1] or not re.match(r"[A-Z_]+=", word):
            found[-1].append(word)
    return [each for each in found if each]


def problem(words: list[str]) -> str:
    """What is wrong with a command, or an empty string."""
    program, *rest = words
    program = Path(program).name
    if program == "torchrun":
        return _torchrun(rest)
    if program in ("python", "python3"):
        return _python(rest)
    if program == "make":
        return _make(rest)
    if any(name.split()[0] == program for name in programs()):
        return _own(program, rest)
    return "" if program in FOREIGN else f"{program}: no such program is known"


def _own(program: str, rest: list[str]) -> str:
    """A command of ours: parsed as when it is typed, up to what its values have to be."""
    of = {name.removeprefix(program).strip(): each for name, each in programs().items()
          if name == program or name.startswith(f"{program} ")}  # fmt: skip
    if "" not in of:
        if rest in ([], ["--help"], ["-h"]):
            return ""
        if not rest or rest[0] not in of:
            return f"{program}: no command {rest[:1]}"
        command = of[rest[0]]
        rest = rest[1:]
    else:
        command = of[""]
    try:
        command.make_context(program, [word for word in rest if word != "..."])
    except (
        Exception
    ) as error:  # click's UsageError, of which newer versions of typer have their own
        return f"{program}: {getattr(error, 'format_message', error.__repr__)()}"
    return ""


def _python(rest: list[str]) -> str:
    """``python -m MODULE ...`` or ``python FILE ...``."""
    if rest[:2] == ["-m", "runtime"]:
        return _own("python -m runtime", rest[2:])
    if rest[0] in USERS or (rest[0] == "-m" and rest[1] in STANDARD):
        return ""
    if rest[:1] == ["-m"]:
        path = ROOT / rest[1].replace(".", "/")
        places = [path.with_suffix(".py"), path / "__main__.py"]
        rest = rest[1:]
    else:
        places = [ROOT / rest[0]]
    file = next((place for place in places if place.is_file()), None)
    if file is None:
        return f"{rest[0]}: no such module or file"
    return _not_in(file, rest[1:])


def _not_in(file: Path, rest: list[str]) -> str:
    known = _strings(file)
    unknown = [word for word in map(_name, rest) if word.startswith("--") and word not in known]
    return f"{file.name}: has no {', '.join(unknown)}" if unknown else ""


def _name(word: str) -> str:
    return word.partition("=")[0]


@functools.cache
def _strings(file: Path) -> frozenset[str]:
    """The string constants of a file; where it is of typer, also its parameters as options."""
    tree = ast.parse(file.read_text())
    constants = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)}
    parameters = {f"--{n.arg.replace('_', '-')}" for n in ast.walk(tree) if isinstance(n, ast.arg)}
    typed = any(isinstance(n, ast.Import) and n.names[0].name == "typer" for n in ast.walk(tree))
    return frozenset({each for each in constants if isinstance(each, str)}
                     | (parameters if typed else set()) | {"--", "--help"})  # fmt: skip


@functools.cache
def _torchrun_options() -> dict[str, Any]:
    from torch.distributed.run import get_args_parser

    return get_args_parser()._option_string_actions


def _torchrun(rest: list[str]) -> str:
    known = _torchrun_options()
    while rest and (rest[0].startswith("-") or rest[0] == "...") and rest[0] != "-m":
        word, *rest = rest
        if word == "...":
            continue
        if _name(word) not in known:
            return f"torchrun: has no {word}"
        if known[_name(word)].nargs != 0 and "=" not in word:
            rest = rest[1:]
    return "" if rest in ([], ["..."]) else _python(rest)


@functools.cache
def _targets(makefile: Path) -> frozenset[str]:
    return frozenset(re.findall(r"^([\w-]+):", makefile.read_text(), re.MULTILINE))


def _make(rest: list[str]) -> str:
    folder = ROOT
    targets = [word for word in rest if "=" not in word]
    if targets[:1] == ["-C"]:
        folder = ROOT / targets[1]
        targets = targets[2:]
    unknown = set(targets) - _targets(folder / "Makefile")
    return f"make: no target {', '.join(sorted(unknown))}" if unknown else ""
