"""``synth compare`` and ``synth table``: rows, pictures, and what is kept when it ends early."""

import json
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latecomer.synth import survey as survey_module
from latecomer.synth.compare import ALGORITHMS, compare, parse_sizes
from latecomer.synth.cost import Link, ring_cost, straggler_cost
from latecomer.synth.straggler import generate
from latecomer.synth.survey import parse_range, survey
from latecomer.verify.errors import SearchTimeout

LINK = Link(3e-6, 450e9)


@settings(deadline=None)
@given(
    n=st.integers(2, 64),
    sizes=st.lists(st.integers(1, 2**40), min_size=1, max_size=4),
    link=st.builds(Link, st.floats(0, 1e-2), st.floats(1e3, 1e13)),
)
def test_rows_add_up(n: int, sizes: list[int], link: Link) -> None:
    comparison = compare(n, sizes, link)
    assert [row.bytes for row in comparison.rows] == sizes
    for row in comparison.rows:
        assert tuple(row.times) == ALGORITHMS
        assert row.times["ring"].seconds == ring_cost(n).over(row.bytes, link)
        assert row.times["straggler"].seconds == straggler_cost(n, row.chunks).over(row.bytes, link)
        assert row.times["straggler"].seconds <= row.times["straggler m=1"].seconds
        assert row.times[row.best].seconds == min(t.seconds for t in row.times.values())
        for time in row.times.values():
            assert time.algbw == pytest.approx(row.bytes / time.seconds)
            assert time.busbw == pytest.approx(time.algbw * 2 * (n - 1) / n)


def test_latency_per_round_is_kinder_to_direct_only() -> None:
    (message,) = compare(8, [1024], LINK).rows
    (kinder,) = compare(8, [1024], LINK, latency="round").rows
    assert message.times["direct"] == message.times["ring"]
    assert kinder.times["direct"].seconds == pytest.approx(2 * 3e-6, rel=1e-2)
    assert kinder.best == "direct"
    unchanged = [name for name in ALGORITHMS if name != "direct"]
    assert [message.times[name] for name in unchanged] == [kinder.times[name] for name in unchanged]


def test_sizes() -> None:
    assert parse_sizes("--sizes", "1KiB:16KiB") == [2**10, 2**12, 2**14]
    assert parse_sizes("--sizes", "1KiB:5KiB", 2) == [2**10, 2**11, 2**12]
    assert parse_sizes("--sizes", "3MiB") == [3 * 2**20]
    assert len(parse_sizes("--sizes", "1B:" + "9" * 30 + "B", 2)) <= 1000


def test_table(synth) -> None:
    code, out, err = synth("compare", "--n", "8", "--sizes", "1KiB:1GiB", "--factor", "1024")
    assert (code, err) == (0, "")
    head = out.splitlines()[:-3]
    rows = out.splitlines()[-3:]
    assert all(line.startswith("#") for line in head)
    assert [row.split()[:2] for row in rows] == [["1", "KiB"], ["1", "MiB"], ["1", "GiB"]]
    assert all(row.count("*") == 1 for row in rows)

    # 1 GiB: 42 rounds of 1/40 of the buffer, 2631.40 us; ring 4217.66 us, its busbw 445.52 GB/s
    assert rows[2].split()[-1] == "40"
    for number in ["4217.66", "254.58", "445.52", "2631.40", "408.05", "714.09"]:
        assert number in rows[2].split()


def test_json_tells_the_same(synth) -> None:
    code, out, _ = synth("compare", "--n", "8", "--sizes", "1GiB", "--json")
    facts = json.loads(out)
    assert code == 0
    assert facts["link"] == {"alpha_s": 3e-6, "bandwidth": 450e9}
    (row,) = facts["rows"]
    assert (row["bytes"], row["chunks"], row["best"]) == (2**30, 40, "straggler")
    assert row["times"]["straggler"]["seconds"] == pytest.approx(2.63140e-3, rel=1e-5)


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_plot(synth, tmp_path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    assert synth("compare", "--n", "4", "--plot", f"a.{suffix}")[0] == 0
    start = (tmp_path / f"a.{suffix}").read_bytes()[:200]
    if suffix == "svg":
        assert b"svg" in start
    else:
        assert start.startswith(b"\x89PNG")


def test_plot_without_matplotlib(synth, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, out, err = synth("compare", "--n", "4", "--plot", "a.svg")
    assert (code, out) == (2, "")
    assert "needs matplotlib, which is not installed. pip install matplotlib" in err


def test_ranges() -> None:
    assert parse_range("--n", "2..5", 2, 64) == [2, 3, 4, 5]
    assert parse_range("--n", "2,3, 8..10,3", 2, 64) == [2, 3, 8, 9, 10]


def test_rows_are_proved_and_come_one_by_one() -> None:
    rows = survey([4, 6], [1, 2])
    first = next(rows)
    assert (first.n, first.m, first.rounds, first.bound, first.gap) == (4, 1, 4, 4, 0)
    assert first.verdict == "proved"
    assert [(row.n, row.m) for row in rows] == [(4, 2), (6, 1), (6, 2)]

    by_chunks = survey([9], [1], chunks=[1, 3])
    assert [(row.n, row.m, row.chunks, row.rounds) for row in by_chunks] == [
        (9, None, 1, 4),
        (9, None, 3, 6),
    ]


def test_gaps_are_no_failure(synth) -> None:
    command = "table --n 3 --m 1,2 --owners balanced"
    code, out, err = synth(*command.split())
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert len(lines) == 1 + 2 + 2
    assert "gap 1: optimality unknown" in lines[2]
    assert lines[3:] == ["1 of 2 at the lower bound", "bound + 1: n=3 chunks=4"]

    _, out, _ = synth(*command.split(), "--json")
    rows = [json.loads(line) for line in out.splitlines()]
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
    first_row = out.splitlines()[1]
    assert first_row.split()[0] == "4"
    assert out.splitlines()[-2:] == ["1 of 3 at the lower bound", "not tried: 2"]
    assert err == "interrupted: the rows above are what was done\n"
