"""Reductions that Gloo lacks, with NCCL's meaning: the average of integers, and PREMUL_SUM.

    AVG of integers     the sum, divided by the number of ranks and rounded towards zero
    PREMUL_SUM          the sum of each rank's data times that rank's factor

Both become a native SUM, with scaled copies before it or a division after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from latecomer.runtime.work import INTEGERS

IN_PLACE = "allreduce allreduce_coalesced reduce"
SCATTERING = """
reduce_scatter _reduce_scatter_base reduce_scatter_single reduce_scatter_single_coalesced
reduce_scatter_tensor_coalesced
"""
INPUTS = dict.fromkeys(IN_PLACE.split(), 0) | dict.fromkeys(SCATTERING.split(), 1)
"""The collectives that reduce, and which argument is the input; the output is argument 0."""

Arguments = tuple[Sequence[Any], dict[str, Any]]


def operation(args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
    """The reduce operation of a call, in whichever form of the call it stands; default: SUM."""
    for value in (*args, *kwargs.values()):
        if isinstance(value, dist.ReduceOp):
            return value
        if hasattr(value, "reduceOp"):
            return value.reduceOp
    return dist.ReduceOp.SUM


def name(operation: Any) -> str:
    """The name of a reduce operation."""
    return str(getattr(operation, "op", operation).name)


def tensors(nested: Any) -> Iterator[torch.Tensor]:
    """The tensors of an argument: one, a list, or a list of lists."""
    if isinstance(nested, torch.Tensor):
        yield nested
    else:
        for part in nested:
            yield from tensors(part)


def by_sum(
    collective: str, args: Sequence[Any], kwargs: dict[str, Any], rank: int, size: int
) -> tuple[Arguments, Callable[[], None] | None]:
    """For a reduction on the CPU that Gloo lacks: a SUM's arguments, and what to do here after it.

    Other collectives keep their arguments.
    """
    which = operation(args, kwargs)
    kind = name(which)
    if collective not in INPUTS or kind not in ("AVG", "PREMUL_SUM"):
        return (args, kwargs), None
    outputs = list(tensors(args[0]))
    is_average = kind == "AVG" and all(output.dtype in INTEGERS for output in outputs)
    on_cpu = all(output.device.type == "cpu" for output in outputs)
    if not on_cpu or (kind == "AVG" and not is_average):
        return (args, kwargs), None
    input_at = INPUTS[collective]
    summing, options = _summing(args, kwargs)
    factor = which.__getstate__()[1] if kind == "PREMUL_SUM" else 1
    if kind == "PREMUL_SUM" or collective == "reduce":  # Gloo's reduce spoils the others' data
        summing[input_at] = _scaled(args[input_at], factor)
    is_output = collective != "reduce" or rank == _root(args, kwargs)

    def finish() -> None:
        for output, result in zip(outputs, tensors(summing[0]), strict=True):
            if is_average:
                result.div_(size, rounding_mode="trunc")
            if output is not result and is_output:
                output.copy_(result)

    return (summing, options), finish


def _scaled(nested: Any, factor: float | torch.Tensor) -> Any:
    if isinstance(nested, torch.Tensor):
        return (nested * factor).to(nested.dtype)
    return [_scaled(part, factor) for part in nested]


def _summing(args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """The same arguments with SUM as the operation; options are copied, not changed."""

    def summing(value: Any) -> Any:
        if isinstance(value, dist.ReduceOp):
            return dist.ReduceOp.SUM
        if not hasattr(value, "reduceOp"):
            return value
        options = type(value)()
        for field, kind in vars(type(value)).items():
            if isinstance(kind, property):
                setattr(options, field, getattr(value, field))
        options.reduceOp = dist.ReduceOp.SUM
        return options

    return [summing(value) for value in args], {k: summing(v) for k, v in kwargs.items()}


def _root(args: Sequence[Any], kwargs: dict[str, Any]) -> int:
    options = next((v for v in (*args, *kwargs.values()) if hasattr(v, "rootRank")), None)
    root = options.rootRank if options is not None else kwargs.get("root", args[1])
    return int(root)
