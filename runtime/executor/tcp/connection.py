"""One connection: frames in, straight to where they belong, and frames out.

The kernel is asked to wake the engine only when a good part of a frame has come (``SO_RCVLOWAT``):
at a few kB per packet a wake-up for each would cost more than everything else.
"""

from __future__ import annotations

import contextlib
import fcntl
import socket
import sys
from collections.abc import Callable
from termios import TIOCOUTQ

from runtime.executor.operation import PeerLost
from runtime.executor.tcp.frames import GRANT, HEADER
from runtime.executor.tcp.sizes import LARGEST_FRAME
from runtime.executor.tcp.transfer import TransferState

READS = 16
"""Reads from one connection before others have their turn."""


class Connection:
    """This rank's end of the connection to ``peer``.

    Args:
        find: (peer, transfer, operation, offset, length, digest) of a frame's header -> the flow
            and the move that its data belongs to; ``None`` if there is none to come.
        wake: bytes of data that are worth a wake-up.
    """

    def __init__(
        self,
        connection: socket.socket,
        peer: int,
        find: Callable[[int, int, int, int, int, int], tuple[TransferState, int] | None],
        wake: int,
    ) -> None:
        self.peer, self._socket, self._find = peer, connection, find
        self.number = connection.fileno()
        self.blocked = False  # the kernel took less than it was offered
        self.lost = False  # it is closed, and nothing under way needs it
        self.handed_over = 0  # bytes that the kernel has taken, ever
        self.armed = False  # the engine asks to be woken when it takes more
        self._header = bytearray(HEADER.size)
        self._header_memory = memoryview(self._header)
        self._header_has = 0
        self._flow: TransferState | None = None  # whose data comes next
        self._move = self._left = 0  # of which move, and how much in this frame
        self._wake, self._wake_at = wake, 1
        self._grants = bytearray()  # not yet on the way
        self._head = memoryview(b"")  # what goes before the data of the frame on its way out
        self._sending: TransferState | None = None  # whose data that is
        self._sending_move = self._sending_left = 0

    def read(self) -> None:
        """Take what has come, one frame's data at most (the engine comes back if there is more).

        Raises:
            PeerLost: the connection is closed, or what comes makes no sense.
        """
        for _ in range(READS):
            if not self._read():
                break
        wake_at = min(self._left, self._wake) if self._flow is not None else 1
        if wake_at != self._wake_at:
            self._wake_at = wake_at
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wake_at)

    def _read(self) -> bool:
        """Read once: data to where it belongs, and the header behind it; false to stop here."""
        flow, room = self._flow, 0
        try:
            if flow is not None:
                landing = flow.landing(self._move, self._left)
                room = len(landing)
                into = [landing, self._header_memory] if room == self._left else [landing]
                length = self._socket.recvmsg_into(into)[0]
            else:
                length = self._socket.recv_into(self._header_memory[self._header_has :])
        except (BlockingIOError, InterruptedError):
            return False
        except OSError as error:
            raise PeerLost(f"lost the connection to rank {self.peer}: {error}") from None
        if length == 0:
            raise PeerLost(f"lost the connection to rank {self.peer}: it was closed")
        if flow is not None:
            data = min(length, room)
            flow.landed(self._move, data)
            self._left -= data
            length -= data
            if self._left:
                return data == room
            self._flow = None
        self._header_has += length
        if self._header_has < HEADER.size:
            return False
        self._header_has = 0
        size, transfer, operation, offset, digest = HEADER.unpack(self._header)
        if size > LARGEST_FRAME:
            raise PeerLost(f"rank {self.peer} sent a frame of {size} bytes")
        found = self._find(self.peer, transfer, operation, offset, size, digest)
        if found is not None:
            self._flow, self._move = found
            self._left = size
        return flow is None

    def grant(self, flow: TransferState, transfer: int, upto: int) -> None:
        """Allow the peer to send a transfer up to so many bytes; goes out with :meth:`write`."""
        self._grants += HEADER.pack(0, transfer | GRANT, flow.number, upto, flow.digest)

    def send(self, flow: TransferState, i: int, length: int) -> None:
        """Hand over a frame with the next ``length`` bytes of move ``i`` (if not :attr:`blocked`).

        Raises:
            PeerLost: the connection is closed.
        """
        assert not self.blocked
        move = flow.plan.all[i]
        header = HEADER.pack(length, move.index, flow.number, flow.done[i], flow.digest)
        self._head = memoryview(bytes(self._grants) + header)
        self._grants.clear()
        self._sending, self._sending_move, self._sending_left = flow, i, length
        self.write()

    def write(self) -> None:
        """Hand over what waits: the rest of a frame, and grants.

        Moves advance by what the kernel has taken.

        Raises:
            PeerLost: the connection is closed.
        """
        if self._sending is None and self._grants:
            self._head = memoryview(bytes(self._head) + bytes(self._grants))
            self._grants.clear()
        parts = [self._head]
        flow, i = self._sending, self._sending_move
        if flow is not None:
            parts.append(flow.piece(i, self._sending_left))
        offered = len(self._head) + self._sending_left
        if not offered:
            return
        try:
            taken = self._socket.sendmsg(parts)
        except (BlockingIOError, InterruptedError):
            taken = 0
        except OSError as error:
            raise PeerLost(f"lost the connection to rank {self.peer}: {error}") from None
        self.blocked = taken < offered
        self.handed_over += taken
        head = min(taken, len(self._head))
        self._head = self._head[head:]
        if flow is not None and taken > head:
            self._sending_left -= taken - head
            if not self._sending_left:
                self._sending = None
            flow.advance(i, taken - head)

    def unacknowledged(self) -> int:
        """Bytes that the kernel has taken and the peer's kernel has not yet confirmed."""
        if self.lost:
            return 0
        return int.from_bytes(fcntl.ioctl(self._socket, TIOCOUTQ, b"\0\0\0\0"), sys.byteorder)

    @property
    def has_grants(self) -> bool:
        """There are grants that wait for :meth:`write`."""
        return bool(self._grants)

    def cut(self) -> None:
        """End the connection for both sides, while another thread may still use it."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection; what the kernel has taken is still delivered."""
        self._socket.close()
