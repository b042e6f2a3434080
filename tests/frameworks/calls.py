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
    world_size: int
    key: int
    groups: dict[tuple[int, ...], Any]
    random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self.random = random.Random(self.key)
        self.count = self.random.choice(COUNTS)
        self.root = self.random.randrange(self.world_size)

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
        """What all ranks bring in: shape (world_size, count)."""
        return torch.stack([self.of(rank, count, dtype, part) for rank in range(self.world_size)])

    def total(self, count: int, dtype: torch.dtype = torch.float32, part: int = 0) -> torch.Tensor:
        """The sum over all ranks: shape (count,)."""
        wide = torch.complex128 if dtype.is_complex else torch.float64
        return self.every(count, dtype, part).to(wide).sum(0).to(dtype)


def same(result: torch.Tensor, right: torch.Tensor) -> None:
    """Raises AssertionError if not equal bit for bit."""
    assert result.dtype == right.dtype, (result.dtype, right.dtype)
    assert result.shape == right.shape, (result.shape, right.shape)
    wrong = result != right
    assert not wrong.any(), (
        f"{int(wrong.sum())} of {wrong.numel()} wrong, first found {result[wrong][0]}, "
        f"right {right[wrong][0]}"
    )


CALLS: dict[str, Callable[[Call], Started]] = {}


def _call(body: Callable[[Call], Started]) -> Callable[[Call], Started]:
    CALLS[body.__name__.strip("_")] = body
    return body


def _pairs(results: list[torch.Tensor], right: list[torch.Tensor]) -> Callable[[], None]:
    def check() -> None:
        for tensor, expected in zip(results, right, strict=True):
            same(tensor, expected)

    return check


# All-reduce


def _reduced(name: str, operation: Any, dtypes: list[torch.dtype], right: Callable) -> None:
    def body(call: Call) -> Started:
        dtype = call.random.choice(dtypes)
        tensor = call.mine(call.count, dtype)
        work = dist.all_reduce(tensor, operation, async_op=True)
        return Started([work], lambda: same(tensor, right(call.every(call.count, dtype))))

    CALLS[name] = body


def _bitwise(combine: Callable) -> Callable[[torch.Tensor], torch.Tensor]:
    def right(every: torch.Tensor) -> torch.Tensor:
        result = every[0]
        for contribution in every[1:]:
            result = combine(result, contribution)
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
    def body(call: Call) -> Started:
        dtype = call.random.choice(dtypes)
        elements = call.count if count is None else count
        tensor = call.mine(elements, dtype)
        work = dist.all_reduce(tensor, async_op=True)
        return Started([work], lambda: same(tensor, call.total(elements, dtype)))

    CALLS[name] = body


_summed("all_reduce_sum_float", [torch.float32, torch.float64])
_summed("all_reduce_sum_half", [torch.float16, torch.bfloat16])
_summed("all_reduce_sum_int", [torch.int32, torch.int64, torch.uint8])
_summed("all_reduce_sum_complex", [torch.complex64, torch.complex128])
_summed("all_reduce_sum_large", [torch.float32], 400_000)
_summed("all_reduce_empty", [torch.float32], 0)


@_call
def _all_reduce_scalar(call: Call) -> Started:
    tensor = call.mine(1).reshape(())
    work = dist.all_reduce(tensor, async_op=True)
    return Started([work], lambda: same(tensor, call.total(1).reshape(())))


@_call
def _all_reduce_average(call: Call) -> Started:
    # Divided by the number of ranks before or after the sum, as the backend likes: both are exact.
    tensor = call.mine(call.count) * call.world_size
    work = dist.all_reduce(tensor, dist.ReduceOp.AVG, async_op=True)
    return Started([work], lambda: same(tensor, call.total(call.count)))


@_call
def _all_reduce_view(call: Call) -> Started:
    whole = call.mine(call.count + 5)
    work = dist.all_reduce(whole[2 : 2 + call.count], async_op=True)

    def check() -> None:
        same(whole[2 : 2 + call.count], call.total(call.count + 5)[2 : 2 + call.count])
        same(whole[:2], call.mine(call.count + 5)[:2])
        same(whole[-3:], call.mine(call.count + 5)[-3:])

    return Started([work], check)


@_call
def _all_reduce_transposed(call: Call) -> Started:
    tensor = call.mine(6 * call.count).reshape(6, call.count).t()
    work = dist.all_reduce(tensor, async_op=True)
    return Started(
        [work], lambda: same(tensor, call.total(6 * call.count).reshape(6, call.count).t())
    )


