"""What the tests of the proofs need: the built checker and Coq. Where they are absent, tests are
skipped and say so; nothing is replaced by anything weaker.
"""

import os
import shutil
from pathlib import Path

import pytest

from latecomer.verify.kernel import BUILT

THEORIES = Path(__file__).resolve().parents[2] / "proofs" / "coq"


@pytest.fixture(scope="session")
def kernel() -> Path:
    """The extracted checker."""
    if not os.access(BUILT, os.X_OK):
        pytest.skip("the extracted checker is not built (make proofs)")
    return BUILT


@pytest.fixture(scope="session")
def theories() -> Path:
    """The folder of the compiled theories."""
    if shutil.which("coqc") is None or not (THEORIES / "Certificate.vo").exists():
        pytest.skip("Coq or the compiled theories are not there (make proofs)")
    return THEORIES
