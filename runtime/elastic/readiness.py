"""To wait for one socket, and no longer than one may."""

from __future__ import annotations

from latecomer.runtime.host import Socket, host


def is_ready(connection: Socket, event: int, limit_s: float) -> bool:
    """Whether it is ready within the limit for EPOLLIN, or EPOLLOUT."""
    poll = host.epoll()
    try:
        poll.register(connection.fileno(), event)
        return bool(poll.poll(max(0.0, limit_s)))
    finally:
        poll.close()
