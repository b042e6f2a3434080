"""The standard schedules and transpose: proved, and as good as is claimed."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latecomer import synth
from latecomer.synth.cost import Cost, completion_cost, tree_cost
from latecomer.synth.transpose.generate import EXCHANGES, transpose
from latecomer.verify import Incast, Verdict, check, read
from tests.verify.search import Search


@pytest.mark.parametrize("n", range(2, 18))
def test_as_the_literature_says(n: int) -> None:
    ring = synth.ring(n)
    rhd = synth.rhd(n)
    direct = synth.direct(n)
    tree = synth.tree(n)
    doubling = synth.doubling(n)
    circulant = synth.circulant(n)
    for schedule in (ring, rhd, direct, tree, doubling, circulant):
        report = check(schedule)
        assert report.verdict is Verdict.PROVED
        assert report.results["same_bits"].verdict is Verdict.PROVED
        assert report.completion_rounds == schedule.rounds

    hops = (n - 1).bit_length()
    assert (circulant.rounds, circulant.chunks) == (2 * hops, n)
    assert circulant.ports == Incast(n // 2)
    assert completion_cost(circulant) == Cost(2 * hops, Fraction(2 * (n - 1), n))

    one_at_a_time = Cost(2 * (n - 1), Fraction(2 * (n - 1), n))
    assert (ring.rounds, ring.chunks, ring.ports) == (2 * (n - 1), n, "duplex")
    assert completion_cost(ring) == one_at_a_time

    # n - 1 messages leave every rank's one port in each of the two rounds of direct
    assert (direct.rounds, direct.chunks, direct.ports) == (2, n, Incast(n - 1))
    assert completion_cost(direct) == one_at_a_time
    assert completion_cost(direct, "round") == Cost(2, one_at_a_time.share)

    assert (tree.chunks, tree.ports, completion_cost(tree)) == (1, "duplex", tree_cost(n))

    assert (doubling.chunks, doubling.ports) == (1, "duplex")
    assert completion_cost(doubling) == Cost(_folded(n), Fraction(_folded(n)))
    is_power_of_two = n & (n - 1) == 0
    assert check(doubling).optimal is (True if is_power_of_two else "unknown")

    p = rhd.chunks
    assert p <= n < 2 * p
    folding = n > p  # moves the whole buffer twice more
    assert rhd.rounds == 2 * (p.bit_length() - 1) + 2 * folding
    assert rhd.ports == Incast(p if folding else max(1, p // 2))
    assert completion_cost(rhd) == Cost(rhd.rounds, Fraction(2 * (p - 1), p) + 2 * folding)


@pytest.mark.parametrize("n", range(2, 18))
def test_halving_and_doubling_with_the_nearest_first_costs_the_same(n: int) -> None:
    farthest_first = synth.rhd(n)
    nearest_first = synth.rhd(n, nearest_first=True)
    report = check(nearest_first)
    assert report.verdict is Verdict.PROVED
    assert report.results["same_bits"].verdict is Verdict.PROVED
    assert nearest_first.ports == farthest_first.ports
    assert completion_cost(nearest_first) == completion_cost(farthest_first)


def _between_machines(schedule, ranks_per_machine: int) -> int:
    """Chunks that go from one machine to another."""
    return sum(
        transfer.src // ranks_per_machine != transfer.dst // ranks_per_machine
        for phase in schedule.phases
        for transfers in phase.rounds
        for transfer in transfers
    )


@pytest.mark.parametrize(("n", "ranks_per_machine"), [(8, 4), (16, 4), (16, 2), (32, 8)])
def test_with_the_nearest_first_most_bytes_stay_inside_machines(n, ranks_per_machine) -> None:
    machines = n // ranks_per_machine
    # every rank exchanges its share of its machine's sums with the others, there and back
    assert _between_machines(synth.rhd(n, nearest_first=True), ranks_per_machine) == (
        n * 2 * (machines - 1)
    )
    assert _between_machines(synth.rhd(n), ranks_per_machine) == (
        n * 2 * (machines - 1) * ranks_per_machine
    )


def test_public_names() -> None:
    assert synth.__all__ == sorted(synth.__all__)
    assert all(callable(getattr(synth, name)) for name in synth.__all__)


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
def test_proved_with_the_rounds_and_bytes_that_are_claimed(arguments) -> None:
    schedule = transpose(**arguments)
    report = check(schedule)
    assert report.verdict is Verdict.PROVED, report.counterexample
    n = arguments["n"]
    incast = arguments["incast"]
    groups = arguments["groups"]
    group_size = n // groups
    inside = 2 * math.ceil((group_size - 1) / incast)
    if arguments["exchange"] == "doubling":
        between = _folded(groups)
        share = Fraction(2 * (group_size - 1) + between, group_size)
    else:
        between = 2 * math.ceil((groups - 1) / incast)
        share = Fraction(2 * (n - 1), n)

    assert schedule.rounds == inside + between
    assert completion_cost(schedule, "round") == Cost(schedule.rounds, share)
    if groups == 1:
        assert schedule.ports == Incast(incast)
        assert schedule.chunks == n


@pytest.mark.parametrize("n", range(2, 25))
def test_at_most_one_round_above_the_bound(n: int) -> None:
    for incast in range(1, n):
        report = check(transpose(n, incast=incast))
        gap = report.completion_rounds - report.lower_bound
        assert gap in (0, 1)
        if (n - 1) % incast == 0:
            assert gap == 0
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


def test_three_groups_need_three_rounds() -> None:
    """No two rounds with one send and one receive each add up three sums everywhere."""
    search = Search(3, 1)
    assert [search.advance() for _ in range(3)] == [False, False, True]


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
    command = "transpose --n 8 --bytes 25MB --alpha 1ms --bandwidth 1GB/s"
    code, out, _ = synth(*command.split())
    assert code == 0
    assert "14 alpha + 1.75 S*beta = 57.75 ms; no AllReduce takes less than 43.75 ms" in out

    _, out, _ = synth(*command.split(), "--incast", "7", "--json")
    facts = json.loads(out)
    assert (facts["rounds"], facts["lower_bound"], facts["ports"]) == (2, 2, {"incast": 7})
    assert facts["predicted"]["overlapped"]["seconds"] == pytest.approx(0.04575)
    assert facts["predicted"]["one_at_a_time"]["seconds"] == pytest.approx(0.05775)
    assert facts["predicted"]["overlapped"]["at_least_seconds"] == pytest.approx(0.04375)

    _, out, _ = synth("transpose", "--n", "8", "--bytes", "8B", "--alpha", "1ms", "--json")
    tiny = json.loads(out)
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
