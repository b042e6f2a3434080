"""A simulated network: ports of finite bandwidth, datagrams that get lost, byte streams as TCP's.

Every rank has a host of its own with a full-duplex port. A datagram or a piece of a stream takes
its turn at the sender's port, travels for the latency, and takes its turn at the receiver's.
Datagrams may be lost, doubled and delayed. Streams lose nothing: what the network drops of them
comes later, as TCP repeats it. Between ranks that are cut off from each other nothing passes.

Streams are what a program sees of Linux's TCP: buffers that fill, SO_RCVLOWAT, reads and writes
that take less than they could, FIN and reset.
"""

from __future__ import annotations

import errno
import io
import itertools
import struct
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from latecomer.runtime.host import (
    EPOLLIN,
    EPOLLOUT,
    MSG_DONTWAIT,
    SO_ERROR,
    SO_RCVBUF,
    SO_RCVLOWAT,
    SO_SNDBUF,
    SOCK_DGRAM,
    SOL_SOCKET,
)
from latecomer.runtime.simulation.threads import Waiters
from latecomer.runtime.simulation.world import World

EPOLLERR_HUP = 0x18  # EPOLLERR | EPOLLHUP: told without being asked for
REPEAT_S = 0.2  # after so long TCP sends again what was lost
ROOM = 212_992  # bytes that a datagram socket holds each way, unless it asks for other room
SEGMENT = struct.Struct("H")
MOST_QUEUED = 4096  # datagrams that a socket holds before it drops what comes
LOCAL_S = 1e-6  # within a host

MOST_AT_ONCE = 256  # datagrams that one call takes
LARGEST = 65_536  # bytes of a datagram

Address = tuple[str, int]


@dataclass
class Weather:
    """What the network does; times in seconds, rates in bytes a second, the rest probabilities."""

    rate: float = 25e6
    latency_s: float = 2e-4
    jitter: float = 0.5  # of a datagram's latency, on average
    lost: float = 0.0  # datagrams, and pieces of streams, which come later
    doubled: float = 0.0  # datagrams
    delayed: float = 0.0  # datagrams that take
    delay_s: float = 0.05  # so much longer
    burst: int = 0  # bytes that a port passes at once after a pause, as a token bucket does
    short: float = 0.1  # reads and writes that take less than they could
    buffer: int = 64 * 1024  # bytes that each end of a stream holds
    pieces: tuple[int, ...] = (1448, 8192, 65536)  # bytes of a stream that travel together, drawn
    of_link: dict[tuple[int, int], float] = field(default_factory=dict)  # rates that differ


