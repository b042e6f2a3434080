"""The tables of loss.md (bench) are what ``verify --loss`` finds; commands work as printed."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from latecomer.synth import direct, generate, rhd, ring
from latecomer.synth.transpose.generate import transpose
from latecomer.verify import Schedule
from latecomer.verify.loss.examine import examine
from latecomer.verify.loss.report import LossKind

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "bench/tables/loss.md").read_text()


def _schedules(n: int, groups: int) -> dict[str, Schedule]:
    two_level = f"transpose --groups {groups}"
    return {
        "transpose": transpose(n),
        two_level: transpose(n, groups=groups),
        f"{two_level} --exchange transpose": transpose(n, groups=groups, exchange="transpose"),
        "direct": direct(n),
        "rhd": rhd(n),
        "ring": ring(n),
        "generate": generate(n),
    }


def _row(name: str, kind: LossKind) -> str:
    spread = str(kind.least)
    if kind.least < kind.most:
        spread = f"{kind.least} .. {kind.most}, mean {kind.mean:.4g}"
    differ = {0: "never", kind.transfers: "always"}.get(kind.differ, "sometimes")
    cells = [name, f"{kind.phase} {kind.op}", spread, kind.ranks, kind.contributions, differ]
    return _line(cells)


def _line(cells: list[Any]) -> str:
    return f"| {' | '.join(map(str, cells))} |"


def _tables() -> tuple[list[str], list[str]]:
    singles = []
    worst = []
    for n, groups in [(8, 4), (64, 8)]:
        for name, schedule in _schedules(n, groups).items():
            report = examine(schedule, 3, 60.0)
            assert report.twice.possible is False
            if n == 8:
                names = [f"`{name}`", *("" for _ in report.kinds[1:])]
                singles += map(_row, names, report.kinds)

            by_one = examine(schedule, 1, 60.0).worst.entries
            by_two = examine(schedule, 2, 60.0).worst.entries
            by_three = report.worst.entries
            share = f"{100 * by_one / report.entries:.2g} %"
            command, *options = name.split(" ", 1)
            shown = " ".join([command, f"--n {n}", *options])
            cells = [f"`{shown}`", report.entries, f"{by_one} ({share})", by_two, by_three]
            worst.append(_line([*cells, f"{report.mean_way:.3g}"]))
    return [row.replace("|  |", "| |") for row in singles], worst


def test_tables(monkeypatch) -> None:
    # The tables show no single losses; a list of them takes longer than all the rest.
    monkeypatch.setattr("latecomer.verify.loss.examine.MOST_LISTED", 0)
    for rows in _tables():
        table = "\n".join(rows)
        assert table in TEXT, f"bench/tables/loss.md should have\n{table}"


@pytest.mark.parametrize(("page", "written"), [("loss", "ring.svg"), ("transpose", "small.json")])
def test_commands(tmp_path: Path, page: str, written: str) -> None:
    text = (ROOT / "docs/explanation" / f"{page}.md").read_text()
    commands = re.findall(r"^\$ (.*)$", text, re.MULTILINE)
    assert len(commands) >= 5
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)}
    for command in commands:
        subprocess.run(command, shell=True, cwd=tmp_path, env=environment, timeout=500, check=True)
    assert (tmp_path / written).exists()
