"""What a sum is, against exact arithmetic: fractions, one element at a time."""

from __future__ import annotations

import functools
import itertools
import math
import struct
import threading
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from latecomer.runtime.samebits import by_torch, conversion
from latecomer.runtime.samebits.blocks import Layout
from latecomer.runtime.samebits.contributions import Contributions, TensorExponents
from latecomer.runtime.samebits.conversion import INTEGERS, holding, precision_of
from latecomer.runtime.samebits.repetition import Repetition
from latecomer.runtime.samebits.summing import SameBits
from latecomer.runtime.samebits.travelling import _paired, _unpaired
from latecomer.runtime.work import AllReduceWork
from latecomer.verify.errors import ArgumentError, LatecomerError, TensorError

BLOCK = 1024
CPU = torch.device("cpu")
FORMATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
SIZES = (1, 5, 300, BLOCK, BLOCK + 3, 2 * BLOCK + 1)


@functools.cache
def rounded(x, exponent):
    """x * 2**e, rounded half to even, exactly."""
    return round(Fraction(x) * Fraction(2) ** exponent)


def number(bits):
    return struct.unpack("<f", struct.pack("<I", bits))[0]


finite = st.integers(0, 2**32 - 1).map(number).filter(math.isfinite)
of_one_scale = st.floats(-8, 8, width=32)


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(st.one_of(finite, of_one_scale), min_size=1, max_size=40),
    repeats=st.sampled_from([1, 70]),
    exponent=st.integers(-100, 120),
    contributions=st.sampled_from([1, 2, 3, 8, 100, 2047]),
)
@example([1e-45, -0.0, 0.0, 1.1754944e-38], 1, 120, 3)  # denormal
@example([3.4e38, -3.4e38], 1, -110, 2047)
def test_integers_and_words_are_what_fractions_say(values, repeats, exponent, contributions):
    precision = precision_of(torch.float32, contributions)
    exponent = min(exponent, precision.highest)
    floats = torch.tensor(values * repeats, dtype=torch.float32)
    layout = Layout((floats.numel(),), BLOCK)
    exponents = np.full(layout.blocks, exponent, np.int32)
    for module in (conversion.on_cpu(), by_torch):
        integers = torch.zeros(layout.elements, dtype=torch.int32)
        words = torch.zeros(layout.blocks, dtype=torch.int32)
        module.to_integers(
            floats,
            layout,
            np.ldexp(1.0, exponents),
            np.ldexp(1.0, exponents - precision.unit),
            precision.refused,
            adds=False,
            integers=integers,
            words=words,
        )
        for block in range(layout.blocks):
            part = floats[block * BLOCK : (block + 1) * BLOCK].tolist()
            top = max(abs(x) for x in part)
            top = top if top >= 2.0**-126 else 0.0
            exact = math.ceil(Fraction(top) * Fraction(2) ** (exponent - precision.unit))
            word = min(exact, precision.refused)
            assert words[block] == word
            expected = [rounded(x, exponent) if word < precision.refused else 0 for x in part]
            assert integers[block * BLOCK : (block + 1) * BLOCK].tolist() == expected
            if word < precision.refused:
                assert max(map(abs, expected)) <= word << precision.unit


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("sizes", [(1,), (5, BLOCK, 7), (2 * BLOCK,), (BLOCK + 3, 1, 1)])
def test_loops_and_torch_operations_give_the_same_bits(dtype, sizes):
    generator = torch.Generator().manual_seed(len(sizes))
    precision = precision_of(dtype, 8)
    layout = Layout(sizes, precision.block)
    held = holding(dtype)
    floats = torch.randn(layout.elements, generator=generator).to(dtype).to(held)
    floats[0] = torch.inf
    exponents = np.arange(layout.blocks, dtype=np.int32) + precision.full - 3
    results = []
    for module in (conversion.on_cpu(), by_torch):
        integers = torch.zeros(layout.elements, dtype=INTEGERS[held])
        words = torch.zeros(layout.blocks, dtype=INTEGERS[held])
        greatest = torch.zeros(layout.blocks, dtype=INTEGERS[held])
        wide = torch.zeros(layout.elements, dtype=torch.int64)
        back = torch.zeros(layout.elements, dtype=held)
        scales = np.ldexp(1.0, exponents)
        for adds in (False, True):
            module.to_integers(
                floats, layout, scales, scales / 16, precision.refused,
                adds=adds, integers=integers, words=words,
            )  # fmt: skip
            module.to_magnitudes(floats, layout, adds=adds, greatest=greatest)
            some = np.where(np.arange(layout.blocks) > 0, scales * 2.0**20, 0.0)
            module.to_wide_integers(floats, layout, some, adds=adds, integers=wide)
        module.to_floats(wide, layout, 1 / (3 * scales), back)
        results.append((integers, words, greatest, wide, back))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)
    assert results[0][1][0] == 2 * precision.refused  # inf


