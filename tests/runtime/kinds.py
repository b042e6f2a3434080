"""Schedules of all families, for any number of ranks."""

from __future__ import annotations

from latecomer.synth import generate, rhd
from latecomer.synth.cost import Link
from latecomer.synth.transpose.generate import transpose
from latecomer.synth.twolevel.machine import Machine
from latecomer.synth.twolevel.search import two_level
from tests.runtime.schedules import arrivals, direct, ring, swapping


def kinds(n):
    """Schedules of all kinds for n ranks."""
    yield ring(n)
    if n == 2:
        yield swapping()
    yield generate(n, chunks=n, owners="free")
    yield direct(n)
    yield transpose(n, incast=2 if n > 2 else 1)
    if n in (3, 5, 6, 7):
        yield rhd(n)
    if n == 4:
        yield arrivals(4, {2: 1, 3: 3})
    if n in (4, 6, 8):
        machine = Machine(2, n // 2, 1, Link(1e-6, 1e9), Link(1e-5, 1e8))
        yield two_level(machine, n - 1, 2 * (n // 2 - 1) or 2, 1)
