"""All that is public has its place in the API reference and an example; every example is true.

Public is what a module names in ``__all__``, and what else the pages in docs/reference/api show. An
example is in a function's own docstring, or in that of the package that exports it; a class may
also be named in the example of a function that takes or makes it; errors have one for all. An
example that starts a process group stands on two ranks, as under ``torchrun``.
"""

from __future__ import annotations

import ast
import doctest
import importlib
import importlib.util
import inspect
import os
import re
from pathlib import Path

import pytest

from docs.site.reference import FLOORS
from tests.runtime.spawning import on_ranks

ROOT = Path(__file__).resolve().parents[2]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
ENVIRONMENT = {"TORCHELASTIC_USE_AGENT_STORE": "True"}  # torchrun's: its store is there already


def _modules():
    for package in FLOORS:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(("latecomer", *parts))
            if _is_here(name):
                yield name.removesuffix(".__init__"), path.read_text()


def _is_here(name):
    """Whether what a module imports is there: torchft has wheels for some machines only."""
    needs_torchft = name.startswith(("latecomer.torchft", "latecomer.runtime.torchft"))
    return not needs_torchft or importlib.util.find_spec("torchft") is not None


def _documented(name, node):
    yield name, ast.get_docstring(node) or ""
    for inner in node.body:
        if isinstance(inner, ast.FunctionDef | ast.ClassDef):
            yield from _documented(f"{name}.{inner.name}", inner)


def _parsed(name, text):
    return doctest.DocTestParser().get_doctest(text, {"__name__": "__main__"}, name, name, 0)


def _examples():
    """The examples of a docstring, by the name of what it is of."""
    examples = {}
    for module, source in _modules():
        if ">>> " in source:
            for name, text in _documented(module, ast.parse(source)):
                if ">>> " in text:
                    examples[name] = _parsed(name, text)
    return examples


def _text_of(test):
    return "".join(example.source + example.want for example in test.examples)


EXAMPLES = _examples()
TEXTS = {name: _text_of(test) for name, test in EXAMPLES.items()}
RANKED = sorted(name for name, text in TEXTS.items() if "init_process_group" in text)
SHOWN = sorted(
    name
    for page in (ROOT / "docs/reference/api").glob("*.md")
    for name in re.findall(r"^::: (\S+)", page.read_text(), re.MULTILINE)
    if _is_here(name)
)


def _exported():
    for module, source in _modules():
        match = re.search(r"^__all__ = (\[.*?\])", source, re.DOTALL | re.MULTILINE)
        if match is not None:
            for name in ast.literal_eval(match[1]):
                yield f"{module}.{name}"


def _resolved(name):
    """The object of that name. Where a module has it too, the object comes first."""
    home, _, last = name.rpartition(".")
    owner = importlib.import_module(home) if home else None
    return getattr(owner, last, None) or importlib.import_module(name)


def _needs_example(name):
    resolved = _resolved(name)
    if inspect.isclass(resolved):
        return not issubclass(resolved, Exception)
    return inspect.isroutine(resolved)


def _has_example(name):
    resolved = _resolved(name)
    own = f"{resolved.__module__}.{resolved.__qualname__}"
    if any(documented == own or documented.startswith(f"{own}.") for documented in TEXTS):
        return True

    home, _, last = name.rpartition(".")
    texts = TEXTS.values() if inspect.isclass(resolved) else [TEXTS.get(home, "")]
    mentioned = re.compile(rf"\b{last}\b")
    return any(mentioned.search(text) for text in texts)


def _lacking(names):
    return [name for name in names if _needs_example(name) and not _has_example(name)]


def _unlisted(names):
    listed = {id(_resolved(name)) for name in SHOWN}
    return [name for name in names if _needs_example(name) and id(_resolved(name)) not in listed]


def _hold(test):
    complaints = []
    doctest.DocTestRunner(optionflags=FLAGS).run(test, out=complaints.append)
    assert not complaints, "".join(complaints)


@pytest.mark.parametrize("name", sorted(set(EXAMPLES) - set(RANKED)))
def test_example(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    _hold(EXAMPLES[name])


@pytest.mark.parametrize("name", RANKED)
@on_ranks(2)
def test_example_on_ranks(rank, world_size, store, name, tmp_path):
    os.environ |= ENVIRONMENT
    os.environ["MASTER_ADDR"] = store.host
    os.environ["MASTER_PORT"] = str(store.port)
    os.environ["RANK"] = str(rank)
    os.environ["WORLD_SIZE"] = str(world_size)
    os.chdir(tmp_path)
    _hold(EXAMPLES[name])


def test_all_that_is_public_is_on_a_page_and_has_an_example():
    assert _unlisted(_exported()) == []
    assert _lacking([*_exported(), *SHOWN]) == []


def test_what_is_missing_or_wrong_is_noticed():
    judge = "latecomer.verify.kernel.judge"
    assert _unlisted([judge, "latecomer.verify.kernel.PROGRAM", "latecomer.verify.check"]) == [
        judge
    ]
    assert _lacking([judge, "latecomer.verify.kernel.PROGRAM", "latecomer.verify.check"]) == [judge]
    with pytest.raises(AssertionError, match=r"Expected:\s+3\s+Got:\s+2"):
        _hold(_parsed("wrong", ">>> 1 + 1\n3\n"))
    with pytest.raises(AssertionError, match="NameError"):
        _hold(_parsed("not imported", ">>> latecomer.verify.check\n"))
