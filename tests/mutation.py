"""Do the tests notice a fault of the trusted core? Mutants of ``verify/core``, and how they fare.

    python -m tests.mutation [--each 20] [--seed 1] [core/bits core/bounds ...]
    python -m tests.mutation asynchronous/races asynchronous/order --tests tests/verify/asynchronous

Of every module a random sample of cosmic-ray's mutants is tried, one after the other, on a copy of
the working tree: first by the quick tests of ``tests/verify``, and what survives them by the slow
ones. A mutant that differs in the annotations of functions only is none. Prints each survivor as a
diff, and a table; a survivor is either equivalent or shows a test that is missing.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import importlib
import multiprocessing
import os
import random
import resource
import shutil
import sys
import tempfile
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator, operator_names

ROOT = Path(__file__).resolve().parents[1]
VERIFY = Path("verify")
SLOW = ["tests/verify/test_symbolic.py", "tests/verify/test_hostile.py"]
IMPORTED = ("hypothesis", "msgspec", "numpy", "rich.console", "typer.testing", "z3", "zstandard")
MOST_MEMORY = 8 * 2**30
RESULTS = ("killed", "timeout", "survived")
# Operators with arguments want names of ours; this one can't replace "except (module.Error, ...)".
UNUSABLE = "core/ExceptionReplacer"
OPERATORS = [
    name for name in operator_names() if not get_operator(name).arguments() and name != UNUSABLE
]


class Mutant(NamedTuple):
    """One module with one change."""

    module: str
    operator: str
    code: str


def sample(module: str, size: int, rng: random.Random) -> list[Mutant]:
    """Random mutants of a module, no two of which replace the same operator at the same place."""
    source = (ROOT / VERIFY / f"{module}.py").read_text()
    nodes = list(ast_nodes(get_ast(source)))
    changes = []
    for name in OPERATORS:
        operator = get_operator(name)()
        positions = sum(len(list(operator.mutation_positions(node))) for node in nodes)
        changes += [(name, occurrence) for occurrence in range(positions)]
    rng.shuffle(changes)

    chosen: dict[tuple[str, int], Mutant] = {}
    meanings = {_meaning(source), None}
    for name, occurrence in changes:
        operator_family = name.rsplit("_", 1)[0]
        site = (operator_family, occurrence)
        if site not in chosen:
            code = mutate_code(source, get_operator(name)(), occurrence)
            if code is not None and _meaning(code) not in meanings:
                meanings.add(_meaning(code))
                chosen[site] = Mutant(module, name.removeprefix("core/"), code)
        if len(chosen) == size:
            break
    return list(chosen.values())


def _meaning(source: str) -> str | None:
    """The syntax tree without the annotations of functions; None where there is none."""
    try:
        tree = ast.parse(source)
    except SyntaxError:
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            node.returns = None
        elif isinstance(node, ast.arg):
            node.annotation = None
    return ast.dump(tree)


def tried(copy: Path, mutant: Mutant, number: int, tests: list[str], limit_s: float) -> str:
    """``killed``, ``timeout`` or ``survived``."""
    path = copy / VERIFY / f"{mutant.module}.py"
    original = path.read_text()
    path.write_text(mutant.code)
    os.utime(path, (number, number))  # else Python may take the byte code of the one before
    child = multiprocessing.get_context("fork").Process(target=run_tests, args=(copy, tests))
    try:
        child.start()
        child.join(limit_s)
        if child.is_alive():
            return "timeout"
        return "killed" if child.exitcode else "survived"
    finally:
        child.kill()
        path.write_text(original)


def run_tests(copy: Path, tests: list[str]) -> None:
    """Exit as pytest does; in a process of its own, which has imported what never changes."""
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    ours = [name for name in sys.modules if name.split(".")[0] in ("tests", "latecomer")]
    for name in ours:
        del sys.modules[name]
    os.chdir(copy)
    sys.path[:0] = [str(copy), str(copy / "src")]
    os.environ["PYTHONPATH"] = f"{copy}{os.pathsep}{copy / 'src'}"
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    os._exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", *tests]))


def shown(mutant: Mutant) -> str:
    """What the mutant changes, as a diff."""
    path = VERIFY / f"{mutant.module}.py"
    diff = difflib.unified_diff(
        (ROOT / path).read_text().splitlines(),
        mutant.code.splitlines(),
        fromfile=str(path),
        tofile=mutant.operator,
        n=1,
        lineterm="",
    )
    return "\n".join(diff)


def _options() -> argparse.Namespace:
    """What the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("modules", nargs="*", help="of verify; all of verify/core by default")
    parser.add_argument("--tests", nargs="*", help="the quick ones, where others than those above")
    parser.add_argument("--each", type=int, default=20, help="mutants of a module")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit-s", type=float, default=120, help="for the tests of one mutant")
    return parser.parse_args()


def main() -> None:
    """Run from the command line."""
    options = _options()
    for name in IMPORTED:
        importlib.import_module(name)
    core = sorted(f"core/{path.stem}" for path in (ROOT / VERIFY / "core").glob("[!_]*.py"))
    names = options.modules or core
    mutants = []
    for name in names:
        rng = random.Random(f"{options.seed} {Path(name).name}")
        mutants += sample(name, options.each, rng)

    score = {name: dict.fromkeys(RESULTS, 0) for name in names}
    survivors = _try_all(mutants, score, options)
    for mutant in survivors:
        score[mutant.module]["survived"] += 1
        print(f"\n{shown(mutant)}")

    headings = "".join(f"{result:>10}" for result in RESULTS)
    print(f"\nseed {options.seed}\n{'module':<24}{headings}")
    for name, row in score.items():
        print(f"{name:<24}" + "".join(f"{row[result]:>10}" for result in RESULTS))


def _try_all(
    mutants: list[Mutant], score: dict[str, dict[str, int]], options: argparse.Namespace
) -> list[Mutant]:
    """Try all mutants on a copy of the tree, count those that are noticed, return the others."""
    tests_of_verify = sorted((ROOT / "tests" / "verify").glob("test_*.py"))
    all_tests = [str(path.relative_to(ROOT)) for path in tests_of_verify]
    quick = options.tests or [path for path in all_tests if path not in SLOW]
    module = next(iter(score))
    unchanged = Mutant(module, "none", (ROOT / VERIFY / f"{module}.py").read_text())
    number = count()
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, "tree")
        left_out = shutil.ignore_patterns(".*", "build", "out", "__pycache__")
        shutil.copytree(ROOT, copy, ignore=left_out, symlinks=True)
        if tried(copy, unchanged, next(number), quick + SLOW, 10 * options.limit_s) != "survived":
            sys.exit("the tests fail without any mutant")

        for tests in (quick, SLOW):
            survivors = []
            for mutant in mutants:
                result = tried(copy, mutant, next(number), tests, options.limit_s)
                if result == "survived":
                    survivors.append(mutant)
                else:
                    score[mutant.module][result] += 1
                print(f"{mutant.module} {mutant.operator}: {result}", flush=True)
            mutants = survivors
    return mutants


if __name__ == "__main__":
    main()