@_call
def _all_reduce_sparse(call: Call) -> Started:
    def entries(rank: int) -> torch.Tensor:
        return call.of(rank, 3 * (rank + 1)).reshape(rank + 1, 3)  # each rank has other rows

    rows = torch.arange(call.rank + 1).unsqueeze(0)
    tensor = torch.sparse_coo_tensor(rows, entries(call.rank), (call.world_size + 1, 3))
    work = dist.all_reduce(tensor, async_op=True)
    right = torch.zeros(call.world_size + 1, 3)
    for rank in range(call.world_size):
        right[: rank + 1] += entries(rank)
    return Started([work], lambda: same(work.result()[0].to_dense(), right), futures=False)


@_call
def _all_reduce_coalesced(call: Call) -> Started:
    tensors = [call.mine(call.count + i, part=i) for i in range(3)]
    future = dist.all_reduce_coalesced(tensors, async_op=True)  # a future, not a work
    right = [call.total(call.count + i, part=i) for i in range(3)]
    return Started([future], _pairs(tensors, right), futures=False)


@_call
def _coalesced_all_reduce(call: Call) -> Started:
    tensors = [call.mine(call.count + i, part=i) for i in range(3)]
    with _coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    right = [call.total(call.count + i, part=i) for i in range(3)]
    return Started([manager], _pairs(tensors, right), futures=False)


# All-gather


@_call
def _all_gather(call: Call) -> Started:
    dtype = call.random.choice([*SUMMABLE, torch.bool, torch.complex64])
    out = [torch.empty(call.count, dtype=dtype) for _ in range(call.world_size)]
    work = dist.all_gather(out, call.mine(call.count, dtype), async_op=True)
    return Started([work], lambda: same(torch.stack(out), call.every(call.count, dtype)))


@_call
def _all_gather_into_tensor(call: Call) -> Started:
    dtype = call.random.choice(SUMMABLE)
    out = torch.empty(call.world_size * call.count, dtype=dtype)
    work = dist.all_gather_into_tensor(out, call.mine(call.count, dtype), async_op=True)
    return Started([work], lambda: same(out, call.every(call.count, dtype).flatten()))


@_call
def _all_gather_into_tensor_in_place(call: Call) -> Started:
    out = torch.empty(call.world_size * call.count)
    own = out[call.rank * call.count : (call.rank + 1) * call.count]
    own.copy_(call.mine(call.count))
    work = dist.all_gather_into_tensor(out, own, async_op=True)
    return Started([work], lambda: same(out, call.every(call.count).flatten()))


@_call
def _all_gather_coalesced(call: Call) -> Started:
    out: list[list[torch.Tensor]] = []  # by rank and part
    right = []
    for rank in range(call.world_size):
        out.append([torch.empty(call.count + i) for i in range(2)])
        right += [call.of(rank, call.count + i, part=i) for i in range(2)]
    tensors = [call.mine(call.count + i, part=i) for i in range(2)]
    future = dist.all_gather_coalesced(out, tensors, async_op=True)
    results = [tensor for of_rank in out for tensor in of_rank]
    return Started([future], _pairs(results, right), futures=False)


@_call
def _coalesced_all_gather(call: Call) -> Started:
    out = [torch.empty(call.world_size * (call.count + i)) for i in range(2)]
    with _coalescing_manager(async_ops=True) as manager:
        for i in range(2):
            dist.all_gather_into_tensor(out[i], call.mine(call.count + i, part=i))
    right = [call.every(call.count + i, part=i).flatten() for i in range(2)]
    return Started([manager], _pairs(out, right), futures=False)


@_call
def _all_gather_object(call: Call) -> Started:
    out: list[Any] = [None] * call.world_size
    dist.all_gather_object(
        out, {"rank": call.rank, "key": call.key, "text": "x" * (call.count * call.rank)}
    )
    right = [
        {"rank": rank, "key": call.key, "text": "x" * (call.count * rank)}
        for rank in range(call.world_size)
    ]

    def check() -> None:
        assert out == right

    return Started([], check)


# Reduce-scatter


@_call
def _reduce_scatter(call: Call) -> Started:
    dtype = call.random.choice(SUMMABLE)
    out = torch.empty(call.count, dtype=dtype)
    parts = list(call.mine(call.world_size * call.count, dtype).split(call.count))
    work = dist.reduce_scatter(out, parts, async_op=True)
    right = call.total(call.world_size * call.count, dtype).split(call.count)[call.rank]
    return Started([work], lambda: same(out, right), futures=False)


