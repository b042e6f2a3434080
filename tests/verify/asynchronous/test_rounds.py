"""Our own schedules under the theory of asynchronous programs: it agrees with that of rounds."""

from __future__ import annotations

import pytest

from tests.verify.builders import broken, optimal_four, schedule_of, straggler
from verify.asynchronous.check import check
from verify.asynchronous.rounds import program_of
from verify.core.check import check as check_rounds
from verify.core.verdict import Verdict

DOCUMENTS = {
    "four": optimal_four(),
    "straggler": straggler(6),
    "broken": broken(straggler(5)),
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_rounds_and_programs_agree(name: str) -> None:
    schedule = schedule_of(DOCUMENTS[name])
    results, freedom = check(program_of(schedule))
    rounds = check_rounds(schedule).results["exactly_once"].verdict
    assert results["right_values"].verdict is rounds
    assert rounds is (Verdict.REFUTED if name == "broken" else Verdict.PROVED)
    others = [result.verdict for key, result in results.items() if key != "right_values"]
    assert set(others) == {Verdict.PROVED}
    assert freedom.unlimited
