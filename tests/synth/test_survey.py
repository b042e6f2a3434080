"""``synth table``: rows as they are done, honest gaps, what is kept when it ends early."""

import json

import pytest

from synth import survey as survey_module
from synth.straggler import generate
from synth.survey import parse_range, summary, survey
from verify.errors import ArgumentError, SearchTimeout


def test_ranges() -> None:
    assert parse_range("--n", "2..5", 2, 64) == [2, 3, 4, 5]
    assert parse_range("--n", "2,3, 8..10,3", 2, 64) == [2, 3, 8, 9, 10]


@pytest.mark.parametrize(
    "text", ["", ",", "2..", "..3", "5..2", "1..3", "60..65", "-2", "2.5", "x"]
)
def test_bad_ranges(text: str) -> None:
    with pytest.raises(ArgumentError, match="--n"):
        parse_range("--n", text, 2, 64)


def test_rows_are_proved_and_come_one_by_one() -> None:
    rows = survey([4, 6], [1, 2])
    first = next(rows)
    assert (first.n, first.m, first.rounds, first.bound, first.gap) == (4, 1, 4, 4, 0)
    assert first.verdict == "proved"
    assert [(row.n, row.m) for row in rows] == [(4, 2), (6, 1), (6, 2)]


def test_gaps_are_no_failure(synth) -> None:
    command = ["table", "--n", "3", "--m", "1,2", "--owners", "balanced"]
    code, out, err = synth(*command)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert len(lines) == 1 + 2 + 2
    assert "gap 1: optimality unknown" in lines[2]
    assert lines[3:] == ["1 of 2 at the lower bound", "bound + 1: n=3 m=2"]
    rows = [json.loads(line) for line in synth(*command, "--json")[1].splitlines()]
    assert [row["basis"] for row in rows[:2]] == ["theorem", "unknown"]


def test_json_is_one_object_per_line(synth) -> None:
    code, out, _ = synth("table", "--n", "3..5", "--json")
    objects = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [row["n"] for row in objects[:-1]] == [3, 4, 5]
    assert all(row["verdict"] == "proved" for row in objects[:-1])
    facts = {"asked": 3, "tried": 3, "at_bound": 3, "above": [], "not_found": []}
    assert objects[-1] == {"summary": facts}


@pytest.fixture
def five_raises(monkeypatch):
    """Arrange that the search for five ranks raises what is given."""
    real = generate.search

    def arrange(error: BaseException) -> None:
        def search(n: int, **options):
            if n == 5:
                raise error
            return real(n, **options)

        monkeypatch.setattr(survey_module.generate, "search", search)

    return arrange


def test_nothing_found_is_told_and_exits_3(synth, five_raises) -> None:
    five_raises(SearchTimeout("no schedule found in 20 s"))
    code, out, _ = synth("table", "--n", "4..6")
    assert code == 3
    assert "not found: no schedule found in 20 s" in out.splitlines()[2]
    assert out.splitlines()[-2:] == ["2 of 3 at the lower bound", "nothing found: n=5"]


def test_interrupt_keeps_the_rows(synth, five_raises) -> None:
    five_raises(KeyboardInterrupt())
    code, out, err = synth("table", "--n", "4..6")
    assert code == 130
    assert [line.split()[0] for line in out.splitlines()[1:2]] == ["4"]
    assert out.splitlines()[-2:] == ["1 of 3 at the lower bound", "not tried: 2"]
    assert err == "interrupted: the rows above are what was done\n"


def test_summary_of_nothing() -> None:
    assert summary([], 2) == "0 of 2 at the lower bound\nnot tried: 2"
