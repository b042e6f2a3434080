"""What users may import, pinned."""

from __future__ import annotations

import runtime
from tests.runtime.spawning import python

EXPORTED = """
AllReduceDispatcher BACKEND Executor Observer Operation Reducer Verified Watch configure ddp load
watch
"""
IMPORT = """
import sys, runtime
from runtime import torch_versions
solvers = {'ortools', 'z3', 'synth', 'matplotlib', 'sklearn'}
loaded = {'torch.distributed.pipelining', *solvers} & set(sys.modules)
assert not loaded, loaded
assert torch_versions.PipelineStageBase.__name__ == '_PipelineStageBase'
"""


def test_exported_names():
    assert sorted(runtime.__all__) == EXPORTED.split()
    assert all(hasattr(runtime, name) for name in runtime.__all__)


def test_an_import_brings_no_solver_and_pipelining_comes_with_its_first_use():
    result = python("-c", IMPORT)
    assert result.returncode == 0, result.stderr
