"""The faults to plant are still in the code that ships, and what they make of it is still code."""

from __future__ import annotations

import pytest

from tests.simulation.mutants import KNOWN, MUTANTS, Mutant, changed, file_of


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_fault_can_be_planted(mutant):
    text = changed(mutant)
    assert text != file_of(mutant).read_text()
    compile(text, mutant.module, "exec")


def test_a_fault_whose_place_is_gone_is_refused():
    stale = Mutant(name="stale", module="health.protocol", old="no such text", new="pass")
    with pytest.raises(AssertionError, match="has no such text any more"):
        changed(stale)


def test_names_are_those_of_one_fault_each():
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names)
    assert set(KNOWN) <= set(names)
