"""Proved schedules of every family, small ones, to be exported."""

from collections.abc import Iterator

from latecomer.synth import standard
from latecomer.synth.arrivals.generate import search as search_arrivals
from latecomer.synth.cost import Link
from latecomer.synth.straggler.generate import search as search_straggler
from latecomer.synth.transpose.generate import transpose
from latecomer.synth.twolevel.machine import Machine
from latecomer.synth.twolevel.search import search as search_twolevel
from latecomer.verify import Schedule

INNER = Link(3e-6, 450e9)
OUTER = Link(10e-6, 50e9)


def straggler(n: int, late: int | None = None, chunks: int | None = None) -> Schedule:
    """The closed form: at the bound for every number of ranks and chunks."""
    return search_straggler(n, late=late, chunks=chunks, owners="free").schedule


def families(n: int) -> Iterator[Schedule]:
    """One schedule of each family that has one for n ranks."""
    yield straggler(n)
    yield straggler(n, late=0, chunks=n + 3)
    yield standard.ring(n)
    yield standard.direct(n)
    if n & (n - 1) == 0:
        yield standard.rhd(n)
    if n >= 3:
        yield transpose(n)
        yield transpose(n, incast=2)
        yield search_arrivals(n, {n - 1: 1, 0: 3}, time_limit_s=1).schedule
    if n >= 4 and n % 2 == 0:
        machine = Machine(2, n // 2, n // 2, INNER, OUTER)
        yield search_twolevel(machine, 2**24, time_limit_s=1).schedule
