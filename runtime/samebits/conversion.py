"""Between floats and the integers that travel, on flat tensors of torch.

On the CPU by compiled loops (:mod:`latecomer.runtime.samebits.by_loops`) where numba is installed,
and else, as on devices, by torch operations (:mod:`latecomer.runtime.samebits.by_torch`), which are
several times slower. The bits are the same: loops are tried before their first use.

Formats of 16 bits are converted to float32 first, which holds all of their numbers.
"""

from __future__ import annotations

import functools
import logging
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from latecomer.runtime.compiling import alone, missing
from latecomer.runtime.samebits import blocks, by_torch
from latecomer.runtime.samebits.blocks import Exponents, Layout, Precision, Scales

logger = logging.getLogger("latecomer")

DTYPES = frozenset({torch.float32, torch.float64, torch.float16, torch.bfloat16})
INTEGERS = {torch.float32: torch.int32, torch.float64: torch.int64}
"""The integers that travel, by the format that holds the floats."""


class Conversions(Protocol):
    """What a module has that converts."""

    def to_integers(
        self,
        floats: torch.Tensor,
        layout: Layout,
        scales: Scales,
        word_scales: Scales,
        refused: int,
        *,
        adds: bool,
        integers: torch.Tensor,
        words: torch.Tensor,
    ) -> None:
        """Each x as ``rint(x * scale)``, and the words, put down or added to what is there."""

    def to_magnitudes(
        self, floats: torch.Tensor, layout: Layout, *, adds: bool, greatest: torch.Tensor
    ) -> None:
        """The bit pattern of the greatest |x| of each block, or of it and what is there."""

    def to_wide_integers(
        self,
        floats: torch.Tensor,
        layout: Layout,
        scales: Scales,
        *,
        adds: bool,
        integers: torch.Tensor,
    ) -> None:
        """Each x as ``rint(x * scale)`` in 64 bits; nothing of a block whose scale is 0."""

    def to_floats(
        self, integers: torch.Tensor, layout: Layout, factors: Scales, floats: torch.Tensor
    ) -> None:
        """Each sum times the factor of its block, in float64, and rounded once to the format."""


def holding(dtype: torch.dtype) -> torch.dtype:
    """The format that is converted for numbers of ``dtype``."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def precision_of(dtype: torch.dtype, contributions: int) -> Precision:
    """How numbers of ``dtype`` are summed."""
    makers = {torch.float64: blocks.float64, torch.bfloat16: blocks.bfloat16}
    return makers.get(dtype, blocks.float32)(contributions)


def to_integers(
    floats: torch.Tensor,
    layout: Layout,
    exponents: Exponents,
    precision: Precision,
    *,
    adds: bool,
    integers: torch.Tensor,
    words: torch.Tensor,
) -> None:
    """Each x as ``rint(x * 2**e)``, and the word of each block, put down or added."""
    floats = floats.to(holding(floats.dtype))
    conversions_on(floats.device).to_integers(
        floats,
        layout,
        np.ldexp(1.0, exponents),
        np.ldexp(1.0, exponents - precision.unit),
        precision.refused,
        adds=adds,
        integers=integers,
        words=words,
    )


def to_magnitudes(
    floats: torch.Tensor, layout: Layout, *, adds: bool, greatest: torch.Tensor
) -> None:
    """The bit pattern of the greatest |x| of each block, or of it and what is there.

    What is smaller than a normal number counts as 0, nan as inf.
    """
    floats = floats.to(holding(floats.dtype))
    conversions_on(floats.device).to_magnitudes(floats, layout, adds=adds, greatest=greatest)


def to_wide_integers(
    floats: torch.Tensor, layout: Layout, scales: Scales, *, adds: bool, integers: torch.Tensor
) -> None:
    """Each x as ``rint(x * scale)`` in 64 bits; nothing of a block whose scale is 0."""
    floats = floats.to(holding(floats.dtype))
    conversions_on(floats.device).to_wide_integers(
        floats, layout, scales, adds=adds, integers=integers
    )


def to_floats(
    integers: torch.Tensor, layout: Layout, factors: Scales, floats: torch.Tensor
) -> None:
    """Each sum times the factor of its block, in float64, rounded to the dtype of ``floats``."""
    conversions = conversions_on(floats.device)
    if floats.dtype in INTEGERS:
        conversions.to_floats(integers, layout, factors, floats)
        return
    held = torch.empty(floats.shape, dtype=holding(floats.dtype), device=floats.device)
    conversions.to_floats(integers, layout, factors, held)
    floats.copy_(held)


def conversions_on(device: torch.device) -> Conversions:
    """The module that converts tensors on ``device``."""
    return on_cpu() if device.type == "cpu" else by_torch


@functools.cache
def on_cpu() -> Conversions:
    """The module that converts tensors on the CPU; compiles now what has to be compiled."""
    reason = missing()
    if not reason:
        with alone(Path(__file__).parent / "loops.py"):
            from latecomer.runtime.samebits import by_loops

            try:
                reason = fault(by_loops)
            except Exception as error:  # whatever a compiler has to say
                reason = repr(error)
        if not reason:
            return by_loops
    logger.warning("bits='same' converts by torch, which is several times slower: %s", reason)
    return by_torch


def fault(conversions: Conversions) -> str:
    """What these conversions do otherwise than torch operations do; empty if nothing."""
    for dtype, integer in INTEGERS.items():
        precision = precision_of(dtype, contributions=3)
        layout = Layout((precision.block + 7, 5), precision.block)
        exponents = np.full(layout.blocks, precision.full, np.int32)
        floats = torch.linspace(-9.0, 11.0, layout.elements, dtype=dtype)
        floats[-1] = torch.nan
        results = []
        for each in (conversions, by_torch):
            integers = torch.zeros(layout.elements, dtype=integer)
            words = torch.zeros(layout.blocks, dtype=integer)
            wide = torch.zeros(layout.elements, dtype=torch.int64)
            greatest = torch.zeros(layout.blocks, dtype=integer)
            scales = np.ldexp(1.0, exponents)
            for adds in (False, True):
                each.to_integers(
                    floats,
                    layout,
                    scales,
                    scales / 4,
                    precision.refused,
                    adds=adds,
                    integers=integers,
                    words=words,
                )
                each.to_magnitudes(floats, layout, adds=adds, greatest=greatest)
                wide_scales = np.where(np.arange(layout.blocks) < 2, scales, 0.0)
                each.to_wide_integers(floats, layout, wide_scales, adds=adds, integers=wide)
            back = torch.zeros_like(floats)
            each.to_floats(integers, layout, 1 / scales, back)
            wide_back = torch.zeros_like(floats)
            each.to_floats(wide, layout, 1 / scales, wide_back)
            results.append((integers, words, greatest, wide, back, wide_back))
        if not all(torch.equal(one, other) for one, other in zip(*results, strict=True)):
            return f"the loops give other bits for {dtype}"
    return ""
