"""Delays frames in user space: takes them from netfilter queues and gives them back later.

Run by path in the switch's namespace (``python delay.py SEED QUEUES``), standard library only.
QUEUES is JSON: ``[{"queue": 0, "delay_s": 0.005, "tails": [[0.01, 0.02]]}, ...]``. Prints ``ready``
when every queue is bound. Only the frames' numbers come to user space, the frames stay in the
kernel. A frame that is delayed less than the one before it overtakes it. The protocol is
nfnetlink_queue's (linux/netfilter/nfnetlink_queue.h).
"""

from __future__ import annotations

import errno
import heapq
import itertools
import json
import os
import random
import select
import socket
import struct
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

NETLINK_NETFILTER = 12
NLMSG_ERROR = 2
REQUEST = 1
ACK = 4
SUBSYSTEM_QUEUE = 3 << 8
PACKET = SUBSYSTEM_QUEUE | 0
VERDICT = SUBSYSTEM_QUEUE | 1
CONFIG = SUBSYSTEM_QUEUE | 2
CFG_CMD = 1
CFG_PARAMS = 2
CFG_MAXLEN = 3
CFG_MASK = 4
CFG_FLAGS = 5
BIND = 1
COPY_META = 1
FLAG_GSO = 1 << 2
PACKET_HDR = 1
VERDICT_HDR = 2
ACCEPT = 1
MAXLEN = 100_000
RECEIVE_BUFFER = 4 << 20
BATCH = 256
"""Frames taken in, and verdicts given in one system call, before the other gets its turn."""


def attribute(kind: int, value: bytes) -> bytes:
    """A netlink attribute, padded to four bytes."""
    return struct.pack("HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def message(kind: int, flags: int, queue: int, body: bytes) -> bytes:
    """A netlink message for one queue."""
    family = struct.pack(">BBH", socket.AF_UNSPEC, 0, queue)
    return struct.pack("IHHII", 20 + len(body), kind, flags, 0, 0) + family + body


def verdict(queue: int, packet: int) -> bytes:
    """Let one frame pass."""
    header = attribute(VERDICT_HDR, struct.pack(">II", ACCEPT, packet))
    return message(VERDICT, REQUEST, queue, header)


def bind(netlink: socket.socket, queue: int) -> None:
    """Take a queue; OSError where the kernel refuses.

    Large frames come whole (the GSO flag), numbers only, and a full queue drops.
    """
    flags = struct.pack(">I", FLAG_GSO)
    for body in (
        attribute(CFG_CMD, struct.pack(">BBH", BIND, 0, socket.AF_INET)),
        attribute(CFG_PARAMS, struct.pack(">IB", 0, COPY_META)),
        attribute(CFG_MAXLEN, struct.pack(">I", MAXLEN)),
        attribute(CFG_MASK, flags) + attribute(CFG_FLAGS, flags),
    ):
        netlink.send(message(CONFIG, REQUEST | ACK, queue, body))
        answer = netlink.recv(4096)
        code = struct.unpack_from("i", answer, 16)[0]
        if struct.unpack_from("H", answer, 4)[0] != NLMSG_ERROR or code:
            raise OSError(-code, f"queue {queue}: {os.strerror(-code)}")


def parse(data: bytes) -> tuple[int, int] | None:
    """Queue and number of a queued frame; ``None`` for another message."""
    if len(data) < 32 or struct.unpack_from("H", data, 4)[0] != PACKET:
        return None
    queue = struct.unpack_from(">H", data, 18)[0]
    kind = struct.unpack_from("H", data, 22)[0]
    number = struct.unpack_from(">I", data, 24)[0]
    assert kind & 0x3FFF == PACKET_HDR, "the kernel puts the packet's header first"
    return queue, number


class Delays:
    """Draws delays; one stream of random numbers for each queue."""

    def __init__(self, queues: list[dict[str, Any]], seed: int) -> None:
        self.queues: dict[int, tuple[float, list[tuple[float, float]]]] = {
            q["queue"]: (q["delay_s"], q["tails"]) for q in queues
        }
        self.random = {q: random.Random(f"{seed}/{q}").random for q in self.queues}

    def draw(self, queue: int) -> float:
        """Seconds to hold the next frame of a queue."""
        delay, tails = self.queues[queue]
        draw = self.random[queue]
        return delay + sum(extra for share, extra in tails if draw() < share)


class Held(NamedTuple):
    """A frame until its time; the first to go is the least."""

    until_s: float
    number: int
    queue: int
    packet: int


def serve(netlink: socket.socket, delays: Delays) -> None:
    """Hold and release frames for ever."""
    held: list[Held] = []
    numbers = itertools.count()
    while True:
        wait_s = None
        if held:
            wait_s = max(0.0, held[0].until_s - time.monotonic())
        readable, _, _ = select.select([netlink], [], [], wait_s)
        if readable:
            _take_in(netlink, delays, held, numbers)
        _let_go(netlink, held)


def _take_in(
    netlink: socket.socket, delays: Delays, held: list[Held], numbers: Iterator[int]
) -> None:
    """Take what has come, a batch at most."""
    for _ in range(BATCH):
        try:
            frame = parse(netlink.recv(4096))
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno != errno.ENOBUFS:  # frames were dropped; the kernel counts them
                raise
            continue
        if frame is not None:
            queue, packet = frame
            # the time of each frame: one for all would let the last of a batch go too early
            until_s = time.monotonic() + delays.draw(queue)
            heapq.heappush(held, Held(until_s, next(numbers), queue, packet))


def _let_go(netlink: socket.socket, held: list[Held]) -> None:
    """Let frames pass whose time has come, a batch at most."""
    now_s = time.monotonic()
    verdicts: list[bytes] = []
    while held and held[0].until_s <= now_s and len(verdicts) < BATCH:
        frame = heapq.heappop(held)
        verdicts.append(verdict(frame.queue, frame.packet))
    if verdicts:
        netlink.setblocking(True)
        netlink.send(b"".join(verdicts))
        netlink.setblocking(False)


def main(seed: int, queues: list[dict[str, Any]]) -> None:
    """Bind all queues, say so, serve."""
    netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER)
    netlink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
    netlink.bind((0, 0))
    for queue in queues:
        bind(netlink, queue["queue"])
    netlink.setblocking(False)
    print("ready", flush=True)
    serve(netlink, Delays(queues, seed))


if __name__ == "__main__":
    main(int(sys.argv[1]), json.loads(sys.argv[2]))
