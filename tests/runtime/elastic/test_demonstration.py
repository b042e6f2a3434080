"""``examples/elastic.py`` with real processes: one dies and comes back, and nothing shows of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.runtime.spawning import execute

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.mark.slow_first
def test_a_death_and_a_return_leave_the_same_bits(tmp_path):
    file = tmp_path / "found.json"
    options = ["--steps", "100", "--silence", "5", "--json", file]
    result = execute(sys.executable, EXAMPLES / "elastic.py", *options)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "equal, bit for bit" in result.stdout
    found = json.loads(file.read_text())
    assert set(found["hashes"]) == {found["alone"]}
    replicas = [of_view for _, of_view in found["views"]]
    assert replicas[0] != replicas[-1]
    assert all(sorted(of_view) == [0, 1, 2, 3] for of_view in (replicas[0], replicas[-1]))
