"""What the tests of frameworks share: schedules made as a user makes them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.runtime import spawning

# What the server has imported that forks the ranks: it would take each of them many seconds.
spawning.IMPORTED += [
    "accelerate",
    "deepspeed",
    "lightning",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torchtitan.tools.utils",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.trainer",
]


@pytest.fixture(scope="session")
def schedules(tmp_path_factory) -> dict[int, str]:
    """By the number of ranks, the file that ``synth generate`` makes."""
    folder = tmp_path_factory.mktemp("schedules")
    synth = Path(sys.executable).parent / "synth"
    files = {}
    for ranks in (2, 4):
        files[ranks] = str(folder / f"{ranks}.json")
        command = [synth, "generate", "--n", str(ranks), "-o", files[ranks]]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
    return files
