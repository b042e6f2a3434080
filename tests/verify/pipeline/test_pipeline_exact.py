"""Times are compared exactly: one tick is enough, however long a step is."""

import dataclasses
import itertools
import json
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from latecomer.synth.answer import Basis
from latecomer.synth.pipeline import make, plan
from latecomer.synth.pipeline.answer import CLOSED_FORM, basis_of
from latecomer.verify import Verdict
from latecomer.verify.errors import FormatError
from latecomer.verify.kernel import pipeline_differs
from latecomer.verify.output import EXACT_JSON
from latecomer.verify.pipeline import Instance
from latecomer.verify.pipeline.costs import DECIMALS, exact, json_number, told_apart, written
from latecomer.verify.pipeline.format import decode
from latecomer.verify.pipeline.render import makespan_in_words
from latecomer.verify.pipeline.verdict import gap_in_words
from tests.verify.builders import Document
from tests.verify.pipeline.documents import document, report_of, schedule_of

TICK = Fraction(1, 10**DECIMALS)
LONG = 10**12


def one_tick_above() -> Document:
    """Six passes of 10^12 on the critical path, and two of one tick; the bound has only one."""
    return document(
        [
            ["0F0", "0F1", "0I0", "0W0", "0I1", "0W1"],
            ["1F0", "1I0", "1W0", "1F1", "1I1", "1W1"],
        ],
        2,
        forward=[LONG, LONG],
        backward=[LONG, LONG],
        weight=[1e-9, 1e-9],
    )


def test_one_tick_above_the_bound_is_not_optimal() -> None:
    report = report_of(one_tick_above())
    assert report.verdict is Verdict.PROVED
    assert report.measures is not None
    assert report.measures.makespan == report.measures.lower_bound  # as floats
    assert report.measures.exact.makespan == report.measures.exact.lower_bound + 1
    assert report.optimal == "unknown"
    assert report.measures.gap > 0


def test_what_is_printed_is_not_alike() -> None:
    report = report_of(one_tick_above())
    assert report.measures is not None
    assert makespan_in_words(report, report.measures) == (
        "makespan 6000000000000.000000002, lower bound 6000000000000.000000001 "
        "(gap below 0.01%): optimality unknown"
    )

    text = EXACT_JSON.encode(report.to_json()).decode()
    facts = json.loads(text, parse_float=Fraction)
    assert facts["makespan"] - facts["lower_bound"] == TICK
    assert facts["optimal"] == "unknown"
    assert facts["gap"] > 0


def test_the_claim_to_be_optimal_is_not_believed() -> None:
    report = report_of({**one_tick_above(), "meta": {"optimal": True}})
    claims = report.results["claims"]
    assert (report.verdict, claims.verdict) == (Verdict.UNKNOWN, Verdict.UNKNOWN)
    assert "6000000000000.000000002 against the bound 6000000000000.000000001" in claims.note


@pytest.mark.parametrize("name", ["makespan", "lower_bound"])
def test_a_claim_that_is_right_as_a_float_only_is_refuted(name: str) -> None:
    report = report_of({**one_tick_above(), "meta": {name: float(6 * LONG)}})
    assert report.results["claims"].verdict is Verdict.REFUTED


def kernel_says(makespan: int, **changed: Any) -> dict[str, Any]:
    names = ("exactly_once", "deadlock_free", "loss_order", "memory")
    answer = {
        "properties": dict.fromkeys(names, "proved"),
        "decimals": DECIMALS,
        "makespan": makespan,
        "lower_bound": makespan,
        "peak_memory_halves": [4, 2],
    }
    return answer | changed


def test_the_other_checker_must_agree_to_the_tick() -> None:
    report = report_of(one_tick_above())
    ticks = 6 * LONG * 10**DECIMALS + 2
    assert pipeline_differs(kernel_says(ticks), report) == ""
    assert pipeline_differs(kernel_says(ticks - 1), report) == (
        "makespan is 6000000000000.000000002 here, 6000000000000.000000001 there"
    )
    assert "peak memory" in pipeline_differs(kernel_says(ticks, peak_memory_halves=[4, 3]), report)
    assert "above" in pipeline_differs(kernel_says(ticks, lower_bound=ticks + 1), report)


def test_synth_does_not_call_it_optimal_either() -> None:
    ticks = 6 * LONG * 10**DECIMALS
    assert basis_of(ticks + 1, ticks + 2, CLOSED_FORM)[0] is Basis.UNKNOWN
    assert basis_of(ticks + 2, ticks + 2, CLOSED_FORM)[0] is Basis.PAPER

    instance = Instance(forward=(LONG, LONG), backward=(LONG, LONG), weight=(1e-9, 1e-9))
    problem = make(2, instance, rank_of=(0, 1))
    answer = plan(problem, "1f1b")
    exactly = answer.measures.exact
    assert answer.optimal == (exactly.makespan == answer.bound_ticks)
    assert answer.report.results["claims"].verdict is Verdict.PROVED

    above = dataclasses.replace(answer, bound_ticks=exactly.makespan - 1, basis=Basis.PAPER)
    assert not above.optimal
    assert "gap below 0.01%" in above.claim
    assert len({*above.in_words}) == 2


