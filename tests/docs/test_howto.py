"""The how-to pages: their commands print what they show, and each says where to go on."""

from __future__ import annotations

import re

import pytest

from tests.docs.sessions import ROOT, run

HOWTO = ROOT / "docs/howto"
EXAMPLES = "\n".join(path.read_text() for path in (ROOT / "examples").rglob("*.py"))
RUN_ELSEWHERE = {"schedules.md", "lossy-networks.md", "gpus.md"}
"""By tests/test_pages.py and test_every_command.py."""
PAGES = [
    "choose-chunks.md",
    "export.md",
    "hanging-job.md",
    "own-collective.md",
    "read-a-report.md",
    "reproducible-training.md",
    "simulate.md",
    "slow-job.md",
    "whatif.md",
]
OURS = re.compile(
    r"^(?:import|from) latecomer\b.*$"
    r"|^.*\b(?:attach|Executor|Pipeline)\(.*$"
    r"|^.*\"latecomer\".*$",
    re.MULTILINE,
)


@pytest.mark.docs_commands
@pytest.mark.parametrize("page", PAGES)
def test_commands_print_what_the_page_shows(page, tmp_path):
    assert run(HOWTO / page, tmp_path)


@pytest.mark.docs_commands
def test_the_commands_of_the_overview_print_what_it_shows(tmp_path):
    assert run(HOWTO.parent / "explain.md", tmp_path)


def test_no_page_with_commands_is_left_out():
    pages = {path.name for path in HOWTO.glob("*.md") if "```console\n" in path.read_text()}
    assert pages == {*PAGES, *RUN_ELSEWHERE}


FRAMEWORKS = [
    "backend",
    "ddp",
    "deepspeed",
    "fsdp",
    "lightning",
    "reproducible-training",
    "torchft",
    "trainer",
]
ON_CLUSTERS = [
    "kubernetes",
    "many-nodes",
    "slurm",
]  # they lead to ddp.md for what stands in scripts
TASKS = [*FRAMEWORKS, *ON_CLUSTERS, "own-collective", "pipelines"]


@pytest.mark.parametrize("page", TASKS)
def test_a_page_has_its_five_parts(page):
    text = (HOWTO / f"{page}.md").read_text()
    assert "**What you have:**" in text
    heads = re.findall(r"^## (.*)$", text, re.MULTILINE)
    took_effect = heads.index("See that it took effect")
    did_not = heads.index("When it did not")
    reference = heads.index("Reference")
    assert 0 < took_effect < did_not < reference


@pytest.mark.parametrize("page", TASKS)
def test_lines_of_ours_stand_in_an_example(page):
    """So that a line that is no longer right is noticed where the examples run."""
    blocks = re.findall(r"```python\n(.*?)```", (HOWTO / f"{page}.md").read_text(), re.DOTALL)
    for block in blocks:
        compile(block, page, "exec")
    lines = [line for block in blocks for line in OURS.findall(block)]
    assert lines or page in ON_CLUSTERS
    for line in lines:
        code, _, _ = line.partition("  #")
        assert f"\n{code}" in EXAMPLES


def test_the_loop_for_the_same_bits_is_that_of_the_script():
    page = (HOWTO / "reproducible-training.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    script = iter((ROOT / "examples/train_same_bits.py").read_text().splitlines())
    loop = next(block for block in blocks if "for step in" in block)
    for line in loop.splitlines():
        assert line == "..." or line in script  # in the same order
