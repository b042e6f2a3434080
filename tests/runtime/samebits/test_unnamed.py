"""Tensors without a name find their predecessors, a step earlier."""

from __future__ import annotations

import itertools

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from latecomer.runtime.samebits import unnamed
from latecomer.runtime.samebits.unnamed import UnnamedTensors


def predecessors(sizes):
    """For each tensor of a sequence, which one it takes its exponents from; -1: from none."""
    tensors = UnnamedTensors(contributions=2)
    places = {}
    found = []
    for place, size in enumerate(sizes):
        exponents = tensors.next(torch.empty(size))
        found.append(places.get(id(exponents._after), -1))
        places[id(exponents)] = place
        kept.append(exponents)  # so that no other gets its id
    return found


kept = []


def test_a_step_is_recognized_from_its_third_time_on():
    step = [5, 7, 7, 5, 9]
    found = predecessors(step * 4)
    assert found[10:] == [place - 5 for place in range(10, 20)]


def test_what_comes_before_training_does_not_matter():
    found = predecessors([3, 8, 8] + [5, 7, 7, 5, 9] * 6)
    assert found[-10:] == [place - 5 for place in range(len(found) - 10, len(found))]


@settings(max_examples=300, deadline=None)
@example([1, 1, 2, 1, 1, 2, 1, 2], [])  # repeats itself within, at each of its beginnings
@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=12),
    st.lists(st.integers(1, 5), max_size=8),
)
def test_after_some_steps_each_tensor_follows_itself(step, before):
    sizes = before + step * 12
    found = predecessors(sizes)
    for place in range(len(sizes) - len(step), len(sizes)):
        behind = place - found[place]
        # a step before, or where the sequence looks the same for as long as a step
        assert (
            sizes[found[place] - len(step) : found[place] + 1]
            == (sizes[place - len(step) : place + 1])
        ), (behind, found)


def test_a_long_job_forgets_what_it_need_not_know(monkeypatch):
    monkeypatch.setattr(unnamed, "LONGEST_PERIOD", 8)
    step = [5, 7, 7, 5, 9]
    tensors = UnnamedTensors(contributions=2)
    seen = []
    for size in itertools.islice(itertools.cycle(step), 500):
        seen.append(tensors.next(torch.empty(size)))
        assert len(tensors._keys) <= 32
        assert len(tensors._exponents) <= 8
    for place in range(20, 500):
        assert seen[place]._after is seen[place - 5], place


def test_a_change_is_learned():
    found = predecessors([1, 2, 3] * 5 + [4, 4, 6] * 6)
    assert found[-3:] == [place - 3 for place in range(len(found) - 3, len(found))]
