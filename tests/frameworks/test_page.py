"""The how-to pages on frameworks say what the scripts say, which other tests run."""

from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

from tests.frameworks.scripts import FOLDER
from tests.frameworks.test_scripts import PATHS

DOCS = Path(__file__).parents[2] / "docs"
PAGES = *sorted((DOCS / "howto").glob("*.md")), DOCS / "measurements/frameworks.md"
PAGE = "\n".join(path.read_text() for path in PAGES)


def _sections(page: str) -> dict[str, list[str]]:
    """By script, the Python blocks of the section that names it with ``Script:``."""
    blocks = {}
    for section in page.split("\n## ")[1:]:
        if script := re.search(r"^Script: `examples/frameworks/(\w+\.py)`", section, re.MULTILINE):
            blocks[script.group(1)] = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    return blocks


def _missing(sections: dict[str, list[str]], texts: dict[str, str]) -> list[str]:
    """Blocks whose lines don't stand in their script, one after the other."""
    missing = []
    for script, blocks in sections.items():
        text = f"\n{texts[script]}"
        missing += [block for block in blocks if f"\n{block}" not in text]
    return missing


def _texts() -> dict[str, str]:
    return {path.name: path.read_text() for path in FOLDER.glob("*.py")}


def test_every_block_is_in_its_script():
    sections = _sections(PAGE)
    assert sections.keys() == _texts().keys()
    assert all(sections.values())
    assert _missing(sections, _texts()) == []


def test_a_changed_block_is_found():
    changed = PAGE.replace('process_group_backend="latecomer"', 'process_group_backend="x"')
    assert len(_missing(_sections(changed), _texts())) == 2


def test_every_script_says_how_it_is_started():
    for name, text in _texts().items():
        command = f"torchrun --standalone --nproc-per-node 4 examples/frameworks/{name}\n"
        assert command in text
        assert "LATECOMER_MODE=auto" in text


def test_versions_are_those_installed():
    rows = re.findall(r"^\| (\w+)(?: \(CPU\))? \| (\d[\d.]+) \|$", PAGE, re.MULTILINE)
    assert {name for name, _ in rows} >= {"torch", "lightning", "transformers", "deepspeed"}
    for name, version_on_page in rows:
        assert version(name).split("+")[0] == version_on_page


def test_paths_are_those_of_the_tests():
    rows = re.findall(r"^\| `(\w+\.py)` \| (.*) \|$", PAGE, re.MULTILINE)
    paths_on_page: dict[str, dict[str, int]] = {}
    for script, cell in rows:
        counts = re.findall(r"`([^`]+)`: (\d+)", cell)
        paths_on_page[script] = {way: int(count) for way, count in counts}
    assert paths_on_page == PATHS
