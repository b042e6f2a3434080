"""Programs of the fuzzer against both data paths, the compiled one with every index checked.

It is compiled anew for that, into a cache of its own, and its buffers lie between forbidden pages.
"""

from __future__ import annotations

import os
import sys

from tests.runtime.optireduce import simulation
from tests.runtime.optireduce.compiled.guards import Guards


def target(attack):
    """A function that runs a program on both paths by ``attack``, and compares what came of it."""
    assert "numba" not in sys.modules, "too late: something is compiled without checks already"
    os.environ |= {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": "out/numba-checked"}
    from latecomer.runtime.optireduce.udp.compiled.placement import COMPILED
    from latecomer.runtime.optireduce.udp.data_path import NUMPY

    guards = Guards()

    def run(data):
        guards.reset(at_end=len(data) % 2 == 0)
        simulation.PATH = NUMPY
        left = attack(data)
        simulation.PATH = COMPILED
        assert attack(data, guards) == left, "the paths differ"

    return run
