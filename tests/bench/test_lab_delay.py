"""The delaying process's parts that need no kernel: messages and draws."""

import importlib.util
import struct
from pathlib import Path

import pytest

import bench.lab

FILE = Path(bench.lab.__file__).with_name("delay.py")
spec = importlib.util.spec_from_file_location("lab_delay", FILE)
assert spec is not None
assert spec.loader is not None
delay = importlib.util.module_from_spec(spec)
spec.loader.exec_module(delay)


def packet(queue, number, kind=3 << 8):
    """A queued frame's message as the kernel writes it."""
    header = struct.pack(">IHB", number, 0x800, 2) + b"\0"
    body = struct.pack(">BBH", 2, 0, queue) + struct.pack("HH", 11, 1) + header
    return struct.pack("IHHII", 16 + len(body), kind, 0, 0, 0) + body


def test_a_queued_frame_is_read_and_other_messages_are_not():
    assert delay.parse(packet(3, 70_000)) == (3, 70_000)
    assert delay.parse(packet(3, 1, kind=2)) is None
    assert delay.parse(b"\0" * 20) is None


def test_a_verdict_names_queue_and_frame():
    sent = delay.verdict(5, 70_000)
    length, kind, flags = struct.unpack_from("IHH", sent)
    assert (length, kind, flags) == (len(sent), 3 << 8 | 1, 1)
    assert struct.unpack_from(">H", sent, 18) == (5,)
    assert struct.unpack_from(">II", sent, 24) == (1, 70_000)


def test_delays_are_drawn_as_asked_for_and_again_the_same():
    queues = [
        {"queue": 0, "delay_s": 0.005, "tails": [[0.1, 0.02], [0.5, 1.0]]},
        {"queue": 1, "delay_s": 0.001, "tails": []},
    ]
    draws = [delay.Delays(queues, 7) for _ in range(2)]
    seen = [[d.draw(0) for _ in range(4000)] for d in draws]
    assert seen[0] == seen[1]
    assert set(map(lambda s: round(s, 9), seen[0])) == {0.005, 0.025, 1.005, 1.025}
    assert sum(s > 1 for s in seen[0]) / 4000 == pytest.approx(0.5, abs=0.05)
    assert sum(round(s % 1, 9) == 0.025 for s in seen[0]) / 4000 == pytest.approx(0.1, abs=0.03)
    assert {draws[0].draw(1) for _ in range(10)} == {0.001}
    assert seen[0] != [delay.Delays(queues, 8).draw(0) for _ in range(4000)]
