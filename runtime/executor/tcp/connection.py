"""One connection: frames in, straight to where they belong, and frames out.

The kernel is asked to wake the loop only when a good part of a frame has come (``SO_RCVLOWAT``):
at a few kB per packet a wake-up for each would cost more than everything else.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from latecomer.runtime.executor.tcp.frames import CREDIT, HEADER, LARGEST_FRAME, Header
from latecomer.runtime.executor.tcp.transfer import EarlyFrame, TransferState
from latecomer.runtime.host import SHUT_RDWR, SO_RCVLOWAT, SOL_SOCKET, Socket, host

READS = 16  # from one connection before others have their turn
Destination = TransferState | EarlyFrame
Find = Callable[[Header], tuple[Destination, int] | None]
"""From a frame's header: whose data comes next, at which end; none where it is a credit."""


class PeerLost(Exception):
    """A connection closed, or what came makes no sense; who failed is not yet known."""


class Mismatch(Exception):
    """This rank and ``peer`` submitted different things as the same operation."""

    def __init__(self, operation: int, peer: int) -> None:
        self.operation = operation
        self.peer = peer
        super().__init__(f"operation {operation} is not the same on rank {peer}")


class Connection:
    """This rank's end of the connection to ``peer``; PeerLost is raised if it is closed."""

    def __init__(self, tcp: Socket, peer: int, find: Find, wake: int) -> None:
        self.peer = peer
        self._socket = tcp
        self._find = find
        self.number = tcp.fileno()
        self.blocked = False  # the kernel took less than it was offered
        self.lost = False  # it is closed, and nothing under way needs it
        self.handed_over = 0  # bytes that the kernel has taken, ever
        self.armed = False  # the loop asks to be woken when it takes more
        self._header = bytearray(HEADER.size)
        self._header_memory = memoryview(self._header)
        self._header_has = 0
        self._receiving: Destination | None = None  # whose data comes next
        self._end = 0  # at which end,
        self._left = 0  # and how much in this frame
        self._wake = wake  # bytes of data that are worth a wake-up
        self._wake_at = 1
        self.credits = bytearray()  # not yet on the way; the next write takes them
        self._head = memoryview(b"")  # what goes before the data of the frame on its way out
        self._sending: TransferState | None = None  # whose data that is
        self._sending_end = 0
        self._sending_left = 0

    def read(self) -> None:
        """Take what has come, one frame's data at most (the loop comes back if there is more)."""
        for _ in range(READS):
            if not self._read():
                break
        wake_at = min(self._left, self._wake) if self._receiving is not None else 1
        if wake_at != self._wake_at:  # a system call, which most reads do not need
            self._wake_at = wake_at
            self._socket.setsockopt(SOL_SOCKET, SO_RCVLOWAT, wake_at)

    def _read(self) -> bool:
        """Read once: data to where it belongs, and the header behind it; false to stop here."""
        state = self._receiving
        room = 0
        try:
            if state is not None:
                landing = state.landing(self._end, self._left)
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

        if state is not None:
            data = min(length, room)
            state.landed(self._end, data)
            self._left -= data
            length -= data
            if self._left:
                return data == room  # where less came, there is no more
            self._receiving = None

        self._header_has += length
        if self._header_has < HEADER.size:
            return False
        self._header_has = 0
        size, transfer, operation, offset, digest = HEADER.unpack(self._header)
        if size > LARGEST_FRAME:
            raise PeerLost(f"rank {self.peer} sent a frame of {size} bytes")
        destination = self._find((self.peer, transfer, operation, offset, size, digest))
        if destination is not None:
            self._receiving, self._end = destination
            self._left = size
        return state is None

    def give_credit(self, state: TransferState, transfer: int, upto: int) -> None:
        """Allow the peer to send a transfer up to so many bytes; goes out with :meth:`write`."""
        self.credits += HEADER.pack(0, transfer | CREDIT, state.number, upto, state.digest)

    def send(self, state: TransferState, i: int, length: int) -> None:
        """Hand over a frame with the next ``length`` bytes of send ``i`` (if not blocked)."""
        assert not self.blocked
        index = state.program.ends[i].index
        header = HEADER.pack(length, index, state.number, state.done[i], state.digest)
        self._head = memoryview(bytes(self.credits) + header)  # credits by the same system call
        self.credits.clear()
        self._sending = state
        self._sending_end = i
        self._sending_left = length
        self.write()

    def write(self) -> None:
        """Hand over what waits: credits, and the rest of a frame, which advances accordingly."""
        if self._sending is None and self.credits:  # else they would stand within the frame's data
            self._head = memoryview(bytes(self._head) + bytes(self.credits))
            self.credits.clear()
        parts = [self._head]
        state = self._sending
        i = self._sending_end
        if state is not None:
            parts.append(state.piece(i, self._sending_left))
        offered = len(self._head) + self._sending_left
        if not offered:
            return
        try:
            sent = self._socket.sendmsg(parts)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            raise PeerLost(f"lost the connection to rank {self.peer}: {error}") from None
        self.blocked = sent < offered
        self.handed_over += sent

        sent_of_head = min(sent, len(self._head))
        self._head = self._head[sent_of_head:]
        sent_of_data = sent - sent_of_head
        if state is not None and sent_of_data:
            self._sending_left -= sent_of_data
            if not self._sending_left:
                self._sending = None
            state.advance(i, sent_of_data)

    def unacknowledged(self) -> int:
        """Bytes that the kernel has taken and the peer's kernel has not yet confirmed."""
        if self.lost:
            return 0
        return host.unacknowledged(self._socket)

    def cut(self) -> None:
        """End the connection for both sides, while another thread may still use it."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(SHUT_RDWR)

    def close(self) -> None:
        """Close the connection; what the kernel has taken is still delivered."""
        self._socket.close()