@_call
def _reduce_scatter_uneven(call: Call) -> Started:
    counts = [call.count + rank for rank in range(call.world_size)]
    out = torch.empty(counts[call.rank])
    work = dist.reduce_scatter(out, list(call.mine(sum(counts)).split(counts)), async_op=True)
    right = call.total(sum(counts)).split(counts)[call.rank]
    return Started([work], lambda: same(out, right), futures=False)


@_call
def _reduce_scatter_tensor(call: Call) -> Started:
    dtype = call.random.choice(SUMMABLE)
    out = torch.empty(call.count, dtype=dtype)
    work = dist.reduce_scatter_tensor(
        out, call.mine(call.world_size * call.count, dtype), async_op=True
    )
    right = call.total(call.world_size * call.count, dtype).split(call.count)[call.rank]
    return Started([work], lambda: same(out, right), futures=False)


@_call
def _reduce_scatter_tensor_average(call: Call) -> Started:
    out = torch.empty(call.count)
    work = dist.reduce_scatter_tensor(
        out,
        call.mine(call.world_size * call.count) * call.world_size,
        dist.ReduceOp.AVG,
        async_op=True,
    )
    right = call.total(call.world_size * call.count).split(call.count)[call.rank]
    return Started([work], lambda: same(out, right), futures=False)


@_call
def _reduce_scatter_tensor_max(call: Call) -> Started:
    out = torch.empty(call.count)
    work = dist.reduce_scatter_tensor(
        out, call.mine(call.world_size * call.count), dist.ReduceOp.MAX, async_op=True
    )
    right = call.every(call.world_size * call.count).max(0).values.split(call.count)[call.rank]
    return Started([work], lambda: same(out, right), futures=False)


@_call
def _coalesced_reduce_scatter(call: Call) -> Started:
    out = [torch.empty(call.count + i) for i in range(2)]
    with _coalescing_manager(async_ops=True) as manager:
        for i in range(2):
            dist.reduce_scatter_tensor(
                out[i], call.mine(call.world_size * (call.count + i), part=i)
            )
    right = []
    for i in range(2):
        count = call.count + i
        right.append(call.total(call.world_size * count, part=i).split(count)[call.rank])
    return Started([manager], _pairs(out, right), futures=False)


# From one rank, to one rank


@_call
def _broadcast(call: Call) -> Started:
    dtype = call.random.choice([*SUMMABLE, torch.bool, torch.complex64])
    tensor = call.mine(call.count, dtype)
    work = dist.broadcast(tensor, call.root, async_op=True)
    return Started([work], lambda: same(tensor, call.of(call.root, call.count, dtype)))


@_call
def _broadcast_buckets(call: Call) -> Started:
    tensors = [call.mine(call.count + i, part=i) for i in range(4)]
    dist._broadcast_coalesced(dist.group.WORLD, tensors, 4000, call.root)
    return Started(
        [], _pairs(tensors, [call.of(call.root, call.count + i, part=i) for i in range(4)])
    )


@_call
def _broadcast_object_list(call: Call) -> Started:
    out = [call.key, "y" * call.count] if call.rank == call.root else [None, None]
    dist.broadcast_object_list(out, call.root)

    def check() -> None:
        assert out == [call.key, "y" * call.count]

    return Started([], check)


@_call
def _reduce(call: Call) -> Started:
    dtype = call.random.choice(SUMMABLE)
    tensor = call.mine(call.count, dtype)
    work = dist.reduce(tensor, call.root, async_op=True)
    # What the others hold afterwards is not promised.
    return Started(
        [work], lambda: call.rank != call.root or same(tensor, call.total(call.count, dtype))
    )


@_call
def _reduce_max(call: Call) -> Started:
    tensor = call.mine(call.count)
    work = dist.reduce(tensor, call.root, dist.ReduceOp.MAX, async_op=True)
    right = call.every(call.count).max(0).values
    return Started([work], lambda: call.rank != call.root or same(tensor, right))


@_call
def _gather(call: Call) -> Started:
    out = (
        [torch.empty(call.count) for _ in range(call.world_size)]
        if call.rank == call.root
        else None
    )
    work = dist.gather(call.mine(call.count), out, call.root, async_op=True)
    return Started([work], lambda: out is None or same(torch.stack(out), call.every(call.count)))


