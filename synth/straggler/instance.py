"""One late rank among n: what the searches start from.

Names in all of ``latecomer.synth.straggler``: the N = n - 1 helpers are ranks 0 .. N-1 and the late
rank is N; real names are given at the very end (:func:`real_names`). The buffer has k chunks, any
number; where k = N * m, each helper can own m of them, as StragglAR (arXiv 2505.23523) has it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from latecomer.verify.core.bounds import dissemination_bound, spread_bound
from latecomer.verify.core.schedule import IntArray

PortModel = Literal["duplex", "matching"]
Owners = Literal["auto", "balanced", "free"]
OWNERS: tuple[Owners, ...] = ("auto", "balanced", "free")
PORT_MODELS: tuple[PortModel, ...] = ("duplex", "matching")


@dataclass(frozen=True)
class Instance:
    """What the completion starts from: n ranks, k chunks, a model of the ports."""

    ranks: int
    chunks: int
    ports: PortModel = "duplex"

    @property
    def helpers(self) -> int:
        """N, the number of helpers; also the late rank's name in this module."""
        return self.ranks - 1

    @property
    def fewest_hops(self) -> int:
        """ceil(log2 n): in so many rounds a chunk can get from one rank to all n."""
        return (self.ranks - 1).bit_length()

    @property
    def bound(self) -> int:
        """No schedule of so many chunks has fewer completion rounds, by ``verify``'s bounds."""
        return max(
            dissemination_bound(self.ranks, self.chunks),
            spread_bound(self.ranks, self.chunks, self.ports),
        )

    def owner(self, chunk: int) -> int:
        """The helper that holds the helpers' partial sum of ``chunk``, if owners are balanced."""
        return chunk % self.helpers


def real_names(names: IntArray, ranks: int, late: int) -> IntArray:
    """The ranks that these names stand for: helpers are the others than ``late``, in order."""
    return np.where(names == ranks - 1, late, names + (names >= late))
