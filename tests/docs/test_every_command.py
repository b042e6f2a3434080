"""Every command that a page or ``--help`` shows is run, unless a table here says why it is not.

``make test-docs`` runs them: some take a minute. Those of the tutorial and of the how-to pages run
elsewhere, where what they print is compared with the page, too.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from docs.site.reference import examples
from tests.docs.pages import BESIDE_CODE
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
    "docs/howto/reproducible-training.md": "tests/docs/test_howto.py",
}
NOT_RUN = {
    r"^make (demo|test|proofs)": "continuous integration runs it, or a test of the demo",
    r"^(kubectl|sbatch)": "needs a cluster; tests/bench/test_clusters.py plays one",
    r"^pip (install|wheel)|compiled     #": "changes the environment; make installs it so",
    r"--device cuda": "needs a GPU",
    r"--nnodes": "needs several machines",
    r"^python -m bench\.lab": "needs root; tests/bench/test_lab_live.py runs the lab where it can",
    r"--kernel coq|coqc": "needs Coq; tests/proofs runs both",
    r"latecomer watch (.*--follow|--prometheus|watched/$)": (
        "goes on until Ctrl-C; tests/runtime/telemetry_page/test_command.py runs it"
    ),
    r"^latecomer explain": "it ends with 1; tests/runtime/explain and test_howto.py run it",
    r"^latecomer dump": "asks a job that runs; tests/runtime/explain/test_serving.py runs both",
    r"^torchft_lighthouse": "goes on until Ctrl-C; python -m bench.torchft starts one",
    r"^(ncclras|sleep)": "NVIDIA's program, which needs a job on GPUs; and the wait between two",
    r"&& cvc5": "cvc5's program; tests/verify/test_symbolic.py asks it by its library",
}
PREPARED = (
    "synth generate --n 8",
    "synth generate --nodes 2 --per-node 4 --bytes 1MiB --stages -o stages.json",
    "synth pipeline --stages 4 --microbatches 8 -o pipeline.json --csv pytorch_schedule.csv",
    "synth export schedule.json --to msccl-xml -o algorithm.xml",
    "cp examples/arrivals/SE.json arrivals.json",
    "cp examples/pipelines/ST.json spans.json",
    "tar -xf examples/dumps/nvidia.tar.gz && mv gpu_error_1st dumps",
    "mkdir traces && cp examples/traces/*.json.gz traces",
    "LATECOMER_WATCH=watched torchrun --standalone --nproc-per-node 4 examples/train_auto.py",
    "LATECOMER_HASHES=four torchrun --standalone --nproc-per-node 4 examples/train_same_bits.py"
    " --checkpoint half.pt",
    "LATECOMER_HASHES=two torchrun --standalone --nproc-per-node 2 examples/train_same_bits.py",
    "LATECOMER_HASHES=resumed torchrun --standalone --nproc-per-node 1 examples/train_same_bits.py"
    " --resume half.pt && mv four whole && cp -r whole four",
)
"""They make the files that examples of the commands' help take as given."""


def shown(page: str) -> list[str]:
    """The commands of a page's ``console`` blocks, and the lines of its ``sh`` blocks."""
    unwrapped = re.sub(r" *\\\n +", " ", page)
    commands = []
    for language, block in re.findall(r"```(console|sh)\n(.*?)```", unwrapped, re.DOTALL):
        for line in block.splitlines():
            if line.strip() and (language == "sh" or line.startswith("$ ")):
                commands.append(line.removeprefix("$ "))
    return commands


PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *BESIDE_CODE]


def commands_here() -> list[str]:
    """The commands that are run here, in order."""
    commands = set(examples())
    for path in PAGES:
        text = path.read_text()
        if str(path.relative_to(ROOT)) not in RUN_ELSEWHERE or "```sh\n" in text:
            commands.update(shown(text))
    return sorted(command for command in commands if not is_excused(command))


def is_excused(command: str) -> bool:
    return any(re.search(pattern, command) for pattern in NOT_RUN)


def test_reasons_and_places_are_of_something():
    commands = examples()
    for path in PAGES:
        commands += shown(path.read_text())
    for pattern in NOT_RUN:
        assert any(re.search(pattern, command) for command in commands)
    for page in RUN_ELSEWHERE:
        assert shown((ROOT / page).read_text())


def _run(command, folder):
    result = execute("sh", "-c", command, cwd=folder)
    assert result.returncode == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    assert "Traceback" not in result.stderr


@pytest.fixture(scope="session")
def prepared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("commands")
    (folder / "examples").symlink_to(ROOT / "examples")
    for command in PREPARED:
        _run(command, folder)
    return folder


@pytest.mark.docs_commands
@pytest.mark.timeout(900)
@pytest.mark.parametrize("command", commands_here())
def test_a_command_does_what_it_is_shown_for(command, prepared, tmp_path):
    folder = tmp_path / "folder"
    shutil.copytree(prepared, folder, symlinks=True)
    if "LATECOMER_SCHEDULE" in command:
        _run("synth generate --n 4", folder)
    _run(command, folder)
