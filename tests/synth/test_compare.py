"""``synth compare``: the numbers against the cost model, the table, the picture, bad input."""

import json
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.compare import ALGORITHMS, compare, parse_sizes
from synth.cost import Link, ring_cost, straggler_cost
from verify.errors import ArgumentError

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
        assert row.times["straggler"].seconds == straggler_cost(n, row.m).over(row.bytes, link)
        assert row.times["straggler"].seconds <= row.times["straggler m=1"].seconds
        assert row.times[row.best].seconds == min(t.seconds for t in row.times.values())
        for time in row.times.values():
            assert time.algbw == pytest.approx(row.bytes / time.seconds)
            assert time.busbw == pytest.approx(time.algbw * 2 * (n - 1) / n)


def test_ring_busbw_is_below_the_link_and_nears_it() -> None:
    times = [row.times["ring"] for row in compare(8, [2**20, 2**40], LINK).rows]
    assert times[0].busbw < times[1].busbw < LINK.bandwidth
    assert times[1].busbw == pytest.approx(LINK.bandwidth, rel=1e-3)


def test_latency_per_round_is_kinder_to_direct_only() -> None:
    (message,) = compare(8, [1024], LINK).rows
    (kinder,) = compare(8, [1024], LINK, latency="round").rows
    assert message.times["direct"] == message.times["ring"]
    assert kinder.times["direct"].seconds == pytest.approx(2 * 3e-6, rel=1e-2)
    assert kinder.best == "direct"
    others = [name for name in ALGORITHMS if name != "direct"]
    assert [message.times[name] for name in others] == [kinder.times[name] for name in others]


def test_sizes() -> None:
    assert parse_sizes("--sizes", "1KiB:16KiB") == [2**10, 2**12, 2**14]
    assert parse_sizes("--sizes", "1KiB:5KiB", 2) == [2**10, 2**11, 2**12]
    assert parse_sizes("--sizes", "3MiB") == [3 * 2**20]
    assert len(parse_sizes("--sizes", "1B:" + "9" * 30 + "B", 2)) <= 1000


@pytest.mark.parametrize("text", ["", ":", "1KiB:", "2KiB:1KiB", "0B:1B", "1KiB:1GiB:2"])
def test_bad_sizes(text: str) -> None:
    with pytest.raises(ArgumentError):
        parse_sizes("--sizes", text)


def test_table(synth) -> None:
    code, out, err = synth("compare", "--n", "8", "--sizes", "1KiB:1GiB", "--factor", "1024")
    assert (code, err) == (0, "")
    head, rows = out.splitlines()[:-3], out.splitlines()[-3:]
    assert all(line.startswith("#") for line in head)
    assert [row.split()[:2] for row in rows] == [["1", "KiB"], ["1", "MiB"], ["1", "GiB"]]
    assert all(row.count("*") == 1 for row in rows)
    # 1 GiB: 44 rounds of 1/42 of the buffer, 2631.72 us; ring 4217.66 us, its busbw 445.52 GB/s
    assert rows[2].split()[-1] == "6"
    for number in ["4217.66", "254.58", "445.52", "2631.72", "408.00", "714.00"]:
        assert number in rows[2].split()


def test_json_tells_the_same(synth) -> None:
    code, out, _ = synth("compare", "--n", "8", "--sizes", "1GiB", "--json")
    facts = json.loads(out)
    assert code == 0
    assert facts["link"] == {"alpha_s": 3e-6, "bandwidth": 450e9}
    (row,) = facts["rows"]
    assert (row["bytes"], row["m"], row["best"]) == (2**30, 6, "straggler")
    assert row["times"]["straggler"]["seconds"] == pytest.approx(2.63172e-3, rel=1e-5)


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_plot(synth, tmp_path, suffix: str) -> None:
    pytest.importorskip("matplotlib")
    assert synth("compare", "--n", "4", "--plot", f"a.{suffix}")[0] == 0
    start = (tmp_path / f"a.{suffix}").read_bytes()[:200]
    assert (b"svg" in start) if suffix == "svg" else start.startswith(b"\x89PNG")


def test_plot_without_matplotlib(synth, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, out, err = synth("compare", "--n", "4", "--plot", "a.svg")
    assert (code, out) == (2, "")
    assert "needs matplotlib, which is not installed. pip install matplotlib" in err
