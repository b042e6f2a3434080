"""Runs PyTorch's own tests of torch.distributed on a backend, and writes what came out.

    python -m tests.frameworks.pytorch_suite latecomer out.json

The tests are those of ``torch.testing._internal.distributed.distributed_test``, unchanged, on four
processes forked for each test. Which of them exist, and some of what they do, goes by the backend's
name; names that they don't know are skipped. So they are told ``gloo``, whose abilities our backend
has, and ``init_process_group`` makes groups of the backend that was asked for instead.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import unittest
from pathlib import Path
from typing import Any

RANKS = 4
TIMEOUT_S = 60


class Outcomes(unittest.TestResult):
    """By the test's name: ``passed``, ``skipped: REASON`` or ``failed: TRACEBACK``."""

    def __init__(self) -> None:
        super().__init__()
        self.by_test: dict[str, str] = {}

    def _note(self, test: unittest.TestCase, outcome: str) -> None:
        self.by_test[test.id().rsplit(".", 1)[-1]] = outcome

    def addSuccess(self, test):
        self._note(test, "passed")

    def addSkip(self, test, reason):
        self._note(test, f"skipped: {reason}")

    def addFailure(self, test, error):
        self._note(test, f"failed: {self._exc_info_to_string(error, test)}")

    addError = addFailure


def _suite(backend: str) -> unittest.TestSuite:
    """All tests of the module that spawn ranks."""
    import torch.distributed as dist
    import torch.multiprocessing
    from torch.testing._internal import common_distributed

    # Tests that need a GPU are skipped, here before four processes are forked to find it out.
    for name in ("skip_if_no_gpu", "skip_if_small_worldsize"):
        setattr(common_distributed, name, unittest.skip(name))
    common_distributed.skip_if_lt_x_gpu = lambda x, **_: unittest.skip(f"fewer than {x} GPUs")
    from torch.testing._internal.distributed import distributed_test

    original = dist.init_process_group

    def init_process_group(*args: Any, **kwargs: Any) -> None:
        assert kwargs["backend"] == "gloo"
        original(*args, **kwargs | {"backend": backend})

    dist.init_process_group = init_process_group

    class Forked(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
        def setUp(self):
            super().setUp()
            self._start_processes(torch.multiprocessing.get_context("fork").Process)

    return unittest.defaultTestLoader.loadTestsFromTestCase(Forked)


def main(backend: str, out: str) -> None:
    """Run all tests; write a JSON object of outcomes by test to ``out``."""
    with tempfile.TemporaryDirectory() as folder:
        for name in ("barrier", "init_dir", "test_dir"):
            Path(folder, name).mkdir()
        os.environ |= {
            "BACKEND": "gloo",
            "WORLD_SIZE": str(RANKS),
            "TEMP_DIR": folder,
            "OMP_NUM_THREADS": "1",
            "DISTRIBUTED_TESTS_DEFAULT_TIMEOUT": str(TIMEOUT_S),
        }
        from latecomer import runtime  # noqa: F401  (registers the backend)

        outcomes = Outcomes()
        for test in _suite(backend):
            began_s = time.monotonic()
            test(outcomes)
            name = test.id().rsplit(".", 1)[-1]
            outcome = outcomes.by_test[name]
            if not outcome.startswith("skipped"):
                print(f"{time.monotonic() - began_s:5.1f} s  {outcome[:6]}  {name}", flush=True)
    Path(out).write_text(json.dumps(outcomes.by_test, indent=1))


if __name__ == "__main__":
    _, backend_name, out_file = sys.argv
    main(backend_name, out_file)
