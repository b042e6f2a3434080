"""Is a method right: all dtypes, sizes and late ranks, sums and averages, operations at once.

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

from latecomer.runtime.selftest.conformance import beyond_rounding, terms_of
from latecomer.runtime.selftest.device import oracle
from latecomer.runtime.selftest.device.methods import FLOATS, Method, ScheduleChoice
from latecomer.runtime.selftest.device.rank import RankContext

AT_ONCE = 3  # operations of a case


@dataclass(frozen=True)
class OperationCase:
    """Operations of one kind."""

    dtype: torch.dtype
    numel: int
    average: bool

    def __str__(self) -> str:
        how = "average" if self.average else "sum"
        return f"{how} of {self.numel} x {str(self.dtype).removeprefix('torch.')}"


def all_cases(*sizes: int) -> tuple[OperationCase, ...]:
    """All dtypes and numbers of elements, sums and averages."""
    return tuple(
        OperationCase(dtype, numel, average)
        for dtype, numel, average in itertools.product(FLOATS, sizes, (False, True))
    )


def check(
    method: Method,
    context: RankContext,
    cases: Sequence[OperationCase],
    choice: ScheduleChoice,
    late_s: dict[int, float],
) -> tuple[int, str]:
    """How much is wrong in all cases on all ranks, and what first (collective).

    ``late_s`` has the ranks whose streams are held up, with seconds.
    """
    wrong_here = 0
    first_here = ""
    for case in cases:
        wrong_elements = _check_exact(method, context, case, choice, late_s)
        if wrong_elements:
            problem = f"{wrong_elements} element(s) wrong"
        else:
            problem = _check_rounded(method, context, case, choice)
        if problem:
            wrong_here += max(wrong_elements, 1)
            first_here = first_here or f"{case}: {problem}"

    wrong = 0
    first = ""
    messages = context.gather({"wrong": str(wrong_here), "first": first_here})
    for rank, message in enumerate(messages):
        wrong += int(message["wrong"])
        if message["first"] and not first:
            first = f"rank {rank}, {message['first']}"
    return wrong, first


def _check_exact(
    method: Method,
    context: RankContext,
    case: OperationCase,
    choice: ScheduleChoice,
    late_s: dict[int, float],
) -> int:
    """How many elements are wrong in operations that are under way at the same time."""
    tensors = [method.buffer(case.numel, case.dtype) for _ in range(AT_ONCE)]
    for operation, tensor in enumerate(tensors):
        oracle.fill(tensor, context.rank, context.world_size, operation, case.average)
    context.synchronize()

    waits = []
    for tensor in tensors:
        if context.rank in late_s:
            context.delay(late_s[context.rank])
        context.advance(f"submits {case}")
        waits.append(method.submit(tensor, case.average, choice))

    context.advance(f"waits for {case}")
    results = [wait() for wait in waits]
    context.synchronize()
    return sum(
        oracle.wrong_elements(result, context.world_size, operation)
        for operation, result in enumerate(results)
    )


def _check_rounded(
    method: Method, context: RankContext, case: OperationCase, choice: ScheduleChoice
) -> str:
    """What is wrong with a sum of random floats; "" if nothing is."""
    world_size = context.world_size
    generator = torch.Generator().manual_seed(case.numel)  # all ranks draw the inputs of all
    drawn = torch.randn(world_size, case.numel, generator=generator, dtype=torch.float64)
    inputs = drawn.to(case.dtype)

    tensor = method.buffer(case.numel, case.dtype)
    tensor.copy_(inputs[context.rank])
    context.synchronize()
    context.advance(f"submits {case} of random floats")
    wait = method.submit(tensor, case.average, choice)
    context.advance(f"waits for {case} of random floats")
    result = wait()
    context.synchronize()
    result = result.cpu()

    terms = terms_of(inputs, case.average)
    beyond = int(beyond_rounding(terms, result).sum())

    digest = hashlib.sha256(result.view(torch.uint8).numpy().tobytes()).hexdigest()
    digests = {message["digest"] for message in context.gather({"digest": digest})}
    if beyond:
        return f"{beyond} element(s) beyond rounding"
    return "" if len(digests) == 1 else "ranks differ in bits"
