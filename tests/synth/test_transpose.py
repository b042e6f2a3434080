"""Transpose AllReduce: proved, with the rounds that are claimed for it; and its command."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.cost import Cost, completion_cost
from synth.transpose.generate import EXCHANGES, transpose
from verify import Incast, Phase, Schedule, Transfer, Verdict, check, read
from verify.core.semantics import exactly_once


def _divisors(n: int) -> list[int]:
    return [g for g in range(1, n + 1) if n % g == 0]


@st.composite
def settings_of(draw):
    n = draw(st.integers(2, 24))
    return {
        "n": n,
        "incast": draw(st.integers(1, n - 1)),
        "groups": draw(st.sampled_from(_divisors(n))),
        "exchange": draw(st.sampled_from(EXCHANGES)),
    }


def _folded(groups: int) -> int:
    """Rounds of recursive doubling, with a fold before and after if it is no power of two."""
    return int(math.log2(groups)) + 2 * (not math.log2(groups).is_integer())


@settings(max_examples=150, deadline=None)
@given(settings_of())
def test_proved_with_the_rounds_and_bytes_that_are_claimed(given) -> None:
    schedule = transpose(**given)
    report = check(schedule)
    assert report.verdict is Verdict.PROVED, report.counterexample
    n, incast, groups = given["n"], given["incast"], given["groups"]
    size = n // groups
    inside, between = (2 * math.ceil((m - 1) / incast) for m in (size, groups))
    share = Fraction(2 * (n - 1), n)
    if given["exchange"] == "doubling":
        between = _folded(groups)
        share = Fraction(2 * (size - 1) + between, size)
    assert schedule.rounds == inside + between
    assert completion_cost(schedule, "round") == Cost(schedule.rounds, share)
    if groups == 1:
        assert schedule.ports == Incast(incast)
        assert schedule.chunks == n


@pytest.mark.parametrize("n", range(2, 40))
def test_at_most_one_round_above_the_bound(n: int) -> None:
    for incast in range(1, n):
        report = check(transpose(n, incast=incast))
        gap = report.completion_rounds - report.lower_bound
        assert gap == 0 if (n - 1) % incast == 0 else gap in (0, 1)
        assert report.optimal is True or gap == 1


@pytest.mark.parametrize(
    ("n", "incast"), [(n, incast) for n in (2, 5, 8, 13) for incast in (1, 2, 3, 7) if incast < n]
)
def test_nothing_takes_a_detour(n: int, incast: int) -> None:
    """Chunk c: first n - 1 contributions straight to rank c, then n - 1 sums straight from it."""
    scatter, gather = transpose(n, incast=incast).phases
    contributions = [t for moves in scatter.rounds for t in moves]
    sums = [t for moves in gather.rounds for t in moves]
    pairs = {(a, b) for a in range(n) for b in range(n) if a != b}
    assert all(t.op == "reduce" and t.chunk == t.dst for t in contributions)
    assert all(t.op == "copy" and t.chunk == t.src for t in sums)
    for transfers in (contributions, sums):
        assert {(t.src, t.dst) for t in transfers} == pairs
        assert len(transfers) == len(pairs)


def test_as_many_rounds_as_the_source_or_fewer() -> None:
    """2 (n/G - 1) + (G - 1), but for three groups, where that can't be had."""
    for size, groups in itertools.product(range(1, 9), range(2, 33)):
        source = 2 * (size - 1) + groups - 1
        ours = transpose(size * groups, groups=groups).rounds
        assert ours <= source + (groups == 3)
    assert transpose(64, groups=16).rounds == 10


def test_three_groups_need_three_rounds() -> None:
    """No two rounds with one send and one receive each add up three sums everywhere."""
    moves = []
    for to in itertools.product([None, 0, 1, 2], repeat=3):
        pairs = [(src, dst) for src, dst in enumerate(to) if dst is not None]
        if all(a != b for a, b in pairs) and len({b for _, b in pairs}) == len(pairs):
            for ops in itertools.product(("copy", "reduce"), repeat=len(pairs)):
                together = zip(pairs, ops, strict=True)
                moves.append(tuple(Transfer(a, b, 0, op) for (a, b), op in together))
    assert len(moves) > 60
    for rounds in itertools.product(moves, repeat=2):
        schedule = Schedule(ranks=3, chunks=1, phases=(Phase("all", (), rounds),))
        assert exactly_once(schedule).verdict is Verdict.REFUTED


