"""docs/architecture.md names modules, classes and functions; every one of them is there."""

import importlib
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[1] / "docs/architecture.md"
NAME = re.compile(r"`((?:verify|synth|runtime|proofs|tests)(?:\.\w+)+)`")


def exists(name):
    """Whether ``name`` is a module, or something in one."""
    module, _, rest = name.rpartition(".")
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        return bool(module) and exists(module) and rest in vars(_object(module))
    return True


def _object(name):
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        module, _, rest = name.rpartition(".")
        return getattr(_object(module), rest)


@pytest.mark.parametrize("name", sorted(set(NAME.findall(PAGE.read_text()))))
def test_what_the_page_names_is_there(name):
    assert exists(name)


def test_a_name_that_is_not_there_is_noticed():
    assert not exists("runtime.executor.executor.Executor.subnit")
    assert not exists("runtime.executer")
    assert exists("runtime.executor.executor.Executor.submit")


def test_the_four_ways_are_about_twenty_lines_each():
    ways = re.split(r"^## ", PAGE.read_text(), flags=re.MULTILINE)
    lengths = {w.split("\n", 1)[0]: len(w.strip().splitlines()) for w in ways if "way of" in w[:12]}
    assert len(lengths) == 4
    assert all(length <= 28 for length in lengths.values()), lengths
