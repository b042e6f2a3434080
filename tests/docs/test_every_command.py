"""Every command that a page shows is run, unless it stands in a table here that says why not.

``make test-docs`` runs them: some take a minute. Those of the tutorial and of the how-to pages run
elsewhere, where what they print is compared with the page, too.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.runtime.spawning import execute

ROOT = Path(__file__).parents[2]
RUN_ELSEWHERE = {
    "README.md": "tests/test_pages.py",
    "docs/howto/schedules.md": "tests/test_pages.py",
    "docs/explanation/loss.md": "tests/verify/loss/test_docs.py",
    "docs/explanation/transpose.md": "tests/verify/loss/test_docs.py",
    "docs/tutorial/first-schedule.md": "tests/docs/test_tutorial.py",
    "docs/tutorial/late-rank.md": "tests/docs/test_tutorial.py",
    "docs/howto/choose-chunks.md": "tests/docs/test_howto.py",
    "docs/howto/export.md": "tests/docs/test_howto.py",
    "docs/howto/own-collective.md": "tests/docs/test_howto.py",
    "docs/howto/read-a-report.md": "tests/docs/test_howto.py",
}
NOT_RUN = {
    r"^make (demo|test|proofs)": "continuous integration runs it, or a test of the demo",
    r"^pip install|compiled     #": "changes the environment; make installs it so",
    r"--device cuda": "needs a GPU",
    r"--nnodes": "needs several machines",
    r"^python -m bench\.lab": "needs root; tests/bench/test_lab_live.py runs the lab where it can",
    r"--kernel coq|coqc": "needs Coq; tests/proofs runs both",
    r"runtime watch (.*--follow|--prometheus|watched/$)": (
        "goes on until Ctrl-C; tests/runtime/telemetry_page/test_command.py runs it"
    ),
    r"&& cvc5": "cvc5's program; tests/verify/test_symbolic.py asks it by its library",
}
PREPARED = (
    "synth generate --n 8",
    "synth pipeline --stages 4 --microbatches 8 -o pipeline.json --csv pytorch_schedule.csv",
    "synth export schedule.json --to msccl-xml -o algorithm.xml",
    "LATECOMER_WATCH=watched torchrun --standalone --nproc-per-node 4 examples/train_auto.py",
)
"""They make the files that examples of the commands' help take as given."""


def shown(page: str) -> list[str]:
    """The commands of a page's ``console`` blocks, and the lines of its ``sh`` blocks."""
    whole = re.sub(r" *\\\n +", " ", page)
    found = []
    for kind, block in re.findall(r"```(console|sh)\n(.*?)```", whole, re.DOTALL):
        lines = [line for line in block.splitlines() if line.strip()]
        found += [c.removeprefix("$ ") for c in lines if kind == "sh" or c.startswith("$ ")]
    return found


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMANDS = {
    command
    for path in PAGES
    if str(path.relative_to(ROOT)) not in RUN_ELSEWHERE or "```sh\n" in path.read_text()
    for command in shown(path.read_text())
}
TO_RUN = sorted(c for c in COMMANDS if not any(re.search(why, c) for why in NOT_RUN))


def test_reasons_and_places_are_of_something():
    for pattern in NOT_RUN:
        assert any(
            re.search(pattern, command) for path in PAGES for command in shown(path.read_text())
        )
    for page in RUN_ELSEWHERE:
        assert shown((ROOT / page).read_text())


def _run(command, folder):
    result = execute("sh", "-c", command, cwd=folder)
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    assert "Traceback" not in result.stderr


@pytest.fixture(scope="session")
def prepared(tmp_path_factory):
    made = tmp_path_factory.mktemp("commands")
    (made / "examples").symlink_to(ROOT / "examples")
    for command in PREPARED:
        _run(command, made)
    return made


@pytest.mark.docs_commands
@pytest.mark.timeout(900)
@pytest.mark.parametrize("command", TO_RUN)
def test_a_command_does_what_it_is_shown_for(command, prepared, tmp_path):
    folder = tmp_path / "folder"
    shutil.copytree(prepared, folder, symlinks=True)
    if "LATECOMER_SCHEDULE" in command:
        _run("synth generate --n 4", folder)
    _run(command, folder)