def test_loops_that_are_wrong_are_found_out():
    class Wrong:
        def __getattr__(self, name):
            return getattr(by_torch, name)

        def to_floats(self, integers, layout, factors, floats):
            by_torch.to_floats(integers, layout, factors * 2, floats)

    assert "other bits" in conversion.fault(Wrong())
    assert conversion.fault(by_torch) == ""


class Ranks:
    """All ranks of a job in one process: what they start, and repeat, is done when all have come.

    ``arrivals``: in which order works are settled that are complete; default: as they are.
    """

    def __init__(self, ranks, *, holds=False):
        self.ranks = ranks
        self.holds = holds
        self.waiting = []  # complete operations that nobody was told of
        self.dtypes = []
        self._lock = threading.Lock()
        self._started = [0] * ranks
        self._works = {}
        self._barrier = threading.Barrier(ranks, timeout=60)
        self._repeated = {}

    def start(self, rank):
        """The ``submit`` of a rank's engine."""

        def start(tensor):
            with self._lock:
                number = self._started[rank]
                self._started[rank] += 1
                work = AllReduceWork(number, tensor, average=False)
                works = self._works.setdefault(number, [])
                works.append(work)
                is_complete = len(works) == self.ranks
            if is_complete:
                self.dtypes.append(tensor.dtype)
                total = torch.stack([each.tensor for each in works]).sum(0, dtype=tensor.dtype)
                for each in works:
                    each.tensor.copy_(total)
                if self.holds:
                    self.waiting.append(works)
                else:
                    settle(works)
            return work

        return start

    def repetition(self, rank):
        """A rank's end of repetitions."""

        class OfRank(Repetition):
            def maximum(self, tensor, operation):
                job.meet(rank, tensor, lambda tensors: tensors.amax(0))

            def total(self, tensor, operation):
                job.meet(rank, tensor, lambda tensors: tensors.sum(0))

            def abort(self):
                job._barrier.abort()

            def close(self):
                pass

        job = self
        return OfRank()

    def meet(self, rank, tensor, combine):
        """All ranks' tensors become what ``combine`` makes of them."""
        self._repeated[rank] = tensor
        self._barrier.wait()
        combined = combine(torch.stack([self._repeated[each] for each in range(self.ranks)]))
        self._barrier.wait()
        tensor.copy_(combined)


def settle(works):
    for work in works:
        work.settle()


def summed(dtype, steps, sizes, buckets, shares, contributions):
    """Each step's averages, on the first rank, and how many tensors were summed again.

    ``steps``: for each, all contributions, of all tensors in one; ``shares``: each rank's.
    """
    job = Ranks(len(shares))
    ranks = range(len(shares))
    ends = [0, *np.cumsum(sizes).tolist()]
    sums = [SameBits(contributions, CPU, job.repetition(rank), None) for rank in ranks]
    exponents = [[TensorExponents(size, dtype, contributions) for size in sizes] for _ in ranks]
    results = []
    for step in steps:
        parts = []
        for first, last in buckets:
            flats = []
            works = []
            for rank in ranks:
                mine = [step[number][ends[first] : ends[last]] for number in shares[rank]]
                flat = mine[0].clone()
                others = {
                    index: [
                        each[ends[first + index] - ends[first] :][: sizes[first + index]]
                        for each in mine[1:]
                    ]
                    for index in range(last - first)
                }
                given = Contributions(flat, tuple(sizes[first:last]), len(mine), others)
                tensors = exponents[rank][first:last]
                work = sums[rank].submit(given, tensors, job.start(rank), average=True)
                flats.append(flat)
                works.append(work)
            for work in works:
                work.wait()
            for flat in flats[1:]:
                assert bits_of(flat) == bits_of(flats[0])
            parts.append(flats[0])
        results.append(torch.cat(parts))
    for each in sums:
        each.close()
    return results


