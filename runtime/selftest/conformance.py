"""The conformance suite: what every way of running a schedule must do, case by case.

Each case is one call of a function that all-reduces a tensor in place, with data made from (seed,
case, rank), so that every rank can compute what all others brought:

    exact    small integers in the dtype: the sum is exact and compared element by element
    rounded  random floats: within rounding of the sum in float64
    bits     in both, all ranks must hold the same bits
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from latecomer.runtime.host import host
from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.runtime.torch_versions import Store
from latecomer.runtime.work import SUMMABLE
from latecomer.verify.errors import LatecomerError

AllReduce = Callable[[torch.Tensor, bool], torch.Tensor]
"""(tensor, average) -> the tensor, reduced in place."""
SIZES = (0, 1, 2, 7, 64, 1000, 65537)
TIMEOUT_S = 60.0  # for what ranks send each other about a case


class ConformanceError(LatecomerError):
    """A case gave a wrong result; the message names the case and the first wrong element."""


@dataclass(frozen=True)
class Case:
    """One all-reduce of the suite."""

    dtype: torch.dtype
    numel: int
    average: bool
    exact: bool

    def __str__(self) -> str:
        how = "average" if self.average else "sum"
        kind = "exact" if self.exact else "rounded"
        return f"{how} of {self.numel} x {str(self.dtype).removeprefix('torch.')} ({kind})"


CaseCheck = Callable[[Case, list[torch.Tensor], torch.Tensor], None]
"""(case, what each rank brought, the result): raises ConformanceError where it is wrong."""


def cases(sizes: tuple[int, ...] = SIZES) -> Iterator[Case]:
    """All combinations that make sense."""
    for dtype in sorted(SUMMABLE, key=str):
        for numel in sizes:
            yield Case(dtype, numel, average=False, exact=True)
            if dtype.is_floating_point:
                yield Case(dtype, numel, average=False, exact=False)
                yield Case(dtype, numel, average=True, exact=False)


def run(
    all_reduce: AllReduce,
    store: Store,
    rank: int,
    world_size: int,
    *,
    device: torch.device | str = "cpu",
    seed: int = 0,
    sizes: tuple[int, ...] = SIZES,
    late_s: float = 0.0,
    check: CaseCheck | None = None,
) -> int:
    """Run every case on this rank (collective) and return how many there were.

    ``store`` carries the digests by which ranks compare bits, under a fresh prefix for each run;
    this rank sleeps ``late_s`` before each case; what may lose data has a ``check`` in place of
    exact, rounded and bits. ConformanceError for a wrong result, on the rank that sees it;
    RankFailure if rank 0 has no digest for this one in time.
    """
    exchange = StoreExchange(store, rank, world_size, TIMEOUT_S)
    all_cases = list(cases(sizes))
    for number, case in enumerate(all_cases):
        inputs = [_data(case, seed, number, source) for source in range(world_size)]
        tensor = inputs[rank].clone().to(device)
        host.sleep(late_s)
        result = all_reduce(tensor, case.average).cpu()
        if check is not None:
            check(case, inputs, result)
            continue

        compare(case, inputs, result)
        digest = hashlib.sha256(result.view(torch.uint8).numpy().tobytes()).hexdigest()
        exchange.send(f"{number}/{rank}", digest)
        if exchange.receive_from(0, f"{number}/0") != digest:
            raise ConformanceError(f"{case}: rank {rank} and rank 0 differ in bits")
    return len(all_cases)


def _data(case: Case, seed: int, number: int, rank: int) -> torch.Tensor:
    # the hash of integers is the same in every process
    generator = torch.Generator().manual_seed(hash((seed, number, rank)) % 2**63)
    if case.exact:  # small ones, so that sums of them are exact in every dtype
        low = 0 if case.dtype is torch.uint8 else -3
        return torch.randint(low, 4, (case.numel,), generator=generator).to(case.dtype)
    return torch.randn(case.numel, generator=generator, dtype=torch.float64).to(case.dtype)


def compare(case: Case, inputs: list[torch.Tensor], result: torch.Tensor) -> None:
    """The result of a sum in which nothing is missing must be exact, or within rounding."""
    if case.exact:
        expected = torch.stack([x.to(torch.int64) for x in inputs]).sum(0)
        require(case, result.to(torch.int64), expected)
        return
    terms = terms_of(torch.stack(inputs), case.average)
    require(case, result, terms.sum(0), beyond_rounding(terms, result))


def terms_of(inputs: torch.Tensor, average: bool) -> torch.Tensor:
    """What is summed, in float64, a row for each rank: inputs, or for an average their shares."""
    return inputs.to(torch.float64) / (len(inputs) if average else 1)


def beyond_rounding(terms: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """Which elements of ``result`` no order of adding ``terms`` in its dtype explains."""
    ranks = len(terms)
    limits = torch.finfo(result.dtype)
    # n inputs are scaled once and added n - 1 times: n roundings, each of the running sum
    bound = ranks * (limits.eps * terms.abs().sum(0) + limits.smallest_normal)
    is_within = (result.to(torch.float64) - terms.sum(0)).abs() <= bound
    return ~is_within  # NaN is within nothing


def require(
    case: Case, result: torch.Tensor, expected: torch.Tensor, wrong: torch.Tensor | None = None
) -> None:
    """A ConformanceError names the first ``wrong`` element, by default one not as expected."""
    wrong = result != expected if wrong is None else wrong
    if wrong.any():
        at = int(wrong.nonzero()[0])
        raise ConformanceError(
            f"{case}: element {at} is {result[at].item()}, expected {expected[at].item()} "
            f"({int(wrong.sum())} of {math.prod(result.shape)} are wrong)"
        )