@_call
def _gather_object(call: Call) -> Started:
    out = [None] * call.world_size if call.rank == call.root else None
    dist.gather_object((call.rank, call.key), out, call.root)

    def check() -> None:
        assert out is None or out == [(rank, call.key) for rank in range(call.world_size)]

    return Started([], check)


@_call
def _scatter(call: Call) -> Started:
    out = torch.empty(call.count)
    parts = (
        list(call.mine(call.world_size * call.count).split(call.count))
        if call.rank == call.root
        else None
    )
    work = dist.scatter(out, parts, call.root, async_op=True)
    right = call.of(call.root, call.world_size * call.count).split(call.count)[call.rank]
    return Started([work], lambda: same(out, right))


@_call
def _scatter_object_list(call: Call) -> Started:
    out: list[Any] = [None]
    parts = (
        [(rank, call.key) for rank in range(call.world_size)]
        if call.rank == call.root
        else [None] * call.world_size
    )
    dist.scatter_object_list(out, parts, call.root)

    def check() -> None:
        assert out == [(call.rank, call.key)]

    return Started([], check)


# All-to-all


@_call
def _all_to_all(call: Call) -> Started:
    out = [torch.empty(call.count) for _ in range(call.world_size)]
    work = dist.all_to_all(
        out, list(call.mine(call.world_size * call.count).split(call.count)), async_op=True
    )
    right = [
        call.of(rank, call.world_size * call.count).split(call.count)[call.rank]
        for rank in range(call.world_size)
    ]
    return Started([work], _pairs(out, right))


@_call
def _all_to_all_single(call: Call) -> Started:
    out = torch.empty(call.world_size * call.count)
    work = dist.all_to_all_single(out, call.mine(call.world_size * call.count), async_op=True)
    right = [
        call.of(rank, call.world_size * call.count).split(call.count)[call.rank]
        for rank in range(call.world_size)
    ]
    return Started([work], lambda: same(out, torch.cat(right)))


@_call
def _all_to_all_single_uneven(call: Call) -> Started:
    counts = [call.count % 500 + rank for rank in range(call.world_size)]  # to rank r
    out = torch.empty(call.world_size * counts[call.rank])
    work = dist.all_to_all_single(
        out, call.mine(sum(counts)), [counts[call.rank]] * call.world_size, counts, async_op=True
    )
    right = [call.of(rank, sum(counts)).split(counts)[call.rank] for rank in range(call.world_size)]
    return Started([work], lambda: same(out, torch.cat(right)))


# Point to point


@_call
def _isend_irecv(call: Call) -> Started:
    out = torch.empty(call.count)
    source = (call.rank - 1) % call.world_size
    destination = (call.rank + 1) % call.world_size
    tag = call.key % 1000
    works = [
        dist.irecv(out, source, tag=tag),
        dist.isend(call.mine(call.count), destination, tag=tag),
    ]
    right = call.of(source, call.count)
    return Started(works, lambda: same(out, right), forgettable=False, futures=False)


@_call
def _batch_isend_irecv(call: Call) -> Started:
    peers = [rank for rank in range(call.world_size) if rank != call.rank]
    out = [torch.empty(call.count) for _ in peers]
    right = [call.of(peer, call.count) for peer in peers]
    receives = [
        dist.P2POp(dist.irecv, tensor, peer) for tensor, peer in zip(out, peers, strict=True)
    ]
    sends = [dist.P2POp(dist.isend, call.mine(call.count), peer) for peer in peers]
    works = dist.batch_isend_irecv(receives + sends)
    return Started(works, _pairs(out, right), forgettable=False, futures=False)


@_call
def _recv_from_anybody(call: Call) -> Started:
    out = torch.empty(call.count)
    tag = 1000 + call.key % 1000
    work = dist.isend(call.mine(call.count), (call.rank + 1) % call.world_size, tag=tag)
    source = dist.recv(out, tag=tag)

    def check() -> None:
        assert source == (call.rank - 1) % call.world_size
        same(out, call.of(source, call.count))

    return Started([work], check, forgettable=False, futures=False)


@_call
def _send_object_list(call: Call) -> Started:
    out: list[Any] = [None]
    expected: list[Any] = [None]
    message = (call.key, "z" * call.count)
    receiver = (call.root + 1) % call.world_size
    if call.rank == call.root:
        dist.send_object_list([message], receiver)
    elif call.rank == receiver:
        dist.recv_object_list(out, call.root)
        expected = [message]

    def check() -> None:
        assert out == expected

    return Started([], check)


@_call
def _barrier(call: Call) -> Started:
    return Started([dist.barrier(async_op=True)], lambda: None)


