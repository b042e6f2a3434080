"""The event loop on the sockets of both data paths."""

from __future__ import annotations

import time
from unittest.mock import MagicMock

import pytest

from latecomer.runtime.optireduce.options import Options
from latecomer.runtime.optireduce.udp.compiled.choice import choose
from latecomer.runtime.optireduce.udp.endpoint import Endpoint
from latecomer.runtime.optireduce.udp.loop import UdpLoop


def idle_protocol():
    """One that has nothing to do."""
    protocol = MagicMock(options=Options())
    protocol.get_timer.return_value = 9e9
    protocol.next_event.return_value = None
    protocol.message_to_send.return_value = None
    return protocol


def loop_of(protocol, when):
    """A loop that runs this protocol, and its endpoint; ``when`` its parts are compiled."""
    path = choose(when)
    options = protocol.options
    channel = path.socket(options, "127.0.0.1", path.reader)
    codec = path.codec(session=1, rank=0, world_size=2, datagram_bytes=options.datagram_bytes)
    endpoint = Endpoint(channel, path.placer(codec))
    return UdpLoop(protocol, endpoint, print, print), endpoint


@pytest.mark.parametrize("when", ["off", "auto"])
def test_deadlines_are_judged_by_a_clock_before_which_no_pause_was_missed(when):
    """A rank that is stopped after its pauses were measured must not judge by a later clock."""
    began = []

    def set_bound_slowly(bound_s):
        began.append(time.monotonic())
        time.sleep(0.05)

    protocol = idle_protocol()
    protocol.set_bound = set_bound_slowly
    loop, _ = loop_of(protocol, when)
    loop.set_bound(1.0)
    while not began:
        time.sleep(0.001)
    loop.close()
    assert protocol.handle_timer.call_args.args[0] <= began[0]


@pytest.mark.parametrize("when", ["off", "auto"])
def test_who_gives_up_on_the_thread_that_moves_datagrams_receives_no_more(when):
    """What had come by then would be written into a tensor that is its caller's again."""
    protocol = idle_protocol()
    loop, endpoint = loop_of(protocol, when)
    received_after = []

    def give_up(bound_s):
        loop.abort()
        endpoint.receive = lambda: received_after.append(True)

    protocol.set_bound = give_up
    loop.set_bound(1.0)
    for thread in loop._threads:
        thread.join(timeout=5.0)
        assert not thread.is_alive()
    loop.close()
    assert not received_after