class Network:
    """Ports, sockets by address, and who is cut off from whom."""

    def __init__(self, world: World, weather: Weather) -> None:
        self.world = world
        self.weather = weather
        self.datagram_sockets: dict[Address, DatagramSocket] = {}
        self.listeners: dict[Address, StreamSocket] = {}
        self.sockets: dict[int, Any] = {}  # by descriptor
        self._sent_until_s: dict[int, float] = {}  # by rank: when its port is free
        self._received_until_s: dict[int, float] = {}
        self._cut: dict[tuple[int, int], float] = {}  # (from, to): until when nothing passes
        self.dice = world.dice("network")

    def attributes(self) -> dict[str, Any]:
        """By the names that the host has for them."""
        return {
            "name": lambda: f"host{self.world.rank}",
            "address_towards": lambda store: address_of(self.world.rank),
            "socket": self.socket,
            "socketpair": self.socketpair,
            "unacknowledged": lambda stream: stream.unacknowledged(),
            "batch_reader": lambda reader, udp: BatchReader(udp),
            "epoll": lambda: Poll(self, milliseconds=False),
            "poll": lambda: Poll(self, milliseconds=True),
            "selector": lambda sockets: Selector(self),
        }

    def socket(self, family: int, kind: int, protocol: int = 0) -> DatagramSocket | StreamSocket:
        """As ``socket.socket``."""
        made = DatagramSocket if kind == SOCK_DGRAM else StreamSocket
        return made(self, self.world.rank)

    def socketpair(self) -> tuple[StreamSocket, StreamSocket]:
        """Two ends within a rank."""
        ends = StreamSocket(self, self.world.rank), StreamSocket(self, self.world.rank)
        for end, other in (ends, reversed(ends)):
            end.join_with(other)
        return ends

    def cut(self, sender: int, receiver: int, until_s: float) -> None:
        """Nothing passes from one rank to another until then."""
        self._cut[sender, receiver] = until_s

    def passes_from_s(self, sender: int, receiver: int) -> float:
        """From when on something passes: now, unless they are cut off from each other."""
        return max(self.world.now_s, self._cut.get((sender, receiver), 0.0))

    def transit_s(self, sender: int, receiver: int, length: int) -> float:
        """When so many bytes that leave now have arrived; they take their turn at both ports.

        What delays a single datagram or piece comes on top, and holds up no other.
        """
        weather = self.weather
        latency_s = weather.latency_s
        now_s = self.world.now_s
        if sender == receiver:
            return now_s + LOCAL_S
        rate = weather.of_link.get((sender, receiver), weather.rate)
        sent_s = self._pass(self._sent_until_s, sender, now_s, length / rate)
        # the first byte is there long before the last one
        first_s = sent_s - length / rate + latency_s
        passed_s = self._pass(self._received_until_s, receiver, first_s, length / weather.rate)
        return max(passed_s, sent_s + latency_s)

    def _pass(self, until_s: dict[int, float], rank: int, from_s: float, takes_s: float) -> float:
        """When something has passed a rank's port that can begin at a time.

        ``until_s`` is when each port is through with what it has been given; one that has paused
        makes up for ``burst`` bytes of the pause, as a token bucket does.
        """
        made_up_s = self.weather.burst / self.weather.rate
        until_s[rank] = max(until_s.get(rank, 0.0), from_s - made_up_s) + takes_s
        return max(from_s, until_s[rank])

    def sent_until_s(self, sender: int) -> float:
        """When the rank's port has sent all that it has been given."""
        return max(self.world.now_s, self._sent_until_s.get(sender, 0.0))

    def deliver(self, data: bytes, sender: Address, receiver: Address) -> None:
        """A datagram arrives, if somebody is there."""
        there = self.datagram_sockets.get(receiver)
        if there is not None:
            there.receive(data, sender)

    def lose_host(self, rank: int, *, resets: bool) -> None:
        """A rank's process is gone: its kernel closes what it had open, or resets it."""
        for each in list(self.sockets.values()):
            if each.rank == rank:
                each.die(resets=resets)


def address_of(rank: int) -> str:
    """The address of a rank's host."""
    return f"10.0.{rank >> 8}.{rank & 255}"


def rank_of(address: str) -> int:
    """The rank whose host has this address."""
    _, _, high, low = address.split(".")
    return int(high) << 8 | int(low)


