"""What is wrong with a command that a page shows: a program, target or option that is not there.

The commands of ``synth``, ``verify`` and ``latecomer`` are parsed by the programs' own
parsers (nothing is executed), torchrun's by torch's; for other modules and scripts of the
repository an option has to stand in the file, and for ``make`` a target in the Makefile.
"""

from __future__ import annotations

import ast
import functools
import re
import shlex
from collections import deque
from pathlib import Path
from typing import Any

from docs.site.reference import programs
from tests.docs.pages import ROOT

FOREIGN = {
    "cat", "cd", "coqc", "cp", "curl", "cvc5", "diff", "docker", "echo", "export", "git", "grep",
    "head", "kubectl", "ls", "mkdir", "ncclras", "pip", "sbatch", "scp", "sed", "sh", "sleep",
    "ssh", "tail", "tar", "torchft_lighthouse", "zstd",
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
    split: list[list[str]] = [[]]
    words = iter(lexer)
    for word in words:
        command = split[-1]
        if word in SEPARATORS:
            split.append([])
        elif set(word) <= {"<", ">"}:
            next(words)
        elif command or not re.match(r"[A-Z_]+=", word):
            command.append(word)
    return [command for command in split if command]


def problem(words: list[str]) -> str:
    """What is wrong with a command, or an empty string."""
    program = Path(words[0]).name
    arguments = words[1:]
    if program == "torchrun":
        return _torchrun(arguments)
    if program in ("python", "python3"):
        return _python(arguments)
    if program == "make":
        return _make(arguments)
    if program == "latecomer" and arguments and arguments[0] in ("synth", "verify"):
        return _own(arguments[0], arguments[1:])  # it hands them the rest of the line
    if any(name.split()[0] == program for name in programs()):
        return _own(program, arguments)
    if program in FOREIGN:
        return ""
    return f"{program}: no such program is known"


def _own(program: str, arguments: list[str]) -> str:
    """A command of ours: parsed as when it is typed, up to what its values have to be."""
    by_subcommand = {}  # "" for a program without any
    for name, command in programs().items():
        if name == program or name.startswith(f"{program} "):
            by_subcommand[name.removeprefix(program).strip()] = command

    if "" in by_subcommand:
        command = by_subcommand[""]
    else:
        if arguments in ([], ["--help"], ["-h"]):
            return ""
        if not arguments or arguments[0] not in by_subcommand:
            return f"{program}: no command {arguments[:1]}"
        command = by_subcommand[arguments[0]]
        arguments = arguments[1:]

    try:
        command.make_context(program, [word for word in arguments if word != "..."])
    except (
        Exception
    ) as error:  # click's UsageError, of which newer versions of typer have their own
        return f"{program}: {getattr(error, 'format_message', error.__repr__)()}"
    return ""


def _python(arguments: list[str]) -> str:
    """``python -m MODULE ...`` or ``python FILE ...``."""
    if arguments[:2] == ["-m", "latecomer"]:
        return problem(["latecomer", *arguments[2:]])
    if arguments[0] in USERS or (arguments[0] == "-m" and arguments[1] in STANDARD):
        return ""

    if arguments[0] == "-m":
        target = arguments[1]
        options = arguments[2:]
        path = ROOT / target.removeprefix("latecomer.").replace(".", "/")
        files = [path.with_suffix(".py"), path / "__main__.py"]
    else:
        target = arguments[0]
        options = arguments[1:]
        files = [ROOT / target]
    for file in files:
        if file.is_file():
            return _not_in(file, options)
    return f"{target}: no such module or file"


def _not_in(file: Path, arguments: list[str]) -> str:
    options = _strings(file)
    names = [_name(word) for word in arguments]
    unknown = [name for name in names if name.startswith("--") and name not in options]
    if unknown:
        return f"{file.name}: has no {', '.join(unknown)}"
    return ""


def _name(word: str) -> str:
    return word.partition("=")[0]


@functools.cache
def _strings(file: Path) -> frozenset[str]:
    """The string constants of a file; where it is of typer, also its parameters as options.

    A file that takes its parser from another (``parser_of``) has that one's, too.
    """
    strings = {"--", "--help"}
    parameters = set()
    imports_typer = False
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            strings.add(node.value)
        elif isinstance(node, ast.arg):
            parameters.add(f"--{node.arg.replace('_', '-')}")
        elif isinstance(node, ast.Import) and node.names[0].name == "typer":
            imports_typer = True
        elif isinstance(node, ast.ImportFrom) and any(
            alias.name == "parser_of" for alias in node.names
        ):
            strings |= _strings(ROOT / f"{str(node.module).replace('.', '/')}.py")
    if imports_typer:
        strings |= parameters
    return frozenset(strings)


@functools.cache
def _torchrun_options() -> dict[str, Any]:
    from torch.distributed.run import get_args_parser

    return get_args_parser()._option_string_actions


def _torchrun(arguments: list[str]) -> str:
    """Options of torchrun's, then a module or file with its own arguments."""
    options = _torchrun_options()
    words = deque(arguments)
    while words and (words[0].startswith("-") or words[0] == "...") and words[0] != "-m":
        word = words.popleft()
        if word == "...":
            continue
        if _name(word) not in options:
            return f"torchrun: has no {word}"
        takes_value = options[_name(word)].nargs != 0
        if takes_value and "=" not in word and words:
            words.popleft()

    if not words:
        return ""
    return _python(list(words))


@functools.cache
def _targets(makefile: Path) -> frozenset[str]:
    return frozenset(re.findall(r"^([\w-]+):", makefile.read_text(), re.MULTILINE))


def _make(arguments: list[str]) -> str:
    folder = ROOT
    targets = [word for word in arguments if "=" not in word]
    if targets[:1] == ["-C"]:
        folder = ROOT / targets[1]
        targets = targets[2:]
    unknown = set(targets) - _targets(folder / "Makefile")
    if unknown:
        return f"make: no target {', '.join(sorted(unknown))}"
    return ""