# Functional collectives: what DTensor, FSDP2's clipping and torch.compile call


@_call
def _functional_all_reduce(call: Call) -> Started:
    operation = call.random.choice(["sum", "max", "avg"])
    out = functional.all_reduce(
        call.mine(call.count) * call.world_size, operation, dist.group.WORLD
    )

    def check() -> None:
        every = call.every(call.count) * call.world_size
        right = {
            "sum": every.sum(0),
            "max": every.max(0).values,
            "avg": every.sum(0) / call.world_size,
        }
        same(out + 0, right[operation])

    return Started([], check)


@_call
def _functional_all_gather(call: Call) -> Started:
    out = functional.all_gather_tensor(call.mine(call.count), 0, dist.group.WORLD)
    return Started([], lambda: same(out + 0, call.every(call.count).flatten()))


@_call
def _functional_reduce_scatter(call: Call) -> Started:
    out = functional.reduce_scatter_tensor(
        call.mine(call.world_size * call.count), "sum", 0, dist.group.WORLD
    )
    right = call.total(call.world_size * call.count).split(call.count)[call.rank]
    return Started([], lambda: same(out + 0, right))


@_call
def _functional_all_to_all(call: Call) -> Started:
    out = functional.all_to_all_single(
        call.mine(call.world_size * call.count), None, None, dist.group.WORLD
    )
    right = [
        call.of(rank, call.world_size * call.count).split(call.count)[call.rank]
        for rank in range(call.world_size)
    ]
    return Started([], lambda: same(out + 0, torch.cat(right)))


@_call
def _functional_broadcast(call: Call) -> Started:
    out = functional.broadcast(call.mine(call.count), call.root, dist.group.WORLD)
    return Started([], lambda: same(out + 0, call.of(call.root, call.count)))


@_call
def _functional_coalesced(call: Call) -> Started:
    kind = call.random.choice(["reduce", "gather", "scatter"])
    group = dist.group.WORLD
    counts = [call.count, call.count + 1]
    all_counts = [call.world_size * count for count in counts]
    if kind == "reduce":
        tensors = [call.mine(count, part=i) for i, count in enumerate(counts)]
        out = functional.all_reduce_coalesced(tensors, "sum", group)
        right = [call.total(count, part=i) for i, count in enumerate(counts)]
    elif kind == "gather":
        tensors = [call.mine(count, part=i) for i, count in enumerate(counts)]
        out = functional.all_gather_into_tensor_coalesced(tensors, group)
        right = [call.every(count, part=i).flatten() for i, count in enumerate(counts)]
    else:
        tensors = [call.mine(count, part=i) for i, count in enumerate(all_counts)]
        out = functional.reduce_scatter_tensor_coalesced(tensors, "sum", [0, 0], group)
        right = []
        for i, count in enumerate(counts):
            right.append(call.total(call.world_size * count, part=i).split(count)[call.rank])

    def check() -> None:
        for result, expected in zip(out, right, strict=True):
            same(result + 0, expected)

    return Started([], check)


# Sub-groups


def _group(call: Call) -> tuple[Any, tuple[int, ...]]:
    """A group, and its ranks; this rank may not be among them."""
    ranks = call.random.choice(sorted(call.groups))
    return call.groups[ranks], ranks


@_call
def _group_all_reduce(call: Call) -> Started:
    group, ranks = _group(call)
    tensor = call.mine(call.count)
    if call.rank not in ranks:
        return Started([], lambda: same(tensor, call.mine(call.count)))
    work = dist.all_reduce(tensor, group=group, async_op=True)
    return Started([work], lambda: same(tensor, call.every(call.count)[list(ranks)].sum(0)))


@_call
def _group_all_gather(call: Call) -> Started:
    group, ranks = _group(call)
    if call.rank not in ranks:
        return Started([], lambda: None)
    out = torch.empty(len(ranks) * call.count)
    work = dist.all_gather_into_tensor(out, call.mine(call.count), group=group, async_op=True)
    return Started([work], lambda: same(out, call.every(call.count)[list(ranks)].flatten()))


@_call
def _group_broadcast(call: Call) -> Started:
    group, ranks = _group(call)
    root = call.random.choice(ranks)
    tensor = call.mine(call.count)
    if call.rank not in ranks:
        return Started([], lambda: None)
    work = dist.broadcast(tensor, root, group=group, async_op=True)
    return Started([work], lambda: same(tensor, call.of(root, call.count)))
