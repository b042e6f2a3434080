"""The host: all that ``runtime`` takes of the machine that it runs on.

Clock, threads, locks, queues, sockets, polls, the store's prefixes and Gloo: nothing else in
``runtime`` imports ``time``, ``threading``, ``queue``, ``socket``, ``select`` or ``selectors``. So
the very same code also runs where the machine is a simulated one (``latecomer.runtime.simulation``)
and all ranks are in one thread, on virtual time.

    from latecomer.runtime.host import host

    host.monotonic()

What a host provides are attributes of the one object ``host``, so that asking it costs no more than
asking the module behind it. :meth:`Host.replaced` puts others in their place for a while.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import queue
import secrets
import select
import selectors
import socket
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

# Types, for annotations, and constants: they are the same on all hosts.
Condition = threading.Condition
Event = threading.Event
Queue = queue.Queue
SimpleQueue = queue.SimpleQueue
Empty = queue.Empty
Socket = socket.socket
SocketKind = socket.SocketKind
Thread = threading.Thread

AF_INET = socket.AF_INET
AF_INET6 = socket.AF_INET6
IPPROTO_TCP = socket.IPPROTO_TCP
IPPROTO_UDP = socket.IPPROTO_UDP
MSG_DONTWAIT = socket.MSG_DONTWAIT
SHUT_RDWR = socket.SHUT_RDWR
SOCK_DGRAM = socket.SOCK_DGRAM
SOCK_STREAM = socket.SOCK_STREAM
SOL_SOCKET = socket.SOL_SOCKET
SOMAXCONN = socket.SOMAXCONN
SO_ERROR = socket.SO_ERROR
SO_RCVBUF = socket.SO_RCVBUF
SO_RCVLOWAT = socket.SO_RCVLOWAT
SO_REUSEADDR = socket.SO_REUSEADDR
SO_SNDBUF = socket.SO_SNDBUF
TCP_CONGESTION = getattr(socket, "TCP_CONGESTION", 13)  # of Linux
TCP_NODELAY = socket.TCP_NODELAY

EPOLLIN = select.EPOLLIN
EPOLLOUT = select.EPOLLOUT
POLLIN = select.POLLIN
POLLOUT = select.POLLOUT
EVENT_READ = selectors.EVENT_READ

LOOPBACK = "127.0.0.1"
FD_SETSIZE = 1024  # select() takes no descriptor from here on


class Host:
    """A machine; the one that there is, unless something else is put in place of its attributes."""

    def __init__(self) -> None:
        # clocks, in seconds
        self.monotonic = time.monotonic
        self.monotonic_ns = time.monotonic_ns
        self.perf_counter = time.perf_counter
        self.thread_time = time.thread_time
        self.unix_time = time.time
        self.clock_name: Callable[[], str] = clock_name
        self.sleep = time.sleep

        # threads, and what they wait for
        self.Thread = threading.Thread
        self.current_thread = threading.current_thread
        self.thread_number = threading.get_ident
        self.ThreadLocal = threading.local
        self.Lock = threading.Lock
        self.RLock = threading.RLock
        self.Condition = threading.Condition
        self.Event = threading.Event
        self.Queue = queue.Queue
        self.SimpleQueue = queue.SimpleQueue

        # the network
        self.name = socket.gethostname
        self.address_towards: Callable[[Any], str] = address_towards
        self.socket = socket.socket
        self.socketpair = socket.socketpair
        self.unacknowledged = unacknowledged
        self.batch_reader: Callable[[Callable[[Any], Any], Any], Any] = batch_reader
        self.epoll = select.epoll
        self.poll = select.poll
        self.selector = selector
        self.random_token = secrets.token_hex

        # how ranks meet, and the library's own collectives
        self.prefixed: Callable[[str, Any], Any] = prefixed
        self.serve_store: Callable[[str, timedelta], tuple[Any, str]] = serve_store
        self.open_store: Callable[[str, timedelta], Any] = open_store
        self.gloo: Callable[[Any, int, int, timedelta], Any] = gloo

    @contextlib.contextmanager
    def replaced(self, **attributes: Any) -> Iterator[None]:
        """Others in place of these attributes, until the block ends; in this whole process."""
        unknown = attributes.keys() - vars(self).keys()
        assert not unknown, unknown
        before = dict(vars(self))
        vars(self).update(attributes)
        try:
            yield
        finally:
            vars(self).update(before)


def clock_name() -> str:
    """A name of the clock that ``monotonic`` reads; empty where there is none.

    Processes that read the same clock find the same name: the machine's boot, and the namespace of
    clocks that the process is in, which a container may have for itself.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = os.readlink("/proc/self/ns/time")
    except OSError:
        return ""
    return f"{boot}/{namespace}"


