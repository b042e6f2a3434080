"""No page shows a command, or an option of one, that is not there. Most run in other tests."""

from __future__ import annotations

import re

import pytest

from docs.site.reference import examples
from tests.docs.commands import commands, problem
from tests.docs.pages import Page, pages

OURS = re.compile(r"(?:[A-Z_]+=\S+ )*(?:synth|verify|python3?|torchrun|make) (?!=)")


def shown(page: Page) -> list[str]:
    """The commands that a page shows to be typed: in blocks after ``$``, or lines of ``sh``."""
    commands_shown = []
    for block in page.blocks:
        lines = block.text.replace("\\\n", " ").splitlines()
        if block.language == "console":
            commands_shown += [line[2:] for line in lines if line.startswith("$ ")]
        elif block.language == "sh":
            commands_shown += lines
        elif not block.language:
            commands_shown += [line for line in lines if OURS.match(line)]
    return commands_shown


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_commands_are_there(page):
    for line in shown(page):
        for command in commands(line):
            assert not problem(command), line


@pytest.mark.parametrize("line", examples())
def test_examples_of_the_help_are_there(line):
    assert not any(map(problem, commands(line)))


@pytest.mark.parametrize("page", pages(), ids=lambda page: page.name)
def test_options_within_sentences_are_there(page):
    """Such a command may lack arguments, or have names in place of values."""
    for span in page.spans:
        if OURS.match(span):
            for command in commands(span.replace("...", "")):
                fault = problem(command)
                assert not re.search("[Nn]o such (?:option|module)|has no|no command", fault), fault


@pytest.mark.parametrize(
    "line",
    [
        "synth generate --n 8 --bytes 1GiB -o x.json",
        "LATECOMER_MODE=auto torchrun --standalone --nproc-per-node 4 examples/train_auto.py",
        "torchrun --nnodes 8 --nproc-per-node=1 ... -m latecomer profile -o profile.json",
        "python -m bench.delays --plot x.svg > log && make test",
        "python -m bench.on_time --lab 200 --sizes 4KiB",
        "python -m bench.lab up --hosts 2 --dry-run",
        "verify -q *.json || echo no",
    ],
)
def test_right_commands_pass(line):
    assert [problem(command) for command in commands(line)] == [""] * len(commands(line))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("synth generate --n 8 --no-such", "--no-such"),
        ("synth generate --n eight", "valid integer"),
        ("synth generale --n 8", "generale"),
        ("synth ring", "--n"),
        ("verify", "SCHEDULE"),
        ("verify a.json --smt", "--smt"),
        ("latecomer watch --last many watched", "--last"),
        ("python -m bench.delay", "bench.delay"),
        ("python -m bench.delays --plots x", "--plots"),
        ("python -m bench.on_time --labs 200", "--labs"),
        ("python examples/none.py", "examples/none.py"),
        ("torchrun --nproc 4 examples/demo.py", "--nproc"),
        ("torchrun --standalone examples/demo.py --early 3", "--early"),
        ("make tests", "tests"),
        ("verity a.json", "verity"),
    ],
)
def test_wrong_commands_are_noticed(line, says):
    (command,) = commands(line)
    assert says in problem(command)
