"""Predictions for GPUs: in line with what others published, with the cost model, and the page."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latecomer import synth
from latecomer.runtime.device.predict import (
    A100,
    H100,
    SPREAD,
    in_stages,
    machine_of,
    others,
    ours,
    priced,
    table,
    table_of_stages,
)
from latecomer.synth.cost import rhd_cost, straggler_cost
from tests.runtime.device.machines import in_stages as made_in_stages
from tests.runtime.device.machines import machine as machine_of_ranks

MIB = 2**20
PAGE = Path(__file__).parents[3] / "bench/tables/gpu-predicted.md"

PUBLISHED = {  # microseconds by MiB, from the pages that latecomer.runtime.device.predict names
    ("nccl", 8): (
        (0.5, 24),
        (1, 25),
        (2, 37),
        (4, 50),
        (16, 121),
        (32, 195),
        (64, 316),
        (128, 561),
    ),
    ("nccl", 6): ((0.5, 23), (1, 25), (2, 43), (4, 53)),
    ("nccl", 4): ((0.5, 21), (1, 23), (2, 28), (4, 39)),
    ("one_shot", 6): ((0.5, 13), (1, 21), (2, 38), (4, 70)),
    ("one_shot", 4): ((0.5, 10), (1, 14), (2, 23), (4, 38)),
    ("one_shot", 2): ((0.5, 7),),
    ("two_shot", 8): ((0.5, 15), (1, 17), (4, 37), (16, 125), (64, 468), (128, 923)),
    ("two_shot", 6): ((0.5, 17), (1, 21), (2, 29), (4, 41)),
    ("two_shot", 4): ((0.5, 16), (1, 19), (2, 23)),
    ("multimem", 8): ((0.5, 11), (1, 14), (4, 27), (16, 87), (64, 320), (128, 631)),
    ("multimem", 6): ((0.5, 13), (1, 16), (2, 21), (4, 31)),
}


@pytest.mark.parametrize(("way", "n"), PUBLISHED)
def test_published_times_are_in_the_range(way, n):
    for mib, us in PUBLISHED[way, n]:
        predicted = others(way, n, int(mib * MIB), H100)
        assert predicted.low <= us * 1e-6 <= predicted.high, (mib, us, str(predicted))


def test_half_and_twice_the_published_times_are_not():
    for (way, n), times in PUBLISHED.items():
        for mib, us in times:
            predicted = others(way, n, int(mib * MIB), H100)
            assert not predicted.low <= us * 0.5e-6 <= predicted.high
            assert not predicted.low <= us * 2e-6 <= predicted.high


@settings(max_examples=15)
@given(st.integers(2, 9), st.integers(1, 8), st.sampled_from(["kernel", "transfers"]))
def test_the_range_is_one_and_grows(n, chunks, way):
    schedule = synth.generate(n, chunks=chunks)
    for nbytes in (2**12, 2**22, 2**30):
        late = ours(way, schedule, nbytes, H100, late=True)
        on_time = ours(way, schedule, nbytes, H100, late=False)
        assert 0 < late.low < late.high
        assert late.low <= on_time.low
        slower = ours(way, schedule, nbytes, A100, late=True)
        larger = ours(way, schedule, 2 * nbytes, H100, late=True)
        assert late.low < slower.low
        assert late.high < larger.high


def test_the_completion_of_eight_ranks_by_hand():
    predicted = ours("kernel", synth.generate(8, chunks=4), 4 * MIB, H100, late=True)

    best_us = 5.7 - 2 * 1.9 + 6 * 1.9 + 6 * MIB / 370e3
    worst_us = 5.7 + 6 * 3.4 + 6 * MIB * (1 / 370e3 + 3 / 2500e3)
    assert predicted.low * 1e6 == pytest.approx(best_us)
    assert predicted.high * 1e6 == pytest.approx(worst_us)


@pytest.mark.parametrize("n", [2, 5, 8])
@pytest.mark.parametrize("way", ["kernel", "transfers"])
def test_the_closed_forms_of_the_page_are_what_the_schedules_cost(n, way):
    nbytes = 3 * MIB

    cost = straggler_cost(n, 5)
    predicted = ours(way, synth.generate(n, chunks=5), nbytes, H100, late=True)
    assert predicted == priced(way, cost, cost, nbytes, H100)

    cost = rhd_cost(n)
    predicted = ours(way, synth.rhd(n), nbytes, H100, late=False)
    assert predicted == priced(way, cost, cost, nbytes, H100)


def test_stages_by_hand():
    """Two machines of two: a round in each of two kernels, and one between."""
    ranks = machine_of_ranks(2, 2)
    schedule = made_in_stages(2, 2)
    for nbytes, pieces in ((4 * MIB, 1), (2**30, 16)):
        predicted = in_stages(schedule, ranks, nbytes, H100)
        kernels_us = 2 * (5.7 - 2 * 1.9) + 2 * 1.9 + nbytes / 370e3
        network_us = 2.7 + nbytes / 2 / 48e3
        longer = max(kernels_us, network_us)
        best_us = longer + (kernels_us + network_us - longer) / pieces
        worst_us = 2 * 5.7 + 2 * 3.4 + nbytes * (1 / 370e3 + 3 / 2500e3)
        worst_us += 8.4 + 14.0 + nbytes / 2 / 46e3
        assert predicted.low * 1e6 == pytest.approx(best_us)
        assert predicted.high * 1e6 == pytest.approx(worst_us)


def test_which_machines_are_known():
    assert machine_of("NVIDIA H100 80GB HBM3") is H100
    assert machine_of("NVIDIA A100-SXM4-80GB") is A100
    assert machine_of("NVIDIA H800") is None
    assert others("multimem", 8, MIB, A100) is None
    assert set(SPREAD) == {way for way, _ in PUBLISHED}


@pytest.mark.parametrize(("n", "machine"), [(8, H100), (4, H100), (2, H100), (8, A100)])
def test_the_page_has_these_tables(n, machine):
    assert table(n, machine) in PAGE.read_text()


def test_the_page_has_the_table_of_stages():
    assert table_of_stages(2, 8, H100) in PAGE.read_text()