class Endpoint:
    """What sockets of both kinds have: a descriptor, pollers that are told, an address."""

    def __init__(self, network: Network, rank: int) -> None:
        self.network = network
        self.world = network.world
        self.rank = rank
        self.is_closed = False
        self.number = self.world.number()
        self._address: Address = (address_of(rank), 0)
        self._blocks = True
        self._readers = Waiters(self.world)
        self.pollers: list[Poll] = []
        network.sockets[self.number] = self

    def fileno(self) -> int:
        """Its descriptor."""
        return -1 if self.is_closed else self.number

    def setblocking(self, flag: bool) -> None:
        """Whether calls wait."""
        self._blocks = flag

    def getsockname(self) -> Address:
        """Its address and port."""
        return self._address

    def getsockopt(self, level: int, option: int, length: int = 0) -> int:
        """0: no error; buffers are as large as asked for."""
        return 0

    def setsockopt(self, level: int, option: int, value: Any) -> None:
        """Taken, and of no effect unless a kind of socket says otherwise."""

    def bind(self, address: Address) -> None:
        """Take a port: the one that is asked for, or (0) any."""
        host, port = address
        self._address = (host, port or 10_000 + self.world.number())

    def changed(self) -> None:
        """It may be ready for something: who waits for that looks."""
        self._readers.wake()
        for poller in list(self.pollers):
            poller.look(self)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Give it up."""
        self.is_closed = True
        self.network.sockets.pop(self.number, None)

    def _wait_or_raise(self, flags: int) -> None:
        if not self._blocks or flags & MSG_DONTWAIT:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        self._readers.wait(None, "data")


class DatagramSocket(Endpoint):
    """A UDP socket."""

    def __init__(self, network: Network, rank: int) -> None:
        super().__init__(network, rank)
        self._received: deque[tuple[bytes, Address]] = deque()
        self._received_bytes = 0
        self._receive_room = ROOM
        self._send_room = ROOM

    def bind(self, address: Address) -> None:
        """As UDP's; OSError if the port is taken."""
        super().bind(address)
        if self._address in self.network.datagram_sockets:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        self.network.datagram_sockets[self._address] = self

    def setsockopt(self, level: int, option: int, value: Any) -> None:
        """SO_SNDBUF and SO_RCVBUF: bytes that the kernel holds."""
        if (level, option) == (SOL_SOCKET, SO_SNDBUF):
            self._send_room = value
        elif (level, option) == (SOL_SOCKET, SO_RCVBUF):
            self._receive_room = value

    def getsockopt(self, level: int, option: int, length: int = 0) -> int:
        """SO_RCVBUF: twice what was asked for, as Linux tells."""
        return 2 * self._receive_room if (level, option) == (SOL_SOCKET, SO_RCVBUF) else 0

    def sendto(self, data: bytes, address: Address) -> int:
        """Send a datagram, which may never arrive."""
        return self.sendmsg([data], [], 0, address)

    def sendmsg(self, parts: list[Any], ancillary: list[Any], flags: int, address: Address) -> int:
        """Send a datagram, or many of one length (UDP_SEGMENT); each may never arrive.

        BlockingIOError: the kernel holds as much as it may, until the port has sent it.
        """
        self.world.perhaps_switch()
        if self.is_closed:
            raise OSError(errno.EBADF, "Bad file descriptor")
        if self._is_full():
            self.world.at(self._drained_s(), self.changed)
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        data = b"".join(bytes(part) for part in parts)
        length = len(data)
        for _, _, segment in ancillary:
            (length,) = SEGMENT.unpack(segment)
        for first in range(0, len(data), length):
            self._send_one(data[first : first + length], address)
        return len(data)

    def _is_full(self) -> bool:
        return self._drained_s() > self.world.now_s

    def _drained_s(self) -> float:
        """When the kernel holds no more than it may: the port sends it at its rate."""
        network = self.network
        return network.sent_until_s(self.rank) - self._send_room / network.weather.rate

    def _send_one(self, data: bytes, address: Address) -> None:
        network = self.network
        weather = network.weather
        dice = network.dice
        receiver = rank_of(address[0])
        copies = 1 + dice.happens(weather.doubled)
        for _ in range(copies):
            is_lost = dice.happens(weather.lost)
            delay_s = weather.latency_s * weather.jitter * dice.exponential(1.0)
            if dice.happens(weather.delayed):
                delay_s += dice.exponential(weather.delay_s)
            if network.passes_from_s(self.rank, receiver) > self.world.now_s or is_lost:
                continue
            arrived_s = network.transit_s(self.rank, receiver, len(data)) + delay_s
            self.world.at(arrived_s, network.deliver, data, self._address, address)

    def recv(self, most: int, flags: int = 0) -> bytes:
        """The next datagram."""
        return self.recvfrom(most, flags)[0]

    def recvfrom(self, most: int, flags: int = 0) -> tuple[bytes, Address]:
        """The next datagram, and who has sent it."""
        while not self._received:
            self._wait_or_raise(flags)
        data, sender = self._received.popleft()
        self._received_bytes -= len(data)
        return data[:most], sender

    def receive(self, data: bytes, sender: Address) -> None:
        """The network delivers a datagram, which is dropped where there is no room for it."""
        has_room = self._received_bytes + len(data) <= self._receive_room
        if len(self._received) < MOST_QUEUED and has_room:
            self._received.append((data, sender))
            self._received_bytes += len(data)
            self.changed()

    def ready(self) -> int:
        """For what it is ready."""
        return (EPOLLIN if self._received else 0) | (0 if self._is_full() else EPOLLOUT)

    def close(self) -> None:
        """Datagrams to it are lost from now on."""
        super().close()
        if self.network.datagram_sockets.get(self._address) is self:
            del self.network.datagram_sockets[self._address]

    def die(self, *, resets: bool) -> None:
        """Its process is gone."""
        self.close()