def bits_of(tensor):
    patterns = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.itemsize]
    return tensor.view(patterns).tolist()


SPECIAL = [math.inf, -math.inf, math.nan, 0.0, -0.0, 1e-42, 1e30, -1e30, 65504.0]


@st.composite
def trainings(draw):
    """Contributions of some steps: of one scale that drifts, with what is special now and then."""
    dtype = draw(st.sampled_from(FORMATS))
    sizes = draw(st.lists(st.sampled_from(SIZES), min_size=1, max_size=3))
    contributions = draw(st.integers(2, 5))
    seed = draw(st.integers(0, 2**32))
    generator = torch.Generator().manual_seed(seed)
    scale = draw(st.sampled_from([1.0, 1e-3, 1e-12, 1e12, 1e-37]))
    steps = []
    for _ in range(draw(st.integers(1, 4))):
        scale *= draw(st.sampled_from([1.0, 1.0, 0.5, 3.0, 1e-6, 1e5]))
        step = []
        for _ in range(contributions):
            numbers = torch.randn(sum(sizes), generator=generator, dtype=torch.float64) * scale
            if draw(st.booleans()):
                at = draw(st.integers(0, sum(sizes) - 1))
                numbers[at] = draw(st.sampled_from(SPECIAL))
            step.append(numbers.to(dtype))
        steps.append(step)
    return dtype, sizes, contributions, steps


@st.composite
def arranged(draw):
    """A training, and two ways to share it out and to cut it into buckets."""
    dtype, sizes, contributions, steps = draw(trainings())
    ways = []
    for _ in range(2):
        order = draw(st.permutations(range(contributions)))
        ranks = draw(st.integers(1, contributions))
        cuts = sorted(draw(st.permutations(range(1, contributions)))[: ranks - 1])
        bounds = [0, *cuts, contributions]
        shares = [order[begin:end] for begin, end in itertools.pairwise(bounds)]
        some = draw(st.sets(st.integers(1, len(sizes))))
        ends = sorted({0, len(sizes), *some})
        ways.append((shares, list(itertools.pairwise(ends))))
    return dtype, sizes, contributions, steps, ways


@settings(max_examples=80, deadline=None)
@given(arranged())
def test_the_bits_depend_on_the_contributions_alone(job):
    dtype, sizes, contributions, steps, ways = job
    (shares, buckets), (other_shares, other_buckets) = ways
    one = summed(dtype, steps, sizes, buckets, shares, contributions)
    other = summed(dtype, steps, sizes, other_buckets, other_shares, contributions)
    for result, again in zip(one, other, strict=True):
        assert bits_of(result) == bits_of(again)


@settings(max_examples=80, deadline=None)
@given(trainings())
def test_an_average_is_close_to_the_exact_one(training):
    dtype, sizes, contributions, steps = training
    shares = [[number] for number in range(contributions)]
    results = summed(dtype, steps, sizes, [(0, len(sizes))], shares, contributions)
    ends = [0, *np.cumsum(sizes).tolist()]
    for step, result in zip(steps, results, strict=True):
        block_size = precision_of(dtype, contributions).block
        for tensor in range(len(sizes)):
            elements = slice(ends[tensor], ends[tensor + 1])
            parts = [each[elements].double() for each in step]
            for first in range(0, sizes[tensor], block_size):
                block = [part[first : first + block_size] for part in parts]
                of_result = result[elements][first : first + block_size].double()
                if not all(part.isfinite().all() for part in block):
                    assert of_result.isnan().all()
                    continue
                top = max(part[part.isfinite()].abs().max().item() for part in parts)
                exact = sum(block) / contributions
                bits = 7 if dtype == torch.bfloat16 else 13
                bound = top * 2.0**-bits + 2.0**-118
                rounding = exact.abs() * torch.finfo(dtype).eps + torch.finfo(dtype).tiny
                assert bool(((of_result - exact).abs() <= bound + rounding).all())


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.integers(-2184, 2184), min_size=5, max_size=5), max_size=15))
def test_sums_of_pairs_are_pairs_of_sums(contributions):
    rows = torch.tensor([[0] * 5, *contributions], dtype=torch.int32)
    total = torch.stack([_paired(row) for row in rows]).sum(0, dtype=torch.int32)
    assert len(total) == 3
    assert _unpaired(total, 5).tolist() == rows.sum(0).tolist()


