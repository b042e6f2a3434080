"""The tests of UBT's state machines, wire format and socket, with the compiled data path."""

from __future__ import annotations

import functools

import pytest

pytest.importorskip("numba", reason="the extra fast is not installed")

from latecomer.runtime.optireduce.udp.compiled.placement import COMPILED
from latecomer.runtime.optireduce.udp.compiled.sockets import CompiledReader
from tests.fuzz.test_datagrams import (
    test_nothing_that_arrives_breaks_a_node,
    test_nothing_that_arrives_breaks_a_node_at_length,
)
from tests.runtime.optireduce import simulation, test_bucket
from tests.runtime.optireduce.test_bucket import test_each_element_is_the_mean_of_what_came_of_it
from tests.runtime.optireduce.udp import test_datagram, test_protocol, test_socket


class Reader(CompiledReader):
    """Hands out each datagram by itself, as an array."""

    def read(self):
        messages, batches = super().read()
        datagrams = []
        for batch in batches:
            for start, size in zip(batch.starts, batch.sizes, strict=True):
                datagrams.append(batch.buffer[start : start + size][None])
        return messages, datagrams


@pytest.fixture(scope="module", autouse=True)
def _compiled():
    """Let those modules use the compiled path."""
    codec = functools.partial(COMPILED.codec, test_datagram.SESSION)
    datagram_bytes = test_datagram.SIZE
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation, "PATH", COMPILED)
        patch.setattr(test_bucket, "PATH", COMPILED)
        patch.setattr(test_datagram, "Codec", COMPILED.codec)
        patch.setattr(test_datagram, "SENDER", codec(1, 3, datagram_bytes))
        patch.setattr(test_datagram, "RECEIVER", codec(0, 3, datagram_bytes))
        patch.setattr(test_socket, "BatchReader", Reader)
        yield


def _tests(module, *without):
    """The tests that a module has itself, by name."""
    return {
        name: test
        for name, test in vars(module).items()
        if name.startswith("test_") and name not in without
        if test.__module__ == module.__name__
    }


globals().update(_tests(test_datagram), **_tests(test_protocol))
globals().update(_tests(test_socket, "test_datagrams_of_one_length_are_one_batch"))
__all__ = [
    "test_each_element_is_the_mean_of_what_came_of_it",
    "test_nothing_that_arrives_breaks_a_node",
    "test_nothing_that_arrives_breaks_a_node_at_length",
]
