"""What ``import latecomer`` gives, what it leaves alone, and that nothing is loaded twice."""

from __future__ import annotations

import importlib.metadata
import importlib.util

import pytest

import latecomer
from tests.runtime.spawning import python

ALONE = """
import sys
import latecomer
assert not {"torch", "numpy", "msgspec", "typer"} & set(sys.modules)
from latecomer import verify
assert "torch" not in sys.modules
assert latecomer.verify is verify
"""
PROGRAM = """
from latecomer import ddp, watch
import latecomer.ddp, latecomer.runtime.ddp
assert latecomer.ddp is ddp
assert ddp.attach is latecomer.runtime.ddp.attach
assert watch is latecomer.runtime.watch
"""


def test_names_are_those_of_its_parts():
    assert {"ddp", "watch", "configure", "synth", "verify", "runtime"} < set(dir(latecomer))
    needs_another_package = set() if importlib.util.find_spec("torchft") else {"torchft"}
    assert all(hasattr(latecomer, name) for name in {*dir(latecomer)} - needs_another_package)
    assert set(latecomer.runtime.__all__) < set(dir(latecomer))
    assert latecomer.__version__ == importlib.metadata.version("latecomer")
    with pytest.raises(AttributeError, match="'latecomer' has no attribute 'wacth'"):
        _ = latecomer.wacth


@pytest.mark.parametrize("program", [ALONE, PROGRAM])
def test_what_is_loaded(program):
    result = python("-c", program)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("name", ["runtime", "synth", "verify", "verify.core.check", "runtime.ddp"])
def test_a_part_refuses_another_name_in_a_sentence(name):
    """As it has where Python is started in the folder of a clone."""
    result = python("-c", f"import {name}")
    assert result.returncode == 1
    part = name.partition(".")[0]
    said = f"ImportError: {part} is a part of latecomer: import latecomer.{part} in its place"
    assert result.stderr.splitlines()[-1] == said
