"""The tutorial's commands run as they are printed, and print what the pages show."""

from __future__ import annotations

import re

import pytest

from tests.docs.sessions import ROOT, masked, run, sessions

TUTORIAL = ROOT / "docs/tutorial"
PAGES = sorted(path.name for path in TUTORIAL.glob("*.md"))


@pytest.mark.docs_commands
@pytest.mark.parametrize("page", PAGES)
def test_commands_print_what_the_page_shows(page, tmp_path):
    printed = run(TUTORIAL / page, tmp_path)
    assert len(printed) >= 4
    for command, text in printed.items():
        if "train_auto" in command:  # rank 2 sleeps before each backward pass
            assert text.splitlines()[2].split()[0] == "2"


@pytest.mark.parametrize("page", PAGES)
def test_lines_of_python_stand_in_the_examples(page):
    scripts = "\n".join(path.read_text() for path in (ROOT / "examples").glob("train_*.py"))
    for block in re.findall(r"```python\n(.*?)```", (TUTORIAL / page).read_text(), re.DOTALL):
        compile(block, page, "exec")
        own = [line for line in block.splitlines() if "ddp" in line]
        assert all(f"{line}\n" in scripts for line in own), own


SUMMARY = """loss 1.4e+00
rank wait last
   2     0.0 ms   100%     3.05 s
   0    54.0 ms     0%     0.00 s

    13 operations ran: one late
     7 operations ran: native
done 14.15 ms after the last arrival
saved 0.16 s (0.01 to 0.19) of 1.3 s: 15 operations began
"""


SIX = "     6 operations ran: native\n"
ONE = "     1 operations ran: two late\n"


@pytest.mark.parametrize(
    ("old", "new", "is_same"),
    [
        ("54.0 ms", "5.7 ms", True),
        ("1.4e+00", "3.1e-02", True),
        ("     7 operations ran: native\n", SIX + ONE, True),
        ("     7 operations ran: native\n", SIX, False),
        ("   0    54.0", "   1    54.0", False),
        ("after the last", "before the last", False),
        ("done", "finished\ndone", False),
        ("saved 0.16 s (0.01 to 0.19) of 1.3 s: 15 operations began", "nothing was saved: x", True),
        ("saved 0.16 s (0.01 to 0.19) of 1.3 s: 15 operations began\n", "", False),
    ],
)  # fmt: skip
def test_what_is_masked_and_what_is_not(old, new, is_same):
    assert (masked(SUMMARY.replace(old, new)) == masked(SUMMARY)) is is_same


def test_commands_are_found_with_their_output():
    page = "a\n```console\n$ one\n1\n$ two\n```\n```console\n$ three\n3\n3\n```\n"
    assert sessions(page) == [("one", "1\n"), ("two", ""), ("three", "3\n3\n")]


def test_a_headline_may_say_what_was_saved():
    headline = "run.html: rank 2 wasted most, 3.05 s"
    assert masked(f"{headline}; saved 0.10 s") == masked(headline)
    assert masked(f"{headline}; found 0.10 s") != masked(headline)