@pytest.mark.parametrize(
    ("typed", "is_kept"),
    [
        ("8", True),
        ("8.5", True),
        ("85e-1", True),
        ("0.100000000", True),
        ("123456789.123456", True),
        ("1000000000000.000000001", False),
        ("0.1000000000000000055", False),
        ("1e-400", False),
        ("1e-99999999999999999999", False),
    ],
)
def test_a_number_that_a_float_does_not_keep_is_refused(typed: str, is_kept: bool) -> None:
    doc = document([["0F0", "0B0"]], 1, forward=["TYPED"], backward=[1], weight=[1])
    text = json.dumps(doc).replace('"TYPED"', typed).encode()
    if is_kept:
        assert decode(text).instance.forward == (float(typed),)
    else:
        with pytest.raises(FormatError, match="more digits than are kept"):
            decode(text)


# -- properties, against fractions ---------------------------------------------------------------

TIMES = st.builds(
    lambda whole, ticks: whole + ticks * TICK,
    st.sampled_from([0, 1, 471, 10**6, 10**12, 6 * 10**12]) | st.integers(0, 10**13),
    st.integers(0, 10**DECIMALS - 1) | st.integers(0, 3),
)


@given(st.lists(TIMES, min_size=2, max_size=4))
def test_texts_are_alike_only_for_equal_times(times: list[Fraction]) -> None:
    texts = told_apart(*times)
    for first, second in itertools.product(range(len(times)), repeat=2):
        assert (times[first] == times[second]) == (texts[first] == texts[second])


@given(TIMES)
def test_in_full_is_exact(time: Fraction) -> None:
    assert Fraction(written(time)) == time
    number = json_number(time)
    assert json.loads(EXACT_JSON.encode(number), parse_float=Fraction) == time


@given(st.fractions(0, 1, max_denominator=10**30))
def test_no_gap_looks_like_none(gap: Fraction) -> None:
    assert (gap_in_words(float(gap)) == "0.00%") == (gap == 0)


DURATIONS = st.sampled_from([0, 1e-9, 2e-9, 0.1, 1, 3, 10**6, 10**12, 0.3, 123456.789])


@settings(max_examples=60, deadline=None)
@given(st.lists(DURATIONS, min_size=6, max_size=6), st.integers(1, 3))
def test_measures_are_those_of_fractions(durations: list[Any], microbatches: int) -> None:
    """Two stages, all forwards first: added up here by hand, with fractions."""
    first = [f"0F{m}" for m in range(microbatches)]
    second = [f"1F{m}" for m in range(microbatches)]
    backwards = [f"{{}}{kind}{m}" for m in range(microbatches) for kind in "IW"]
    doc = document(
        [
            [*first, *(action.format(0) for action in backwards)],
            [*second, *(action.format(1) for action in backwards)],
        ],
        microbatches,
        forward=durations[:2],
        backward=durations[2:4],
        weight=durations[4:],
    )
    f0, f1, i0, i1, w0, w1 = map(exact, durations)

    first_rank = Fraction(0)
    second_rank = Fraction(0)
    arrived = []
    for _ in range(microbatches):
        first_rank += f0
        second_rank = max(second_rank, first_rank) + f1
    for _ in range(microbatches):
        second_rank += i1
        arrived.append(second_rank)
        second_rank += w1
    for gradient in arrived:
        first_rank = max(first_rank, gradient) + i0 + w0
    makespan = max(first_rank, second_rank)

    report = report_of(doc)
    assert report.measures is not None
    numbers = report.measures.exact
    assert numbers.time(numbers.makespan) == makespan
    assert numbers.lower_bound <= numbers.makespan
    assert (report.optimal is True) == (numbers.time(numbers.lower_bound) == makespan)
    assert numbers.peak_memory == (2 * microbatches, 2 * microbatches)

    claim = {**doc, "meta": {"makespan": float(makespan)}}
    verdict = report_of(claim).results["claims"].verdict
    assert (verdict is Verdict.PROVED) == (exact(float(makespan)) == makespan)


@given(TIMES, TIMES)
def test_optimal_is_decided_by_ticks(makespan: Fraction, bound: Fraction) -> None:
    report = report_of(one_tick_above())
    assert report.measures is not None
    unit = 10**DECIMALS
    numbers = replace(
        report.measures.exact,
        ticks=unit,
        makespan=int(makespan * unit),
        lower_bound=int(bound * unit),
    )
    doctored = replace(report, measures=replace(report.measures, exact=numbers))
    assert (doctored.optimal is True) == (makespan == bound)


def test_memory_is_told_in_full() -> None:
    """Of many activations a half more is not rounded away."""
    doc = one_tick_above()
    doc["situation"]["memory"] = [1.5, 1]
    counterexample = report_of(doc).counterexample
    assert counterexample is not None
    assert counterexample.expected == "at most 1.5 activations on rank 0"
    assert counterexample.found == "2 are held here, 2 at the most"
    assert written(Fraction(200001, 2)) == "100000.5"
    assert schedule_of(doc).instance.memory == (1.5, 1)
