"""Proof that another rank's process does not exist any more: its own host says so.

Each rank listens on a port for as long as its process takes part, and accepts nothing there: the
kernel answers for it. It completes a connection while the process exists, even if that is stopped,
and refuses one from the moment at which it ends. Silence proves nothing, since it may be the
network that has failed. (A firewall that *rejects* connections in the midst of a job would lie;
one that drops them does not.)
"""

from __future__ import annotations

import contextlib
import errno

from latecomer.runtime.elastic.readiness import is_ready
from latecomer.runtime.host import (
    EPOLLOUT,
    SO_ERROR,
    SOCK_STREAM,
    SOL_SOCKET,
    host,
)
from latecomer.runtime.network.addresses import family_of, listening_socket


class Presence:
    """This rank's sign that its process exists; ``where`` is its address and port."""

    def __init__(self, address: str) -> None:
        self._listener = listening_socket(address)
        self.where = f"{address}:{self._listener.getsockname()[1]}"

    def close(self) -> None:
        """From now on this rank counts as gone."""
        self._listener.close()


def is_gone(where: str, limit_s: float) -> bool:
    """Whether the process behind a :class:`Presence` is proved gone, within ``limit_s``."""
    address, port = where.rsplit(":", 1)
    with host.socket(family_of(address), SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            with contextlib.suppress(BlockingIOError):
                probe.connect((address, int(port)))
        except OSError as error:
            return error.errno == errno.ECONNREFUSED
        is_ready(probe, EPOLLOUT, limit_s)
        return probe.getsockopt(SOL_SOCKET, SO_ERROR) == errno.ECONNREFUSED
