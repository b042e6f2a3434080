"""The pages tell the truth: the README's commands and the demo work, names are there."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.docs.pages import named
from tests.runtime.spawning import execute

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def _blocks(language, page=README):
    blocks = re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)
    assert blocks
    return blocks


@pytest.mark.docs_commands
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("page", ["README.md", "docs/howto/schedules.md"])
def test_commands(page, tmp_path):
    blocks = _blocks("console", (ROOT / page).read_text())
    commands = [line[2:] for block in blocks for line in block.splitlines() if line[:2] == "$ "]
    assert len(commands) in (4, 5) or page != "README.md"
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for command in commands:
        result = execute("sh", "-c", command, cwd=tmp_path)
        assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
        assert "Traceback" not in result.stderr


def test_the_readme_is_read_in_one_go():
    assert len(README.splitlines()) <= 120


@pytest.mark.docs_commands
def test_demo_with_four_ranks(tmp_path):
    demo = [sys.executable, ROOT / "examples" / "demo.py", "--out", tmp_path]
    shorter = ["--ranks", "4", "--late", "1", "--epochs", "2", "--delay-ms", "80"]
    result = execute(*demo, *shorter, cwd=tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
    for text in (
        "PROVED",
        "epoch 2: loss",
        "test accuracy",
        "equal bit for bit on all ranks",
        "time per step",
        "rank 3 waited",
        "late: rank 1",
    ):
        assert text in result.stdout

    picture = tmp_path / re.search(r"picture of one step's rounds: (\S+)", result.stdout).group(1)
    assert picture == tmp_path / "rounds.svg"
    assert "<svg" in picture.read_text()[:1000]


ARCHITECTURE = (ROOT / "docs/explanation/architecture.md").read_text()
NAME = re.compile(r"`((?:verify|synth|runtime|proofs|tests)(?:\.\w+)+)`")


@pytest.mark.parametrize("name", sorted(set(NAME.findall(ARCHITECTURE))))
def test_what_the_page_names_is_there(name):
    named(name)


@pytest.mark.parametrize(
    "name", ["latecomer.runtime.executor.executor.Executor.subnit", "latecomer.runtime.executer"]
)
def test_a_name_that_is_not_there_is_noticed(name):
    with pytest.raises((ImportError, AttributeError)):
        named(name)


def test_the_four_ways_are_about_twenty_lines_each():
    ways = re.split(r"^## (?=The way of)", ARCHITECTURE, flags=re.MULTILINE)[1:]
    lengths = {way.split("\n", 1)[0]: len(way.split("\n## ")[0].splitlines()) for way in ways}
    assert len(lengths) == 4
    assert all(length <= 28 for length in lengths.values()), lengths
