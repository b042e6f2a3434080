"""Faults for real sockets: datagrams that are dropped on arrival."""

from __future__ import annotations

import numpy as np

from runtime.optireduce.udp.socket import UdpSocket


def lose(share, seed):
    """From now on this process loses so large a share of the datagrams it receives."""
    dice, receive = np.random.default_rng(seed), UdpSocket.receive

    def lossy(self):
        rows = receive(self)
        return None if rows is None else rows[dice.random(len(rows)) >= share]

    UdpSocket.receive = lossy
