"""What the ranks decide together: when, from what, and the same everywhere."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from runtime.optireduce.council import LEAST_RATE, Council
from runtime.optireduce.options import Options


def _reliable(times_s, others):
    """Three ranks; the two others give what is said, as many numbers as this one."""

    def gather(values):
        return [values, *([other] * len(values) for other in others)]

    return SimpleNamespace(stage_times=SimpleNamespace(times_s=times_s), gather=gather)


def test_the_bound_is_that_of_the_largest_regular_bucket_after_it_has_settled():
    options = Options(warmup_steps=8, settle_steps=3, bound_factor=2.0, bound_floor_s=0.0)
    times = {9000: [7.0], 500: [5.0, 5.0, 5.0, 0.1, 0.1, 0.3], 40: [9.0] * 6}
    council = Council(options)
    # the others say 3 where the ranks count and where they give times
    council.meet(8, _reliable(times, [3.0, 3.0]), SimpleNamespace())
    assert council.bound_s == pytest.approx(6.0)
    nothing = Council(Options(warmup_steps=8, bound_floor_s=0.4))
    nothing.meet(8, _reliable({}, [0.0, 0.0]), SimpleNamespace())
    assert nothing.bound_s == pytest.approx(0.4)


def test_the_bound_leaves_time_for_the_processor_unless_it_is_set_by_hand():
    times = {60_000_000: [0.01] * 8}
    council = Council(Options(warmup_steps=8))
    council.meet(8, _reliable(times, [0.0, 0.0]), SimpleNamespace())
    assert council.bound_s == pytest.approx(40e6 / LEAST_RATE)
    council = Council(Options(warmup_steps=8, bound_s=0.5))
    council.meet(8, _reliable(times, [0.0, 0.0]), SimpleNamespace())
    assert council.bound_s == 0.5


@pytest.mark.parametrize(
    ("when", "others", "expected"),
    [("auto", [0.0, 0.03], True), ("auto", [0.0, 0.01], False), ("off", [0.9, 0.9], False),
     ("on", [0.0, 0.0], True)],
)  # fmt: skip
def test_the_transform_goes_by_the_rank_that_lost_most(when, others, expected):
    options = Options(warmup_steps=4, resync_steps=10, hadamard=when)
    council = Council(options)
    council.meet(14, _reliable({}, others), SimpleNamespace(loss=lambda steps: 0.015))
    assert council.hadamard is expected


def test_councils_come_at_the_same_steps_everywhere():
    council = Council(Options(warmup_steps=4, settle_steps=1, resync_steps=10))
    assert [step for step in range(40) if council.due(step)] == [4, 14, 24, 34]
    council = Council(Options(warmup_steps=0, bound_s=1.0, resync_steps=0))
    assert not any(council.due(step) for step in range(40))