@pytest.mark.parametrize(("groups", "same"), [(2, True), (3, False), (4, False)])
def test_why_not_the_exchange_of_the_source(groups: int, same: bool) -> None:
    """Everybody adds everybody's sums: from three groups on, in different orders."""
    everybody = tuple(
        Transfer((g + shift) % groups, g, 0, "reduce")
        for g in range(groups)
        for shift in range(1, groups)
    )
    phases = (Phase("exchange", (), (everybody,)),)
    report = check(Schedule(ranks=groups, chunks=1, ports=Incast(groups - 1), phases=phases))
    assert report.results["exactly_once"].verdict is Verdict.PROVED
    assert (report.results["same_bits"].verdict is Verdict.PROVED) == same


def test_fewest_rounds_or_fewest_bytes() -> None:
    flat = completion_cost(transpose(64))
    fast = completion_cost(transpose(64, groups=8))
    small = completion_cost(transpose(64, groups=8, exchange="transpose"))
    assert fast.messages < small.messages < flat.messages
    assert flat.share == small.share < fast.share


def test_written_and_explained(synth, tmp_path) -> None:
    code, out, err = synth("transpose", "--n", "8", "--incast", "2")
    assert (code, err) == (0, "")
    schedule = read(tmp_path / "schedule.json")
    assert check(schedule).verdict is Verdict.PROVED
    assert (schedule.ranks, schedule.ports) == (8, Incast(2))
    for fact in [
        "8 ranks in 8 chunks, incast 2",
        "4 reduce_scatter + 4 all_gather = 8",
        "7 rounds for any AllReduce",
        "8 without detours",
        "one at a time 14 alpha + 1.75 S*beta; no AllReduce takes less than 3 alpha, or 1.75",
        "overlapped    8 alpha + 1.75 S*beta; no AllReduce takes less than 2 alpha, or 1.75",
    ]:
        assert fact in out
    assert "optimal" not in out


def test_times(synth) -> None:
    options = ["--bytes", "25MB", "--alpha", "1ms", "--bandwidth", "1GB/s"]
    code, out, _ = synth("transpose", "--n", "8", *options)
    assert code == 0
    assert "14 alpha + 1.75 S*beta = 57.75 ms; no AllReduce takes less than 43.75 ms" in out
    facts = json.loads(synth("transpose", "--n", "8", "--incast", "7", *options, "--json")[1])
    assert (facts["rounds"], facts["lower_bound"], facts["ports"]) == (2, 2, {"incast": 7})
    assert facts["predicted"]["overlapped"]["seconds"] == pytest.approx(0.04575)
    assert facts["predicted"]["one_at_a_time"]["seconds"] == pytest.approx(0.05775)
    assert facts["predicted"]["overlapped"]["at_least_seconds"] == pytest.approx(0.04375)
    options = ["--bytes", "8B", "--alpha", "1ms", "--json"]
    tiny = json.loads(synth("transpose", "--n", "8", *options)[1])
    assert tiny["predicted"]["one_at_a_time"]["at_least_seconds"] == pytest.approx(0.003)


def test_groups(synth, tmp_path) -> None:
    code, out, _ = synth("transpose", "--n", "16", "--groups", "4", "-o", "two.json.gz", "--json")
    facts = json.loads(out)
    assert code == 0
    assert facts["phases"] == {"reduce_scatter": 3, "exchange": 2, "all_gather": 3}
    assert facts["fewest_rounds_without_detours"] is None
    assert check(read(tmp_path / "two.json.gz")).verdict is Verdict.PROVED
    _, out, _ = synth("transpose", "--n", "16", "--groups", "4", "--exchange", "transpose")
    assert "incast 1 of messages, 4 of chunks" in out


def test_documented_commands(tmp_path) -> None:
    root = Path(__file__).parents[2]
    text = (root / "docs" / "transpose.md").read_text()
    commands = re.findall(r"^\$ (.*)$", text, re.MULTILINE)
    assert len(commands) == 6
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    for command in commands:
        options = {"shell": True, "cwd": tmp_path, "env": environment, "capture_output": True}
        done = subprocess.run(command, **options, timeout=500, check=False)
        assert done.returncode == 0, f"{command}\n{done.stdout!r}\n{done.stderr!r}"
