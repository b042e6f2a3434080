"""Traffic for measuring the lab itself; run by path inside hosts, standard library only.

    traffic.py receive-stream PORT            traffic.py send-stream ADDRESS PORT SECONDS
    traffic.py receive-frames PORT COUNT      traffic.py send-frames ADDRESS PORT COUNT BYTES GAP_S

A receiver prints ``ready`` when it listens, then one line of JSON. Streams are TCP; frames are
UDP datagrams that carry their number and when they were sent: all hosts of a lab share one clock,
so the one-way delay is a difference.
"""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import sys
import time

STAMP = struct.Struct("!Id")
IDLE_S = 1.0
FIRST_S = 10.0
RTT_OFFSET = 68  # of tcpi_rtt in struct tcp_info
LAST = 0xFFFFFFFF
END_MARKS = 50


def receive_stream(port: int) -> dict[str, float]:
    """Bytes and seconds of one TCP stream, from its first byte to its last."""
    with socket.create_server(("0.0.0.0", port)) as server:
        server.settimeout(FIRST_S)
        print("ready", flush=True)
        stream, _ = server.accept()
        buffer = bytearray(1 << 20)
        total = 0
        began = 0.0
        with stream:
            stream.settimeout(FIRST_S)
            while received := stream.recv_into(buffer):
                began = began or time.monotonic()
                total += received
    seconds = time.monotonic() - began
    return {"bytes": total, "seconds": seconds, "mbit": total * 8e-6 / seconds}


def send_stream(host: str, port: int, seconds: float) -> dict[str, object]:
    """Send as fast as TCP takes it; the round-trip times that TCP measured meanwhile."""
    data = bytes(1 << 18)
    rtts = []
    with socket.create_connection((host, port), timeout=FIRST_S) as stream:
        used = stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            stream.sendall(data)
            info = stream.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
            rtts.append(struct.unpack_from("I", info, RTT_OFFSET)[0] / 1e3)
    rtts.sort()
    return {"congestion": used.rstrip(b"\0").decode(), "rtt_ms": rtts[len(rtts) // 2]}


def receive_frames(port: int, count: int) -> dict[str, object]:
    """One-way delays in ms of what came of ``count`` frames, in order of their numbers."""
    delays: dict[int, float] = {}
    overtaken = 0
    newest = -1

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        receiver.bind(("0.0.0.0", port))
        receiver.settimeout(FIRST_S)
        print("ready", flush=True)
        while len(delays) < count:
            try:
                data = receiver.recv(65536)
            except TimeoutError:
                break

            number, sent = STAMP.unpack_from(data)
            if number == LAST:
                receiver.settimeout(IDLE_S)
                continue
            delays[number] = (time.monotonic() - sent) * 1e3
            overtaken += number < newest
            newest = max(newest, number)

    return {
        "sent": count,
        "delays_ms": [delays[n] for n in sorted(delays)],
        "overtaken": overtaken,
    }


def send_frames(host: str, port: int, count: int, size: int, gap_s: float) -> dict[str, int]:
    """Send ``count`` datagrams of ``size`` bytes with gaps between them, then some end marks."""
    filler = bytes(max(0, size - STAMP.size))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.connect((host, port))
        due = time.monotonic()
        for number in range(count):
            sender.send(STAMP.pack(number, time.monotonic()) + filler)
            due += gap_s
            time.sleep(max(0.0, due - time.monotonic()))
        with contextlib.suppress(ConnectionRefusedError):  # all came and the receiver is gone
            for _ in range(END_MARKS):
                sender.send(STAMP.pack(LAST, 0.0))
    return {"sent": count}


def main(mode: str, *arguments: str) -> None:
    """Run one mode and print its result."""
    result: object
    if mode == "receive-stream":
        (port,) = arguments
        result = receive_stream(int(port))
    elif mode == "send-stream":
        host, port, seconds = arguments
        result = send_stream(host, int(port), float(seconds))
    elif mode == "receive-frames":
        port, count = arguments
        result = receive_frames(int(port), int(count))
    else:
        host, port, count, size, gap_s = arguments
        result = send_frames(host, int(port), int(count), int(size), float(gap_s))
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