class BatchReader:
    """Takes many datagrams at once, as ``latecomer.runtime.optireduce.udp.socket.BatchReader``."""

    def __init__(self, source: DatagramSocket) -> None:
        self._source = source

    def read(self) -> tuple[int, list[Any]]:
        """How many were taken, and they: uint8 [datagrams, bytes] of one length each."""
        datagrams: list[bytes] = []
        while len(datagrams) < MOST_AT_ONCE:
            try:
                datagrams.append(self._source.recv(LARGEST, MSG_DONTWAIT))
            except BlockingIOError:
                break
        batches = []
        for length, group in itertools.groupby(datagrams, key=len):
            rows = np.frombuffer(b"".join(group), np.uint8)
            if length:
                batches.append(rows.reshape(-1, length).copy())
        return len(datagrams), batches


class StreamSocket(Endpoint):
    """A TCP socket, or an end of a socket pair."""

    def __init__(self, network: Network, rank: int) -> None:
        super().__init__(network, rank)
        self.peer: StreamSocket | None = None
        self.come = bytearray()  # in the kernel, not yet read
        self.held = bytearray()  # in the kernel, not yet on its way
        self.flying = 0  # bytes on their way
        self.was_lost = False  # reset, or its process is gone
        self.has_all = False  # the other end sends no more, and all that it sent is here
        self._is_pair = False
        self._is_shut = False  # this end sends no more
        self._is_sending = False
        self._low = 1
        self._problem = 0
        self._queue: deque[StreamSocket] | None = None  # of a listener
        self._arrives_s = 0.0  # when the last piece does: none overtakes another

    def join_with(self, other: StreamSocket) -> None:
        """Be an end of a pair within a rank."""
        self.peer = other
        self._is_pair = True

    def listen(self, most: int = 0) -> None:
        """Take connections."""
        self._queue = deque()
        self.network.listeners[self._address] = self

    def accept(self) -> tuple[StreamSocket, Address]:
        """The next connection."""
        assert self._queue is not None
        while not self._queue:
            self._wait_or_raise(0)
        connection = self._queue.popleft()
        return connection, connection.getpeername()

    def connect(self, address: Address) -> None:
        """Call a listener; BlockingIOError: the call is on its way."""
        self._address = (self._address[0], 10_000 + self.world.number())
        receiver = rank_of(address[0])
        network = self.network
        arrives_s = network.passes_from_s(self.rank, receiver) + network.weather.latency_s
        self.world.at(arrives_s, self._reach, address)
        raise BlockingIOError(errno.EINPROGRESS, "Operation now in progress")

    def getpeername(self) -> Address:
        """The other end's address."""
        assert self.peer is not None
        return self.peer.getsockname()

    def getsockopt(self, level: int, option: int, length: int = 0) -> int:
        """SO_ERROR tells why a call failed, once."""
        problem = self._problem if option == SO_ERROR else 0
        self._problem = 0
        return problem

    def setsockopt(self, level: int, option: int, value: Any) -> None:
        """SO_RCVLOWAT: it is ready to be read with so many bytes."""
        if option == SO_RCVLOWAT:
            self._low = value
            self.changed()

    def send(self, data: Any, flags: int = 0) -> int:
        """As :meth:`sendmsg` with one part."""
        return self.sendmsg([data])

    def sendall(self, data: Any) -> None:
        """Give all of it to the kernel, as it has room."""
        left = memoryview(data)
        while left:
            left = left[self.sendmsg([left]) :]

    def sendmsg(self, parts: list[Any], ancillary: Sequence[Any] = (), flags: int = 0) -> int:
        """Give bytes to the kernel; how many it has taken."""
        if not self._is_pair:
            self.world.perhaps_switch()
        self._require_open()
        data = b"".join(parts)
        while (room := self.network.weather.buffer - self.unacknowledged()) <= 0:
            self._wait_or_raise(flags)
            self._require_open()
        taken = self._some(min(len(data), room))
        if self._is_pair:
            assert self.peer is not None
            self.peer.come += data[:taken]
            self.peer.changed()
        else:
            self.held += data[:taken]
            self._push()
        return taken

    def makefile(self, mode: str, buffering: int) -> io.BufferedReader:
        """A file that is read."""
        assert mode == "rb"
        return io.BufferedReader(_Readable(self), buffering)

    def recv(self, most: int, flags: int = 0) -> bytes:
        """What has come; nothing: the other end has closed."""
        memory = bytearray(most)
        length = self.recv_into(memory, flags=flags)
        return bytes(memory[:length])

    def recv_into(self, memory: Any, nbytes: int = 0, flags: int = 0) -> int:
        """As :meth:`recvmsg_into` with one buffer."""
        return int(self.recvmsg_into([memory], flags=flags)[0])

    def recvmsg_into(self, memories: list[Any], size: int = 0, flags: int = 0) -> Any:
        """Fill buffers with what has come, as (bytes, ...)."""
        self._require_open()
        while not self.come:
            if self.has_all:
                return 0, [], 0, None
            self._wait_or_raise(flags)
            self._require_open()
        length = self._some(min(len(self.come), sum(len(memory) for memory in memories)))
        data = memoryview(bytes(self.come[:length]))
        del self.come[:length]
        begin = 0
        for memory in memories:
            part = data[begin : begin + len(memory)]
            memory[: len(part)] = part
            begin += len(part)
        if self.peer is not None:
            self.peer.room_again()
        return length, [], 0, None

    def unacknowledged(self) -> int:
        """Bytes that are in this end's kernel or on their way."""
        return len(self.held) + self.flying

    def shutdown(self, how: int) -> None:
        """Send no more, and read no more: the other end sees it once it has read all."""
        self.has_all = True
        self._finish()
        self.changed()

    def close(self) -> None:
        """Give it up; what the kernel has is still delivered."""
        if self.is_closed:
            return
        super().close()
        if self._queue is not None:
            self.network.listeners.pop(self._address, None)
            for waiting in self._queue:
                waiting.reset()
                waiting.close()
        elif self.come and not self._is_pair:
            self.reset()  # as the kernel does where something was not read
        else:
            self._finish()

    def reset(self) -> None:
        """Neither end gets or sends any more."""
        for end in (self, self.peer):
            if end is not None and not end.was_lost:
                end.was_lost = True
                end.held.clear()
                end.changed()

    def die(self, *, resets: bool) -> None:
        """Its process is gone."""
        if resets and self.peer is not None:
            latency_s = self.network.weather.latency_s
            self.world.at(self._passes_s() + latency_s, self.reset)
            self.is_closed = True
        else:
            self.close()

    def ready(self) -> int:
        """For what it is ready."""
        if self._queue is not None:
            return EPOLLIN if self._queue else 0
        if self.was_lost or self._problem:
            return EPOLLIN | EPOLLOUT | EPOLLERR_HUP
        if self.peer is None:
            return 0  # a call on its way
        most = self.network.weather.buffer
        readable = self.has_all or len(self.come) >= min(self._low, most // 2)
        writable = self.unacknowledged() <= most * 2 // 3
        return (EPOLLIN if readable else 0) | (EPOLLOUT if writable else 0)

    def room_again(self) -> None:
        """The other end has read something."""
        self._push()

    def _some(self, most: int) -> int:
        """As much, or now and then less; BlockingIOError if that is nothing."""
        if most <= 0:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        dice = self.network.dice
        if not self._is_pair and dice.happens(self.network.weather.short):
            return 1 + dice.below(most)
        return most

    def _require_open(self) -> None:
        if self.is_closed:
            raise OSError(errno.EBADF, "Bad file descriptor")
        if self.was_lost:
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        if self._problem:
            raise ConnectionRefusedError(self._problem, "Connection refused")

    def _passes_s(self) -> float:
        assert self.peer is not None
        return self.network.passes_from_s(self.rank, self.peer.rank)

    def _reach(self, address: Address) -> None:
        """The call has come to the other host."""
        listener = self.network.listeners.get(address)
        latency_s = self.network.weather.latency_s
        if self.is_closed:
            return
        if listener is None or self.world.is_dead(listener.rank):
            self.world.after(latency_s, self._refused)
            return
        accepted = StreamSocket(self.network, listener.rank)
        accepted._address = listener.getsockname()
        accepted.peer = self
        assert listener._queue is not None
        listener._queue.append(accepted)
        listener.changed()
        self.world.after(latency_s, self._connected, accepted)

    def _refused(self) -> None:
        self._problem = errno.ECONNREFUSED
        self.changed()

    def _connected(self, other: StreamSocket) -> None:
        self.peer = other
        other.room_again()
        if other.was_lost:
            self.was_lost = True
        self.changed()

    def _finish(self) -> None:
        """This end sends no more, once what it has is on its way."""
        self._is_shut = True
        self._push()

    def _push(self) -> None:
        """The next piece leaves, if this rank's port is free and the other kernel has room."""
        peer = self.peer
        if self._is_pair:
            self.changed()
            if self._is_shut and peer is not None and not peer.has_all:
                peer.has_all = True
                peer.changed()
            return
        if peer is None or self._is_sending or self.was_lost:
            return
        if peer.is_closed and not peer.was_lost and self.held:
            self.reset()  # it is told that nobody is there
            return

        room = self.network.weather.buffer - len(peer.come) - self.flying
        length = min(len(self.held), room, self.network.dice.one_of(self.network.weather.pieces))
        if length > 0:
            self._send_piece(peer, length)
        elif self._is_shut and not self.held and not self.flying and not peer.has_all:
            latency_s = self.network.weather.latency_s
            self.world.at(self._passes_s() + latency_s, self._all_is_there, peer)

    def _send_piece(self, peer: StreamSocket, length: int) -> None:
        network = self.network
        piece = bytes(self.held[:length])
        del self.held[:length]
        self.flying += length
        self._is_sending = True
        arrives_s = network.transit_s(self.rank, peer.rank, length)
        if network.dice.happens(network.weather.lost):
            arrives_s += REPEAT_S
        blocked_until_s = self._passes_s()
        if blocked_until_s > self.world.now_s:
            arrives_s = max(arrives_s, blocked_until_s + REPEAT_S * network.dice.random())
        self._arrives_s = max(arrives_s, self._arrives_s)
        self.world.at(self._arrives_s, self._arrive, peer, piece)
        self.world.at(network.sent_until_s(self.rank), self._sent)

    def _sent(self) -> None:
        self._is_sending = False
        self._push()

    def _arrive(self, peer: StreamSocket, piece: bytes) -> None:
        self.flying -= len(piece)
        if self.was_lost:
            return
        if peer.is_closed:
            self.reset()
            return
        peer.come += piece
        peer.changed()
        self.changed()  # there is room again
        self._push()

    def _all_is_there(self, peer: StreamSocket) -> None:
        peer.has_all = True
        peer.changed()


class _Readable(io.RawIOBase):
    """A stream as a file, without a buffer."""

    def __init__(self, stream: StreamSocket) -> None:
        super().__init__()
        self._stream = stream

    def readable(self) -> bool:
        """As a file tells it."""
        return True

    def readinto(self, memory: Any) -> int:
        """What has come; 0 at the end."""
        return self._stream.recv_into(memory)


class Poll:
    """As ``select.epoll``, level-triggered; or as ``select.poll``, whose time-outs are in ms."""

    def __init__(self, network: Network, *, milliseconds: bool) -> None:
        self._network = network
        self._world = network.world
        self._unit_s = 1e-3 if milliseconds else 1.0
        self._wanted: dict[int, tuple[Any, int]] = {}
        self._waiters = Waiters(network.world)

    def register(self, what: Any, events: int = EPOLLIN) -> None:
        """Wait for these events of a socket, too."""
        number = _descriptor(what)
        endpoint = self._network.sockets[number]
        self._wanted[number] = endpoint, events
        endpoint.pollers.append(self)

    def modify(self, what: Any, events: int) -> None:
        """Wait for these events of it."""
        number = _descriptor(what)
        endpoint, _ = self._wanted[number]
        self._wanted[number] = endpoint, events
        self.look(endpoint)  # who polls on another thread gets to know, as from the kernel

    def unregister(self, what: Any) -> None:
        """Wait for it no more."""
        number = _descriptor(what)
        endpoint, _ = self._wanted.pop(number)
        endpoint.pollers.remove(self)

    def poll(self, timeout: float | None = None, maxevents: int = -1) -> list[tuple[int, int]]:
        """What is ready, when something is, or after so long."""
        self._world.perhaps_switch()
        limit_s = None if timeout is None or timeout < 0 else timeout * self._unit_s
        ready: list[tuple[int, int]] = []

        def is_one_ready() -> bool:
            ready[:] = self._ready()
            return bool(ready)

        self._waiters.wait_until(is_one_ready, limit_s, "sockets")
        return ready

    def look(self, endpoint: Any) -> None:
        """A socket has changed: who polls goes on if it is ready for what was asked."""
        _, events = self._wanted[endpoint.number]
        if endpoint.ready() & (events | EPOLLERR_HUP):
            self._waiters.wake()

    def close(self) -> None:
        """Wait for nothing any more."""
        for endpoint, _ in self._wanted.values():
            endpoint.pollers.remove(self)
        self._wanted.clear()

    def _ready(self) -> list[tuple[int, int]]:
        found = []
        for number, (endpoint, events) in self._wanted.items():
            if endpoint.is_closed:
                continue  # as the kernel, which forgets it
            ready = endpoint.ready() & (events | EPOLLERR_HUP)
            if ready:
                found.append((number, ready))
        return found


def _descriptor(what: Any) -> int:
    """Of a socket, or the number itself."""
    return what if isinstance(what, int) else int(what.fileno())


class Selector:
    """As ``selectors.SelectSelector``, as far as it is used."""

    def __init__(self, network: Network) -> None:
        self._poll = Poll(network, milliseconds=False)
        self._keys: dict[int, Key] = {}

    def register(self, socket: Any, events: int, data: Any = None) -> Key:
        """Wait until it can be read."""
        key = Key(socket.fileno(), data)
        self._keys[key.fd] = key
        self._poll.register(socket, EPOLLIN)
        return key

    def select(self, timeout: float | None = None) -> list[tuple[Key, int]]:
        """What can be read, when something can, or after so long."""
        return [(self._keys[number], events) for number, events in self._poll.poll(timeout)]

    def close(self) -> None:
        """Wait for nothing any more."""
        self._poll.close()


@dataclass
class Key:
    """As ``selectors.SelectorKey``."""

    fd: int
    data: Callable[[], None]
