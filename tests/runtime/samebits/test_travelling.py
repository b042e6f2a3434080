"""The memory of sums that are done serves those to come, and no more of it than was in use."""

from __future__ import annotations

import pytest
import torch

from latecomer.runtime.samebits.contributions import Contributions, TensorExponents
from latecomer.runtime.samebits.conversion import precision_of
from latecomer.runtime.samebits.repetition import RepetitionAlone
from latecomer.runtime.samebits.summing import SameBits
from latecomer.runtime.samebits.travelling import Spare, layout_of
from latecomer.runtime.work import AllReduceWork
from latecomer.verify.errors import LatecomerError

CPU = torch.device("cpu")


def take(spare, size, dtype=torch.float32):
    precision = precision_of(dtype, 1)
    return spare.take(layout_of((size,), precision.block), precision, dtype, CPU)


def test_what_is_given_back_is_taken_again_by_the_same_sizes_and_dtype():
    spare = Spare()
    first = take(spare, 5)
    spare.give_back(first, most=3)
    assert take(spare, 6) is not first
    assert take(spare, 5, torch.float64) is not first
    assert take(spare, 5) is first
    assert take(spare, 5) is not first


def test_only_the_latest_are_kept():
    spare = Spare()
    given = [take(spare, size) for size in (1, 2, 2, 3)]
    for each in given:
        spare.give_back(each, most=3)
    assert take(spare, 1) is not given[0]
    assert take(spare, 2) is given[2]
    assert take(spare, 2) is given[1]
    assert take(spare, 3) is given[3]


class Engine:
    """An engine of one rank, that remembers what it was given."""

    def __init__(self):
        self.works = []

    def start(self, integers):
        self.works.append(AllReduceWork(len(self.works), integers, average=False))
        return self.works[-1]

    @property
    def addresses(self):
        return [work.tensor.data_ptr() for work in self.works]


@pytest.fixture
def sums():
    made = SameBits(1, CPU, RepetitionAlone(), None)
    yield made
    made.close(at_once=True)


def submit(sums, engine, exponents):
    flat = torch.randn(exponents.values.size)
    given = Contributions(flat, (flat.numel(),))
    return sums.submit(given, [exponents], engine.start, average=True)


def test_sums_that_are_under_way_share_no_memory_and_those_after_them_use_it_again(sums):
    engine = Engine()
    tensors = [TensorExponents(1, torch.float32, 1) for _ in range(3)]
    for step in range(3):
        works = [submit(sums, engine, exponents) for exponents in tensors]
        for work in engine.works[3 * step :]:
            work.settle()
        for work in works:
            work.wait()
    by_step = [set(engine.addresses[3 * step :][:3]) for step in range(3)]
    assert len(by_step[0]) == 3
    assert by_step[1] == by_step[0]
    assert by_step[2] == by_step[0]


def test_memory_of_a_sum_that_failed_is_not_used_again(sums):
    engine = Engine()
    exponents = TensorExponents(1, torch.float32, 1)
    for error in (LatecomerError("lost"), None):
        work = submit(sums, engine, exponents)
        engine.works[-1].settle(error)
        if error is None:
            work.wait()
        else:
            with pytest.raises(LatecomerError, match="lost"):
                work.wait()
    first, second = engine.addresses  # the first tensor is still referred to
    assert first != second