def test_bfloat16_has_as_many_bytes_as_its_numbers():
    job = Ranks(1)
    sums = SameBits(1, CPU, job.repetition(0), None)
    lengths = []

    def start(tensor):
        lengths.append(tensor.numel() * tensor.itemsize)
        return job.start(0)(tensor)

    tensor = TensorExponents(64_000, torch.bfloat16, 1)
    flat = torch.ones(64_000, dtype=torch.bfloat16)
    sums.submit(Contributions(flat, (64_000,)), [tensor], start, average=True).wait()
    sums.close()
    assert flat.unique().tolist() == [1.0]
    assert lengths == [2 * 64_000 + 4 * 1_000 + 4]


def test_sums_go_in_32_bits_and_the_first_is_repeated():
    job = Ranks(1)
    sums = SameBits(1, CPU, job.repetition(0), None)
    tensor = TensorExponents(3, torch.float32, 1)
    for step in range(5):
        flat = torch.tensor([1e-9, 2e-9, -3e-9]) * (1 + step)
        sums.submit(Contributions(flat, (3,)), [tensor], job.start(0), average=True).wait()
        torch.testing.assert_close(flat, torch.tensor([1e-9, 2e-9, -3e-9]) * (1 + step))
    assert set(job.dtypes) == {torch.int32}
    assert sums.repeated == 1
    sums.close()


def test_a_sum_waits_for_its_exponents_and_all_behind_it_wait_with_it():
    job = Ranks(1, holds=True)
    sums = SameBits(1, CPU, job.repetition(0), None)
    tensor = TensorExponents(1, torch.float32, 1)
    free = TensorExponents(1, torch.float32, 1)
    flats = [torch.ones(1), torch.full((1,), 2.0), torch.full((1,), 3.0)]
    works = []
    for flat, exponents in zip(flats, (tensor, tensor, free), strict=True):
        given = Contributions(flat, (1,))
        works.append(sums.submit(given, [exponents], job.start(0), average=False))
    integers = torch.tensor([5])
    works.append(sums.pass_on(integers, job.start(0)))
    assert len(job.waiting) == 1  # the second is held up, and the others come after it
    settle(job.waiting.pop())
    for work in works:
        while not work.is_done:
            if job.waiting:
                settle(job.waiting.pop(0))
    assert [flat.item() for flat in flats] == [1.0, 2.0, 3.0]
    assert works[-1].wait().item() == 5
    sums.close()


def test_what_goes_wrong_ends_the_sum():
    job = Ranks(1, holds=True)
    sums = SameBits(2, CPU, job.repetition(0), None)
    tensor = TensorExponents(2, torch.float32, 2)
    given = Contributions(torch.ones(2), (2,))
    work = sums.submit(given, [tensor], job.start(0), average=True)
    settle(job.waiting.pop())
    with pytest.raises(LatecomerError, match="1 contributions were summed, and 2 were agreed on"):
        work.wait()

    def refuse(tensor):
        raise LatecomerError("the engine has failed")

    work = sums.submit(given, [tensor], refuse, average=True)
    with pytest.raises(LatecomerError, match="the engine has failed"):
        work.wait()

    def break_down(tensor):
        raise ValueError("what must not happen")

    work = sums.submit(given, [tensor], break_down, average=True)
    with pytest.raises(LatecomerError, match="bits='same' broke: ValueError"):
        work.wait()

    with pytest.raises(TensorError, match=r"dtype torch\.int32"):
        sums.submit(Contributions(torch.ones(2).int(), (2,)), [tensor], refuse, average=False)
    work = sums.submit(given, [tensor], job.start(0), average=True)
    sums.close(at_once=True)
    with pytest.raises(LatecomerError, match="was not done when"):
        work.wait()
    with pytest.raises(LatecomerError, match="was closed"):
        sums.submit(given, [tensor], job.start(0), average=True)
    with pytest.raises(ArgumentError, match=r"contributions = 2048: must be in 1..2047"):
        SameBits(2048, CPU, job.repetition(0), None)
