"""The tests of UBT's state machines, wire format and socket, with the compiled data path."""

from __future__ import annotations

import functools

import pytest

pytest.importorskip("numba", reason="the extra fast is not installed")

from runtime.optireduce.udp.compiled import batches
from runtime.optireduce.udp.reassembly import StageReceiver
from tests.fuzz.test_datagrams import (
    test_nothing_that_arrives_breaks_a_node,
    test_nothing_that_arrives_breaks_a_node_at_length,
)
from tests.runtime.optireduce import simulation, test_bucket
from tests.runtime.optireduce.test_bucket import test_each_element_is_the_mean_of_what_came_of_it
from tests.runtime.optireduce.udp import test_datagram, test_protocol, test_reassembly, test_socket

PATH = batches.COMPILED


class Reader(batches.CompiledReader):
    """Hands out each datagram by itself, as an array."""

    def read(self):
        taken, found = super().read()
        ends = ((b.buffer, *e) for b in found for e in zip(b.starts, b.sizes, strict=True))
        return taken, [buffer[start : start + size][None] for buffer, start, size in ends]


@pytest.fixture(scope="module", autouse=True)
def _compiled():
    """Let those modules use the compiled path."""
    codec = functools.partial(PATH.codec, test_datagram.SESSION)
    session = test_datagram.SIZE
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "PATH", PATH)
        patch.setattr(test_bucket, "PATH", PATH)
        patch.setattr(test_datagram, "Codec", PATH.codec)
        patch.setattr(test_datagram, "SENDER", codec(1, 3, session))
        patch.setattr(test_datagram, "RECEIVER", codec(0, 3, session))
        receiver = functools.partial(StageReceiver, bitmap=PATH.bitmap)
        patch.setattr(test_reassembly, "StageReceiver", receiver)
        patch.setattr(test_socket, "BatchReader", Reader)
        yield


def _tests(module, *without):
    found = {n: f for n, f in vars(module).items() if n.startswith("test_") and n not in without}
    return {name: test for name, test in found.items() if test.__module__ == module.__name__}


globals().update(_tests(test_datagram), **_tests(test_protocol))
globals().update(_tests(test_reassembly))
globals().update(_tests(test_socket, "test_datagrams_of_one_length_are_one_batch"))
__all__ = [
    "test_each_element_is_the_mean_of_what_came_of_it",
    "test_nothing_that_arrives_breaks_a_node",
    "test_nothing_that_arrives_breaks_a_node_at_length",
]
