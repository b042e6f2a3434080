"""The tutorial's commands run as they are printed, and print what the pages show.

A page's ``console`` blocks run in order in a folder of its own, beside the examples. What they
print to stdout is compared with what the page shows, line by line. What varies from run to run is
masked in both: numbers before a unit of time or in percent, losses, messages per operation; spaces;
the order of a summary's lines of ranks. Of its lines on how operations ran, and why, which there
are depends on how busy the machine is: only the sum of their counts is compared.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.runtime.spawning import execute

ROOT = Path(__file__).parents[2]
TUTORIAL = ROOT / "docs/tutorial"
VARIES = re.compile(r"[\d.]+(?= (?:ms|s|messages)\b|%)|(?<=^loss )\S+")
COUNTS = re.compile(r"(\d+) (operations ran|times because): .*")


def _sessions(page: str) -> list[tuple[str, str]]:
    """Each command with the output that is shown below it."""
    found = []
    for block in re.findall(r"```console\n(.*?)```", page, re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, shown = part.partition("\n")
            found.append((command, shown))
    return found


def _masked(text: str) -> tuple[list[str], dict[str, int]]:
    """Lines without what varies, and the sums of what summaries count."""
    lines, sums, ranks = [], dict[str, int](), list[str]()
    for line in text.splitlines():
        plain = " ".join(VARIES.sub("#", line.strip()).split())
        if counted := COUNTS.fullmatch(plain):
            sums[counted[2]] = sums.get(counted[2], 0) + int(counted[1])
        elif re.match(r"\d+ #", plain):
            ranks.append(plain)
        else:
            lines += sorted(ranks)
            ranks.clear()
            lines.append(plain)
    return lines + sorted(ranks), sums


@pytest.mark.slow_first
@pytest.mark.parametrize("page", sorted(path.name for path in TUTORIAL.glob("*.md")))
def test_commands_print_what_the_page_shows(page, tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    sessions = _sessions((TUTORIAL / page).read_text())
    assert len(sessions) >= 4
    for command, shown in sessions:
        result = execute("sh", "-c", command, cwd=tmp_path)
        assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
        assert "Traceback" not in result.stderr
        assert _masked(result.stdout) == _masked(shown), f"{command}\n{result.stdout}"
        for name in re.findall(r"--html ([\w.]+)", command):
            assert (tmp_path / name).read_text().startswith("<!doctype html>")
        if "train_auto" in command:  # rank 2 sleeps before each of 20 backward passes
            assert result.stdout.splitlines()[2].split()[0] == "2"


@pytest.mark.parametrize("page", sorted(path.name for path in TUTORIAL.glob("*.md")))
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
"""


SIX, ONE = "     6 operations ran: native\n", "     1 operations ran: two late\n"


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
    ],
)  # fmt: skip
def test_what_is_masked_and_what_is_not(old, new, is_same):
    assert (_masked(SUMMARY.replace(old, new)) == _masked(SUMMARY)) is is_same


def test_commands_are_found_with_their_output():
    page = "a\n```console\n$ one\n1\n$ two\n```\n```console\n$ three\n3\n3\n```\n"
    assert _sessions(page) == [("one", "1\n"), ("two", ""), ("three", "3\n3\n")]
