"""The calls of torch.distributed that training programs make, each with what it must return.

A call starts something on this rank and returns what is to be waited for and a check. What a rank
brings in follows from a key alone, so a rank knows what all others bring in, and the check computes
the right result without asking anybody. Numbers are small integers: every sum is exact in every
dtype, whatever the order of additions, and results are compared bit for bit.

What a call brings in is referenced by nothing after it has returned, as in a training program
whose temporaries are freed while the operation is under way.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.distributed_c10d import _coalescing_manager

SUMMABLE = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int32, torch.int64]
COUNTS = [1, 2, 3, 17, 256, 1000, 4099, 70001]


@dataclass
class Started:
    """What is under way.

    Attributes:
        works: to be waited for, in any order.
        check: raises AssertionError if the results are wrong; after all works are done.
        forgettable: nobody has to wait: what was started ends even if nobody holds it.
        futures: the works have futures with Gloo (those of reduce-scatters have none).
    """

    works: list[Any]
    check: Callable[[], None]
    forgettable: bool = True
    futures: bool = True


@dataclass
class Call:
    """One call, the same on all ranks but for ``rank``."""

    rank: int
    size: int
    key: int
    groups: dict[tuple[int, ...], Any]
    random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = random.Random(self.key)
        self.count = self.random.choice(COUNTS)
        self.root = self.random.randrange(self.size)

    def of(
        self, rank: int, count: int, dtype: torch.dtype = torch.float32, part: int = 0
    ) -> torch.Tensor:
        """What ``rank`` brings in: shape (count,); several tensors differ in ``part``."""
        generator = torch.Generator().manual_seed((self.key * 64 + rank) * 16 + part)
        low, high = (0, 2) if dtype in (torch.bool, torch.uint8) else (-3, 4)
        return torch.randint(low, high, (count,), generator=generator).to(dtype)

    def mine(self, count: int, dtype: torch.dtype = torch.float32, part: int = 0) -> torch.Tensor:
        return self.of(self.rank, count, dtype, part)

    def every(self, count: int, dtype: torch.dtype = torch.float32, part: int = 0) -> torch.Tensor:
        """What all ranks bring in: shape (size, count)."""
        return torch.stack([self.of(r, count, dtype, part) for r in range(self.size)])

    def total(self, count: int, dtype: torch.dtype = torch.float32, part: int = 0) -> torch.Tensor:
        """The sum over all ranks: shape (count,)."""
        wide = torch.complex128 if dtype.is_complex else torch.float64
        return self.every(count, dtype, part).to(wide).sum(0).to(dtype)


def same(found: torch.Tensor, right: torch.Tensor) -> None:
    """Raises AssertionError if not equal bit for bit."""
    assert found.dtype == right.dtype, (found.dtype, right.dtype)
    assert found.shape == right.shape, (found.shape, right.shape)
    wrong = found != right
    assert not wrong.any(), (
        f"{int(wrong.sum())} of {wrong.numel()} wrong, first found {found[wrong][0]}, "
        f"right {right[wrong][0]}"
    )


CALLS: dict[str, Callable[[Call], Started]] = {}


def _call(body: Callable[[Call], Started]) -> Callable[[Call], Started]:
    CALLS[body.__name__.strip("_")] = body
    return body


def _pairs(found: list[torch.Tensor], right: list[torch.Tensor]) -> Callable[[], None]:
    def check() -> None:
        for f, r in zip(found, right, strict=True):
            same(f, r)

    return check


# All-reduce


def _reduced(name: str, operation: Any, dtypes: list[torch.dtype], right: Callable) -> None:
    def body(c: Call) -> Started:
        dtype = c.random.choice(dtypes)
        tensor = c.mine(c.count, dtype)
        work = dist.all_reduce(tensor, operation, async_op=True)
        return Started([work], lambda: same(tensor, right(c.every(c.count, dtype))))

    CALLS[name] = body


def _bitwise(combine: Callable) -> Callable[[torch.Tensor], torch.Tensor]:
    def right(every: torch.Tensor) -> torch.Tensor:
        result = every[0]
        for one in every[1:]:
            result = combine(result, one)
        return result

    return right


_INTEGERS = [torch.int32, torch.int64, torch.uint8]
_reduced("all_reduce_max", dist.ReduceOp.MAX, SUMMABLE, lambda every: every.max(0).values)
_reduced("all_reduce_min", dist.ReduceOp.MIN, SUMMABLE, lambda every: every.min(0).values)
_reduced("all_reduce_product", dist.ReduceOp.PRODUCT, SUMMABLE, _bitwise(torch.mul))
_reduced("all_reduce_band", dist.ReduceOp.BAND, _INTEGERS, _bitwise(torch.bitwise_and))
_reduced("all_reduce_bor", dist.ReduceOp.BOR, _INTEGERS, _bitwise(torch.bitwise_or))
_reduced("all_reduce_bxor", dist.ReduceOp.BXOR, _INTEGERS, _bitwise(torch.bitwise_xor))


def _summed(name: str, dtypes: list[torch.dtype], count: int | None = None) -> None:
    def body(c: Call) -> Started:
        dtype = c.random.choice(dtypes)
        n = c.count if count is None else count
        tensor = c.mine(n, dtype)
        work = dist.all_reduce(tensor, async_op=True)
        return Started([work], lambda: same(tensor, c.total(n, dtype)))

    CALLS[name] = body


_summed("all_reduce_sum_float", [torch.float32, torch.float64])
_summed("all_reduce_sum_half", [torch.float16, torch.bfloat16])
_summed("all_reduce_sum_int", [torch.int32, torch.int64, torch.uint8])
_summed("all_reduce_sum_complex", [torch.complex64, torch.complex128])
_summed("all_reduce_sum_large", [torch.float32], 400_000)
_summed("all_reduce_empty", [torch.float32], 0)


@_call
def _all_reduce_scalar(c: Call) -> Started:
    tensor = c.mine(1).reshape(())
    work = dist.all_reduce(tensor, async_op=True)
    return Started([work], lambda: same(tensor, c.total(1).reshape(())))


@_call
def _all_reduce_average(c: Call) -> Started:
    # Divided by the number of ranks before or after the sum, as the backend likes: both are exact.
    tensor = c.mine(c.count) * c.size
    work = dist.all_reduce(tensor, dist.ReduceOp.AVG, async_op=True)
    return Started([work], lambda: same(tensor, c.total(c.count)))


@_call
def _all_reduce_view(c: Call) -> Started:
    whole = c.mine(c.count + 5)
    work = dist.all_reduce(whole[2 : 2 + c.count], async_op=True)

    def check() -> None:
        same(whole[2 : 2 + c.count], c.total(c.count + 5)[2 : 2 + c.count])
        same(whole[:2], c.mine(c.count + 5)[:2])
        same(whole[-3:], c.mine(c.count + 5)[-3:])

    return Started([work], check)


@_call
def _all_reduce_transposed(c: Call) -> Started:
    tensor = c.mine(6 * c.count).reshape(6, c.count).t()
    work = dist.all_reduce(tensor, async_op=True)
    return Started([work], lambda: same(tensor, c.total(6 * c.count).reshape(6, c.count).t()))


@_call
def _all_reduce_sparse(c: Call) -> Started:
    def entries(rank: int) -> torch.Tensor:
        return c.of(rank, 3 * (rank + 1)).reshape(rank + 1, 3)  # each rank has other rows

    rows = torch.arange(c.rank + 1).unsqueeze(0)
    tensor = torch.sparse_coo_tensor(rows, entries(c.rank), (c.size + 1, 3))
    work = dist.all_reduce(tensor, async_op=True)
    right = torch.zeros(c.size + 1, 3)
    for r in range(c.size):
        right[: r + 1] += entries(r)
    return Started([work], lambda: same(work.result()[0].to_dense(), right), futures=False)


@_call
def _all_reduce_coalesced(c: Call) -> Started:
    tensors = [c.mine(c.count + i, part=i) for i in range(3)]
    future = dist.all_reduce_coalesced(tensors, async_op=True)  # a future, not a work
    right = [c.total(c.count + i, part=i) for i in range(3)]
    return Started([future], _pairs(tensors, right), futures=False)


@_call
def _coalesced_all_reduce(c: Call) -> Started:
    tensors = [c.mine(c.count + i, part=i) for i in range(3)]
    with _coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    right = [c.total(c.count + i, part=i) for i in range(3)]
    return Started([manager], _pairs(tensors, right), futures=False)


# All-gather


@_call
def _all_gather(c: Call) -> Started:
    dtype = c.random.choice([*SUMMABLE, torch.bool, torch.complex64])
    out = [torch.empty(c.count, dtype=dtype) for _ in range(c.size)]
    work = dist.all_gather(out, c.mine(c.count, dtype), async_op=True)
    return Started([work], lambda: same(torch.stack(out), c.every(c.count, dtype)))


@_call
def _all_gather_into_tensor(c: Call) -> Started:
    dtype = c.random.choice(SUMMABLE)
    out = torch.empty(c.size * c.count, dtype=dtype)
    work = dist.all_gather_into_tensor(out, c.mine(c.count, dtype), async_op=True)
    return Started([work], lambda: same(out, c.every(c.count, dtype).flatten()))


@_call
def _all_gather_into_tensor_in_place(c: Call) -> Started:
    out = torch.empty(c.size * c.count)
    own = out[c.rank * c.count : (c.rank + 1) * c.count]
    own.copy_(c.mine(c.count))
    work = dist.all_gather_into_tensor(out, own, async_op=True)
    return Started([work], lambda: same(out, c.every(c.count).flatten()))


@_call
def _all_gather_coalesced(c: Call) -> Started:
    out = [[torch.empty(c.count + i) for i in range(2)] for _ in range(c.size)]
    mine = [c.mine(c.count + i, part=i) for i in range(2)]
    future = dist.all_gather_coalesced(out, mine, async_op=True)
    right = [c.of(r, c.count + i, part=i) for r in range(c.size) for i in range(2)]
    return Started([future], _pairs([one for row in out for one in row], right), futures=False)


@_call
def _coalesced_all_gather(c: Call) -> Started:
    out = [torch.empty(c.size * (c.count + i)) for i in range(2)]
    with _coalescing_manager(async_ops=True) as manager:
        for i in range(2):
            dist.all_gather_into_tensor(out[i], c.mine(c.count + i, part=i))
    right = [c.every(c.count + i, part=i).flatten() for i in range(2)]
    return Started([manager], _pairs(out, right), futures=False)


@_call
def _all_gather_object(c: Call) -> Started:
    out: list[Any] = [None] * c.size
    dist.all_gather_object(out, {"rank": c.rank, "key": c.key, "text": "x" * (c.count * c.rank)})
    right = [{"rank": r, "key": c.key, "text": "x" * (c.count * r)} for r in range(c.size)]

    def check() -> None:
        assert out == right

    return Started([], check)


# Reduce-scatter


@_call
def _reduce_scatter(c: Call) -> Started:
    dtype = c.random.choice(SUMMABLE)
    out = torch.empty(c.count, dtype=dtype)
    parts = list(c.mine(c.size * c.count, dtype).split(c.count))
    work = dist.reduce_scatter(out, parts, async_op=True)
    right = c.total(c.size * c.count, dtype).split(c.count)[c.rank]
    return Started([work], lambda: same(out, right), futures=False)


@_call
def _reduce_scatter_uneven(c: Call) -> Started:
    counts = [c.count + r for r in range(c.size)]
    out = torch.empty(counts[c.rank])
    work = dist.reduce_scatter(out, list(c.mine(sum(counts)).split(counts)), async_op=True)
    right = c.total(sum(counts)).split(counts)[c.rank]
    return Started([work], lambda: same(out, right), futures=False)


@_call
def _reduce_scatter_tensor(c: Call) -> Started:
    dtype = c.random.choice(SUMMABLE)
    out = torch.empty(c.count, dtype=dtype)
    work = dist.reduce_scatter_tensor(out, c.mine(c.size * c.count, dtype), async_op=True)
    right = c.total(c.size * c.count, dtype).split(c.count)[c.rank]
    return Started([work], lambda: same(out, right), futures=False)


@_call
def _reduce_scatter_tensor_average(c: Call) -> Started:
    out = torch.empty(c.count)
    work = dist.reduce_scatter_tensor(
        out, c.mine(c.size * c.count) * c.size, dist.ReduceOp.AVG, async_op=True
    )
    right = c.total(c.size * c.count).split(c.count)[c.rank]
    return Started([work], lambda: same(out, right), futures=False)


@_call
def _reduce_scatter_tensor_max(c: Call) -> Started:
    out = torch.empty(c.count)
    work = dist.reduce_scatter_tensor(
        out, c.mine(c.size * c.count), dist.ReduceOp.MAX, async_op=True
    )
    right = c.every(c.size * c.count).max(0).values.split(c.count)[c.rank]
    return Started([work], lambda: same(out, right), futures=False)


@_call
def _coalesced_reduce_scatter(c: Call) -> Started:
    out = [torch.empty(c.count + i) for i in range(2)]
    with _coalescing_manager(async_ops=True) as manager:
        for i in range(2):
            dist.reduce_scatter_tensor(out[i], c.mine(c.size * (c.count + i), part=i))
    right = [c.total(c.size * (c.count + i), part=i).split(c.count + i)[c.rank] for i in range(2)]
    return Started([manager], _pairs(out, right), futures=False)


# From one rank, to one rank


@_call
def _broadcast(c: Call) -> Started:
    dtype = c.random.choice([*SUMMABLE, torch.bool, torch.complex64])
    tensor = c.mine(c.count, dtype)
    work = dist.broadcast(tensor, c.root, async_op=True)
    return Started([work], lambda: same(tensor, c.of(c.root, c.count, dtype)))


@_call
def _broadcast_buckets(c: Call) -> Started:
    tensors = [c.mine(c.count + i, part=i) for i in range(4)]
    dist._broadcast_coalesced(dist.group.WORLD, tensors, 4000, c.root)
    return Started([], _pairs(tensors, [c.of(c.root, c.count + i, part=i) for i in range(4)]))


@_call
def _broadcast_object_list(c: Call) -> Started:
    out = [c.key, "y" * c.count] if c.rank == c.root else [None, None]
    dist.broadcast_object_list(out, c.root)

    def check() -> None:
        assert out == [c.key, "y" * c.count]

    return Started([], check)


@_call
def _reduce(c: Call) -> Started:
    dtype = c.random.choice(SUMMABLE)
    tensor = c.mine(c.count, dtype)
    work = dist.reduce(tensor, c.root, async_op=True)
    # What the others hold afterwards is not promised.
    return Started([work], lambda: c.rank != c.root or same(tensor, c.total(c.count, dtype)))


@_call
def _reduce_max(c: Call) -> Started:
    tensor = c.mine(c.count)
    work = dist.reduce(tensor, c.root, dist.ReduceOp.MAX, async_op=True)
    right = c.every(c.count).max(0).values
    return Started([work], lambda: c.rank != c.root or same(tensor, right))


@_call
def _gather(c: Call) -> Started:
    out = [torch.empty(c.count) for _ in range(c.size)] if c.rank == c.root else None
    work = dist.gather(c.mine(c.count), out, c.root, async_op=True)
    return Started([work], lambda: out is None or same(torch.stack(out), c.every(c.count)))


@_call
def _gather_object(c: Call) -> Started:
    out = [None] * c.size if c.rank == c.root else None
    dist.gather_object((c.rank, c.key), out, c.root)

    def check() -> None:
        assert out is None or out == [(r, c.key) for r in range(c.size)]

    return Started([], check)


@_call
def _scatter(c: Call) -> Started:
    out = torch.empty(c.count)
    parts = list(c.mine(c.size * c.count).split(c.count)) if c.rank == c.root else None
    work = dist.scatter(out, parts, c.root, async_op=True)
    right = c.of(c.root, c.size * c.count).split(c.count)[c.rank]
    return Started([work], lambda: same(out, right))


@_call
def _scatter_object_list(c: Call) -> Started:
    out: list[Any] = [None]
    parts = [(r, c.key) for r in range(c.size)] if c.rank == c.root else [None] * c.size
    dist.scatter_object_list(out, parts, c.root)

    def check() -> None:
        assert out == [(c.rank, c.key)]

    return Started([], check)


# All-to-all


@_call
def _all_to_all(c: Call) -> Started:
    out = [torch.empty(c.count) for _ in range(c.size)]
    work = dist.all_to_all(out, list(c.mine(c.size * c.count).split(c.count)), async_op=True)
    right = [c.of(r, c.size * c.count).split(c.count)[c.rank] for r in range(c.size)]
    return Started([work], _pairs(out, right))


@_call
def _all_to_all_single(c: Call) -> Started:
    out = torch.empty(c.size * c.count)
    work = dist.all_to_all_single(out, c.mine(c.size * c.count), async_op=True)
    right = [c.of(r, c.size * c.count).split(c.count)[c.rank] for r in range(c.size)]
    return Started([work], lambda: same(out, torch.cat(right)))


@_call
def _all_to_all_single_uneven(c: Call) -> Started:
    counts = [c.count % 500 + r for r in range(c.size)]  # to rank r
    out = torch.empty(c.size * counts[c.rank])
    work = dist.all_to_all_single(
        out, c.mine(sum(counts)), [counts[c.rank]] * c.size, counts, async_op=True
    )
    right = [c.of(r, sum(counts)).split(counts)[c.rank] for r in range(c.size)]
    return Started([work], lambda: same(out, torch.cat(right)))


# Point to point


@_call
def _isend_irecv(c: Call) -> Started:
    out = torch.empty(c.count)
    tag = c.key % 1000
    works = [
        dist.irecv(out, (c.rank - 1) % c.size, tag=tag),
        dist.isend(c.mine(c.count), (c.rank + 1) % c.size, tag=tag),
    ]
    right = c.of((c.rank - 1) % c.size, c.count)
    return Started(works, lambda: same(out, right), forgettable=False, futures=False)


@_call
def _batch_isend_irecv(c: Call) -> Started:
    peers = [r for r in range(c.size) if r != c.rank]
    out = {r: torch.empty(c.count) for r in peers}
    operations = [dist.P2POp(dist.irecv, out[r], r) for r in peers]
    operations += [dist.P2POp(dist.isend, c.mine(c.count), r) for r in peers]
    works = dist.batch_isend_irecv(operations)
    check = _pairs([out[r] for r in peers], [c.of(r, c.count) for r in peers])
    return Started(works, check, forgettable=False, futures=False)


@_call
def _recv_from_anybody(c: Call) -> Started:
    out = torch.empty(c.count)
    tag = 1000 + c.key % 1000
    work = dist.isend(c.mine(c.count), (c.rank + 1) % c.size, tag=tag)
    source = dist.recv(out, tag=tag)

    def check() -> None:
        assert source == (c.rank - 1) % c.size
        same(out, c.of(source, c.count))

    return Started([work], check, forgettable=False, futures=False)


@_call
def _send_object_list(c: Call) -> Started:
    out: list[Any] = [None]
    if c.rank == c.root:
        dist.send_object_list([(c.key, "z" * c.count)], (c.root + 1) % c.size)
    elif c.rank == (c.root + 1) % c.size:
        dist.recv_object_list(out, c.root)

    def check() -> None:
        assert out == ([(c.key, "z" * c.count)] if c.rank == (c.root + 1) % c.size else [None])

    return Started([], check)


@_call
def _barrier(c: Call) -> Started:
    return Started([dist.barrier(async_op=True)], lambda: None)


# Functional collectives: what DTensor, FSDP2's clipping and torch.compile call


@_call
def _functional_all_reduce(c: Call) -> Started:
    operation = c.random.choice(["sum", "max", "avg"])
    out = functional.all_reduce(c.mine(c.count) * c.size, operation, dist.group.WORLD)

    def check() -> None:
        every = c.every(c.count) * c.size
        right = {"sum": every.sum(0), "max": every.max(0).values, "avg": every.sum(0) / c.size}
        same(out + 0, right[operation])

    return Started([], check)


@_call
def _functional_all_gather(c: Call) -> Started:
    out = functional.all_gather_tensor(c.mine(c.count), 0, dist.group.WORLD)
    return Started([], lambda: same(out + 0, c.every(c.count).flatten()))


@_call
def _functional_reduce_scatter(c: Call) -> Started:
    out = functional.reduce_scatter_tensor(c.mine(c.size * c.count), "sum", 0, dist.group.WORLD)
    right = c.total(c.size * c.count).split(c.count)[c.rank]
    return Started([], lambda: same(out + 0, right))


@_call
def _functional_all_to_all(c: Call) -> Started:
    out = functional.all_to_all_single(c.mine(c.size * c.count), None, None, dist.group.WORLD)
    right = [c.of(r, c.size * c.count).split(c.count)[c.rank] for r in range(c.size)]
    return Started([], lambda: same(out + 0, torch.cat(right)))


@_call
def _functional_broadcast(c: Call) -> Started:
    out = functional.broadcast(c.mine(c.count), c.root, dist.group.WORLD)
    return Started([], lambda: same(out + 0, c.of(c.root, c.count)))


@_call
def _functional_coalesced(c: Call) -> Started:
    kind = c.random.choice(["reduce", "gather", "scatter"])
    group = dist.group.WORLD
    counts = [c.count, c.count + 1]
    wide = [c.size * count for count in counts]
    if kind == "reduce":
        mine = [c.mine(count, part=i) for i, count in enumerate(counts)]
        out = functional.all_reduce_coalesced(mine, "sum", group)
        right = [c.total(count, part=i) for i, count in enumerate(counts)]
    elif kind == "gather":
        mine = [c.mine(count, part=i) for i, count in enumerate(counts)]
        out = functional.all_gather_into_tensor_coalesced(mine, group)
        right = [c.every(count, part=i).flatten() for i, count in enumerate(counts)]
    else:
        mine = [c.mine(count, part=i) for i, count in enumerate(wide)]
        out = functional.reduce_scatter_tensor_coalesced(mine, "sum", [0, 0], group)
        right = [
            c.total(c.size * count, part=i).split(count)[c.rank] for i, count in enumerate(counts)
        ]

    def check() -> None:
        for found, one in zip(out, right, strict=True):
            same(found + 0, one)

    return Started([], check)


# Sub-groups


def _group(c: Call) -> tuple[Any, tuple[int, ...]]:
    """A group, and its ranks; this rank may not be among them."""
    ranks = c.random.choice(sorted(c.groups))
    return c.groups[ranks], ranks


@_call
def _group_all_reduce(c: Call) -> Started:
    group, ranks = _group(c)
    tensor = c.mine(c.count)
    if c.rank not in ranks:
        return Started([], lambda: same(tensor, c.mine(c.count)))
    work = dist.all_reduce(tensor, group=group, async_op=True)
    return Started([work], lambda: same(tensor, c.every(c.count)[list(ranks)].sum(0)))


@_call
def _group_all_gather(c: Call) -> Started:
    group, ranks = _group(c)
    if c.rank not in ranks:
        return Started([], lambda: None)
    out = torch.empty(len(ranks) * c.count)
    work = dist.all_gather_into_tensor(out, c.mine(c.count), group=group, async_op=True)
    return Started([work], lambda: same(out, c.every(c.count)[list(ranks)].flatten()))


@_call
def _group_broadcast(c: Call) -> Started:
    group, ranks = _group(c)
    root = c.random.choice(ranks)
    tensor = c.mine(c.count)
    if c.rank not in ranks:
        return Started([], lambda: None)
    work = dist.broadcast(tensor, root, group=group, async_op=True)
    return Started([work], lambda: same(tensor, c.of(root, c.count)))
