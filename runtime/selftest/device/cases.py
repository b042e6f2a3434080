"""Is a way right: all dtypes, sizes and late ranks, sums and averages, several operations at once.

A case is a few operations that are all submitted before the first is waited for, while the streams
of the late ranks are held up. Every element of every result is compared with the oracle's; then
random floats are summed, which must come out within rounding and with the same bits on all ranks.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from runtime.selftest.device import oracle
from runtime.selftest.device.methods import FLOATS, Method, What
from runtime.selftest.device.place import Place

AT_ONCE = 3  # operations of a case


@dataclass(frozen=True)
class Case:
    """Operations of one kind."""

    dtype: torch.dtype
    numel: int
    average: bool

    def __str__(self) -> str:
        how = "average" if self.average else "sum"
        return f"{how} of {self.numel} x {str(self.dtype).removeprefix('torch.')}"


def every(*sizes: int) -> tuple[Case, ...]:
    """All dtypes and sizes, sums and averages."""
    return tuple(Case(*each) for each in itertools.product(FLOATS, sizes, (False, True)))


def check(
    method: Method, place: Place, cases: Sequence[Case], what: What, late: dict[int, float]
) -> tuple[int, str]:
    """How much is wrong in all cases on all ranks, and what first (collective).

    ``late`` are the ranks whose streams are held up, with seconds.
    """
    bad = 0
    first = ""
    for case in cases:
        wrong = _exact(method, place, case, what, late)
        found = f"{wrong} element(s) wrong" if wrong else _rounded(method, place, case, what)
        if found:
            bad += max(wrong, 1)
            first = first or f"{case}: {found}"
    said = place.gather({"wrong": str(bad), "first": first})
    total = sum(int(one["wrong"]) for one in said)
    ranks = [f"rank {rank}, {one['first']}" for rank, one in enumerate(said) if one["first"]]
    return total, ranks[0] if ranks else ""


def _exact(method: Method, place: Place, case: Case, what: What, late: dict[int, float]) -> int:
    """How many elements are wrong in operations that are under way at the same time."""
    tensors = [method.buffer(case.numel, case.dtype) for _ in range(AT_ONCE)]
    for operation, tensor in enumerate(tensors):
        oracle.fill(tensor, place.rank, place.size, operation, case.average)
    place.synchronize()
    waits = []
    for tensor in tensors:
        if place.rank in late:
            place.delay(late[place.rank])
        place.advance(f"submits {case}")
        waits.append(method.submit(tensor, case.average, what))
    place.advance(f"waits for {case}")
    results = [wait() for wait in waits]
    place.synchronize()
    return sum(oracle.wrong(result, place.size, n) for n, result in enumerate(results))


def _rounded(method: Method, place: Place, case: Case, what: What) -> str:
    """What is wrong with a sum of random floats; "" if nothing is."""
    made = torch.Generator().manual_seed(case.numel)
    drawn = torch.randn(place.size, case.numel, generator=made, dtype=torch.float64)
    brought = drawn.to(case.dtype)
    tensor = method.buffer(case.numel, case.dtype)
    tensor.copy_(brought[place.rank])
    place.synchronize()
    place.advance(f"submits {case} of random floats")
    wait = method.submit(tensor, case.average, what)
    place.advance(f"waits for {case} of random floats")
    result = wait()
    place.synchronize()
    result = result.cpu()
    scaled = brought.double() / (place.size if case.average else 1)
    kind = torch.finfo(case.dtype)  # n inputs are scaled once and added n - 1 times
    bound = place.size * (kind.eps * scaled.abs().sum(0) + kind.smallest_normal)
    beyond = int((~((result.double() - scaled.sum(0)).abs() <= bound)).sum())
    digest = hashlib.sha256(result.view(torch.uint8).numpy().tobytes()).hexdigest()
    others = {one["digest"] for one in place.gather({"digest": digest})}
    if beyond:
        return f"{beyond} element(s) beyond rounding"
    return "" if len(others) == 1 else "ranks differ in bits"
