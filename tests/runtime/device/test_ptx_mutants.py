"""Mutants of the shipped kernel's PTX: each is caught, or harmless for a reason and in all states.

``make hunt-gpu`` judges all of them, these tests a part.
"""

from __future__ import annotations

import pytest

from tests.runtime.device.ptx.battery import caught
from tests.runtime.device.ptx.builds import shipped_ptx
from tests.runtime.device.ptx.harmless import MUTATED, judge, reason
from tests.runtime.device.ptx.mutants import mutants
from tests.runtime.device.ptx.program import Program

EVERY = 5
PARTS = 8

ORDER = ("a lost barrier", "scope", "relaxed", "a lost raise", "moved", "a lost store")
"""What is done to barriers, scopes, semantics, flags: these mutants are all judged here."""


def chosen(build):
    """Those that are about order, and every fifth of the others."""
    made = mutants(shipped_ptx(*build))
    of_order = [mutant for mutant in made if mutant.what.startswith(ORDER)]
    others = [mutant for mutant in made if not mutant.what.startswith(ORDER)]
    return of_order + others[::EVERY]


@pytest.mark.parametrize("build", MUTATED, ids=str)
def test_the_shipped_kernel_is_not_caught(build):
    assert caught(Program(shipped_ptx(*build)), *build) == ""


def test_names_are_of_one_mutant_each():
    made = mutants(shipped_ptx(*MUTATED[0]))
    assert len({mutant.name for mutant in made}) == len(made) > 600
    assert len({mutant.ptx for mutant in made}) > 0.99 * len(made)
    for what in ORDER:
        assert any(mutant.what.startswith(what) for mutant in made)
    assert sum(bool(reason(mutant)) for mutant in made) < len(made) / 8


@pytest.mark.gpu_logic
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("build", MUTATED, ids=str)
def test_mutants(build, part, record_property):
    judged = [(mutant.name, judge(mutant, *build)) for mutant in chosen(build)[part::PARTS]]
    assert [name for name, verdict in judged if not verdict] == []
    harmless = sum(verdict.startswith("harmless") for _, verdict in judged)
    assert harmless < len(judged) / 4
    record_property("ptx mutants caught", len(judged) - harmless)
    record_property("ptx mutants harmless", harmless)
