"""Commands in the pages' ``console`` blocks, run as they are printed, and what they print.

Blocks run in order in a folder beside the examples. What commands print to stdout is compared with
what the page shows, line by line. What varies from run to run is masked in both: numbers before a
unit of time or in percent, losses, messages per operation, hashes; spaces; the order of a summary's
lines of ranks. Of its lines on how operations ran, and why, which there are depends on how busy the
machine is: only the sum of their counts is compared. So does what is said of the gain, of which one
line is as good as another.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.runtime.spawning import execute

ROOT = Path(__file__).parents[2]
VARIES = re.compile(r"[\d.]+(?= (?:ms|s|messages)\b|%)|(?<=^loss )\S+|\b[0-9a-f]{16}\b")
GAIN = re.compile(
    r"(saved|lost) # s|nothing was saved: |\d+ operations by a schedule are not compared"
)
COUNTS = re.compile(r"(\d+) (operations ran|times because): .*")


def sessions(page: str) -> list[tuple[str, str]]:
    """Each command with the output that is shown below it."""
    commands = []
    for block in re.findall(r"```console\n(.*?)```", page, re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, shown = part.partition("\n")
            commands.append((command, shown))
    return commands


def masked(text: str) -> tuple[list[str], dict[str, int]]:
    """Lines without what varies, and the sums of what summaries count."""
    lines = []
    sums = dict[str, int]()
    ranks = list[str]()
    for line in text.splitlines():
        plain = " ".join(VARIES.sub("#", line.strip()).split())
        plain = re.sub("; (saved|lost) (# s|nothing: .*)$", "", plain)  # in a page's headline
        if counted := COUNTS.fullmatch(plain):
            sums[counted[2]] = sums.get(counted[2], 0) + int(counted[1])
        elif GAIN.match(plain):
            sums["says what was gained"] = 1
        elif re.match(r"\d+ #", plain):
            ranks.append(plain)
        else:
            lines += sorted(ranks)
            ranks.clear()
            lines.append(plain)
    return lines + sorted(ranks), sums


def run(page: Path, folder: Path) -> dict[str, str]:
    """Run a page's commands in ``folder``; what each has printed, which is as shown."""
    (folder / "examples").symlink_to(ROOT / "examples")
    printed = {}
    for command, shown in sessions(page.read_text()):
        result = execute("sh", "-c", command, cwd=folder)
        assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
        assert "Traceback" not in result.stderr
        assert masked(result.stdout) == masked(shown), f"{command}\n{result.stdout}"
        for name in re.findall(r"--html ([\w.]+)", command):
            assert (folder / name).read_text().startswith("<!doctype html>")
        printed[command] = result.stdout
    return printed