def prefixed(prefix: str, store: Any) -> Any:
    """A torch store whose keys are ``store``'s that begin with ``prefix``."""
    from latecomer.runtime.torch_versions import PrefixStore  # loads torch

    return PrefixStore(prefix, store)


def serve_store(address: str, timeout: timedelta) -> tuple[Any, str]:
    """A torch store that this process serves as long as it keeps it, and where others open it."""
    from latecomer.runtime.torch_versions import TCPStore  # loads torch

    store = TCPStore(address, 0, None, True, timeout, wait_for_workers=False)
    return store, f"{address}:{store.port}"


def open_store(where: str, timeout: timedelta) -> Any:
    """The torch store that another process serves there; a RuntimeError if none does in time."""
    from latecomer.runtime.torch_versions import TCPStore  # loads torch

    address, port = where.rsplit(":", 1)
    return TCPStore(address, int(port), None, False, timeout, wait_for_workers=False)


def gloo(store: Any, rank: int, world_size: int, timeout: timedelta) -> Any:
    """A process group of Gloo (collective)."""
    import torch.distributed as dist

    return dist.ProcessGroupGloo(store, rank, world_size, timeout)


def address_towards(store: Any) -> str:
    """The address of this host for those that meet it through a torch store.

    It is the local end of the way to the store's host, where all can reach it; loopback for stores
    without a host.
    """
    from latecomer.runtime.torch_versions import PrefixStore, TCPStore  # loads torch

    while isinstance(store, PrefixStore):
        store = store.underlying_store
    if not isinstance(store, TCPStore):
        return LOOPBACK

    with contextlib.suppress(OSError):
        found = socket.getaddrinfo(store.host, store.port, type=SOCK_DGRAM)
        ipv4_first = sorted(found, key=lambda info: info[0] != AF_INET)
        family, kind, protocol, _, address = ipv4_first[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)  # of a datagram socket: nothing is sent
            return str(probe.getsockname()[0])
    return LOOPBACK


def unacknowledged(tcp: socket.socket) -> int:
    """Bytes that the kernel has taken and the peer's kernel has not yet confirmed."""
    return int.from_bytes(fcntl.ioctl(tcp, termios.TIOCOUTQ, b"\0\0\0\0"), sys.byteorder)


def batch_reader(reader: Callable[[Any], Any], udp: Any) -> Any:
    """What takes many datagrams at once from a socket: ``reader``, by a system call."""
    return reader(udp)


def selector(sockets: Iterable[socket.socket]) -> selectors.BaseSelector:
    """What waits for these sockets.

    ``select`` counts in microseconds and ``epoll`` in milliseconds, which it rounds up: as long as
    a head waits for arrivals that come together. But ``select`` can't wait for high descriptors.
    """
    if max(each.fileno() for each in sockets) < FD_SETSIZE:
        return selectors.SelectSelector()
    return selectors.DefaultSelector()


host = Host()


def monotonic_now() -> float:
    """``host.monotonic()``, of whatever is the host when it is called."""
    return host.monotonic()
