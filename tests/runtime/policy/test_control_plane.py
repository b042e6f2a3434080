"""What a rank's control plane says of the network."""

from __future__ import annotations

import contextlib

import pytest

from latecomer.runtime.network.control_loop import ControlLoop
from latecomer.runtime.policy.agent import RankAgent
from latecomer.runtime.policy.control_plane import ControlPlane
from tests.runtime.policy.network import inputs


class Deaf:
    """A control channel on which nothing comes; rank 0 was heard before, or never."""

    def __init__(self, unreached):
        self.unreached = unreached
        self.loop = ControlLoop({})

    def listen(self, channel, handler):
        pass

    def send(self, peer, channel, payload):
        pass

    def never_heard(self):
        return self.unreached


@pytest.mark.parametrize(("rank", "unreached"), [(1, [0, 2]), (1, [2]), (1, []), (0, [1, 2])])
def test_a_start_without_udp_from_the_reference_is_warned_of(rank, unreached, caplog):
    channel = Deaf(unreached)
    agent = RankAgent(rank, inputs(3))
    plane = ControlPlane(agent, channel, on_decided=lambda: None, on_fault=print)
    with contextlib.closing(channel.loop), contextlib.closing(plane):
        plane.align(within_s=0.01)

    is_told = "rank 1: UDP from rank 0 does not arrive: is a firewall between?" in caplog.text
    assert is_told == (rank == 1 and 0 in unreached)
