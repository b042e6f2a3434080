"""The variables that pages tell to set are there in the libraries that are installed."""

from __future__ import annotations

import mmap
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from tests.docs.pages import ROOT

PAGE = ROOT / "docs/howto/hanging-job.md"
NAME = re.compile(r"\b(?:TORCH_NCCL|TORCH_FR|NCCL)_[A-Z_]+\b")
ON_CUDA_ALONE = {"TORCH_NCCL_DUMP_ON_TIMEOUT", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"}
"""What the library of the CPU build has no use for."""


def libraries():
    """Those of torch, and NCCL where it is installed."""
    yield from (Path(torch.__file__).parent / "lib").glob("libtorch_c*.so")
    if find_spec("nvidia") is not None and (nccl := find_spec("nvidia.nccl")) is not None:
        for place in nccl.submodule_search_locations:
            yield from Path(place).glob("lib/libnccl.so*")


def has(library, name):
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return data.find(name.encode()) >= 0


@pytest.mark.parametrize("name", sorted(set(NAME.findall(PAGE.read_text()))))
def test_a_variable_is_known_to_torch_or_nccl(name):
    is_build_for_cuda = torch.version.cuda is not None
    if not is_build_for_cuda and (name in ON_CUDA_ALONE or name.startswith("NCCL_")):
        pytest.skip("the CPU build of torch has no use for it: see make test-torch-new")
    assert any(has(library, name) for library in libraries())


def test_a_name_that_is_not_there_is_noticed():
    assert not any(has(library, "TORCH_NCCL_NO_SUCH_VARIABLE") for library in libraries())
