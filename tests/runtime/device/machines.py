"""Schedules for machines of several ranks that go in stages."""

from __future__ import annotations

from latecomer.synth import generate
from latecomer.synth.cost import Link
from latecomer.synth.twolevel.machine import Machine
from latecomer.synth.twolevel.ring import hierarchical_ring
from latecomer.synth.twolevel.search import two_level
from latecomer.synth.twolevel.staged import staged

LINK = Link(alpha_s=0.0, bandwidth=1.0)


def machine(machines, per_machine):
    return Machine(machines, per_machine, per_machine, inner=LINK, outer=LINK)


def in_stages(machines, per_machine, *, late=None, chunks=1):
    """Reduce-scatter inside, all-reduce of shards between, all-gather inside; the last is late."""
    late = machines * per_machine - 1 if late is None else late
    between = generate(machines, late=late // per_machine, chunks=chunks)
    return staged(machine(machines, per_machine), late, between)


def hierarchical(machines, per_machine):
    """Nobody late."""
    return hierarchical_ring(machine(machines, per_machine))


def mixed(machines, per_machine):
    """Kernels of which ranks do not hear from all others of their machine."""
    ranks = machines * per_machine
    return two_level(machine(machines, per_machine), ranks - 1, chunks=4, burst=1)
