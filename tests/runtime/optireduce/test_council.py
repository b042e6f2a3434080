"""What the ranks decide together: when, from what, and the same everywhere."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from runtime.optireduce.options import Options
from runtime.optireduce.sync import SyncPoint


def _reliable(*others):
    """Three ranks; the two others say what is given, the second time times of 1 s."""
    said = [others]

    def gather(values):
        given = said.pop() if said else [[1.0] * len(values)] * 2
        return [values, *given]

    return SimpleNamespace(gather=gather)


def _ledger(loss=0.0):
    return SimpleNamespace(loss=lambda steps: loss)


def test_the_bound_is_that_of_the_largest_bucket_over_all_ranks():
    council = SyncPoint(Options(bound_floor_s=0.0))
    assert council.bound_s == Options().warmup_bound_s
    for size, stage_s in [(500, 7.0), (9000, 3.0), (9000, 2.0), (40, 9.0), (9000, 0.5)]:
        council.took(size, stage_s)
    council.meet(_reliable([2.0, 0.0], [5.0, 0.0]), _ledger())  # as many as the fewest have: 2
    assert council.bound_s == 2.0 * Options().bound_factor
    council.took(9000, 5.0)  # from now on among the latest three
    council.meet(_reliable([3.0, 0.0], [3.0, 0.0]), _ledger())
    assert council.bound_s == 5.0 * Options().bound_factor


def test_the_bound_stays_where_nothing_is_known_or_it_is_set_by_hand():
    council = SyncPoint(Options(warmup_bound_s=0.4))
    council.took(40, 0.1)
    council.meet(_reliable([0.0, 0.0], [1.0, 0.0]), _ledger())
    assert council.bound_s == 0.4
    council = SyncPoint(Options(bound_s=0.5))
    council.took(40, 0.1)
    council.meet(_reliable([1.0, 0.0], [1.0, 0.0]), _ledger())
    assert council.bound_s == 0.5


@pytest.mark.parametrize(
    ("when", "others", "expected"),
    [("auto", [0.0, 0.03], True), ("auto", [0.0, 0.01], False), ("off", [0.9, 0.9], False),
     ("on", [0.0, 0.0], True)],
)  # fmt: skip
def test_the_transform_goes_by_the_rank_that_lost_most(when, others, expected):
    options = Options(warmup_steps=4, resync_steps=10, hadamard=when)
    council = SyncPoint(options)
    council.meet(_reliable(*([0.0, loss] for loss in others)), _ledger(0.015))
    assert council.hadamard is expected


def test_councils_come_at_the_same_steps_everywhere():
    council = SyncPoint(Options(warmup_steps=4, reliable_steps=1, resync_steps=10))
    assert [step for step in range(40) if council.due(step)] == [4, 14, 24, 34]
    council = SyncPoint(Options(warmup_steps=0, bound_s=1.0, resync_steps=0))
    assert not any(council.due(step) for step in range(40))
