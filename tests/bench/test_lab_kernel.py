"""What the kernel and its tools tell the lab: settings read back, frames that wait to be delayed.

Every check that reads a setting back is seen accepting and rejecting.
"""

import json
import struct

import pytest

from bench.lab import Limits, Network, delay
from bench.lab.mechanisms import Choice
from bench.lab.plan import plan
from bench.lab.readback import bits_per_second, checks, dropped

NETWORK = Network(
    hosts=3,
    everywhere=Limits(delay_s=0.005),
    of_host={1: Limits(loss=0.01)},
    of_link={(0, 2): Limits(rate_mbit=30.5)},
)
CHOICE = Choice(link_rate="htb", loss="statistic", delay="nfqueue")
LINKS = [
    {"ifname": "lo", "mtu": 65536, "gso_max_segs": 65535},
    *({"ifname": f"v{h}", "mtu": 1500, "gso_max_segs": 1} for h in range(3)),
]
CLASSES = """\
class htb 1:ffff root rate 200Mbit ceil 200Mbit burst 49975b cburst 49975b
class htb 1:1 parent 1:ffff leaf 8042: prio 0 rate 200Mbit ceil 200Mbit burst 49975b cburst 49975b
class htb 1:10 parent 1:ffff prio 0 rate 30500Kbit ceil 30500Kbit burst 16Kb cburst 16Kb
"""
LOSSES = """\
-P INPUT ACCEPT
-A INPUT ! -s 10.77.0.254/32 -i e0 -m statistic --mode random --probability 0.00999999978 -j DROP
"""
QUEUED = "-P FORWARD ACCEPT\n" + "".join(
    f"-A FORWARD -i v{sender} -o v{receiver} -j NFQUEUE --queue-num 0\n"
    for sender, receiver in NETWORK.pairs
    if (sender, receiver) != (0, 2)
)
GOOD = {
    "forwarding": "1\n",
    "cutting frames to the MTU": json.dumps(LINKS),
    "links into host 2": CLASSES,
    "losses into host 1": LOSSES,
    "congestion control of host 0": "reno\n",
    "delays": QUEUED,
    "frames out of host 1": '[{"ifname": "e0", "gso_max_size": 49000}]',
    "frames out of host 0": '[{"ifname": "e0", "gso_max_size": 15000}]',
}
BAD = [
    ("forwarding", "1", "0"),
    ("cutting frames to the MTU", '"gso_max_segs": 1}', '"gso_max_segs": 65535}'),
    ("cutting frames to the MTU", '"mtu": 1500', '"mtu": 9000'),
    ("cutting frames to the MTU", "v2", "v7"),
    ("links into host 2", "30500Kbit", "200Mbit"),
    ("links into host 2", "1:10", "1:11"),
    ("links into host 2", "ceil 30500Kbit", "ceil 200Mbit"),
    ("losses into host 1", "0.00999999978", "0.00099999978"),
    ("losses into host 1", "-j DROP", "-j ACCEPT"),
    ("losses into host 1", "! -s 10.77.0.254/32", "-s 10.77.0.1/32"),
    ("congestion control of host 0", "reno", "bbr"),
    ("delays", "-i v0 -o v1 -j NFQUEUE --queue-num 0", "-i v0 -o v1 -j ACCEPT"),
    ("delays", "-o v1 -j NFQUEUE --queue-num 0", "-o v1 -j NFQUEUE --queue-num 1"),
    ("frames out of host 1", "49000", "65536"),
]


def problem(setting, output):
    queues = plan(NETWORK, CHOICE).queues
    of_setting = [check for check in checks(NETWORK, CHOICE, queues) if check.setting == setting]
    assert len(of_setting) == 1
    return of_setting[0].problem(output)


@pytest.mark.parametrize("setting", GOOD)
def test_what_was_asked_for_is_accepted(setting):
    assert problem(setting, GOOD[setting]) == ""


@pytest.mark.parametrize(("setting", "old", "new"), BAD)
def test_anything_else_is_named(setting, old, new):
    assert old in GOOD[setting]
    assert problem(setting, GOOD[setting].replace(old, new)) != ""


def test_netem_delays_are_read_back():
    network = Network(hosts=2, everywhere=Limits(delay_s=0.005))
    choice = Choice(delay="netem")
    check = next(c for c in checks(network, choice, ()) if c.setting == "delays")
    leaves = [
        {"kind": "netem", "dev": dev, "parent": parent, "options": {"delay": {"delay": 0.005}}}
        for dev, parent in [("v0", "1:11"), ("v1", "1:10")]
    ]
    assert check.problem(json.dumps(leaves)) == ""
    assert "nothing" in check.problem(json.dumps(leaves[:1]))

    leaves[0]["options"]["delay"]["delay"] = 0.004
    assert "0.004" in check.problem(json.dumps(leaves))


def test_frames_that_a_queue_dropped_are_counted():
    table = "    0  21804     0 1     0     3     4       17  1\n    1  21804 0 1 0 0 0 9 1\n"
    assert dropped(table) == {0: 7, 1: 0}
    assert dropped("") == {}


def test_rates_as_tc_prints_them():
    assert [bits_per_second(t) for t in ("8bit", "30500Kbit", "1.5Gbit")] == [8, 30.5e6, 1.5e9]


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
    delays = delay.Delays(queues, 7)
    drawn_s = drawn(delays)
    assert drawn(delay.Delays(queues, 7)) == drawn_s
    assert drawn(delay.Delays(queues, 8)) != drawn_s

    assert {round(seconds, 9) for seconds in drawn_s} == {0.005, 0.025, 1.005, 1.025}
    in_second_tail = sum(seconds > 1 for seconds in drawn_s)
    assert in_second_tail / DRAWS == pytest.approx(0.5, abs=0.05)
    in_first_tail = sum(round(seconds % 1, 9) == 0.025 for seconds in drawn_s)
    assert in_first_tail / DRAWS == pytest.approx(0.1, abs=0.03)
    assert {delays.draw(1) for _ in range(10)} == {0.001}


DRAWS = 4000


def drawn(delays):
    """The delays of as many frames of queue 0."""
    return [delays.draw(0) for _ in range(DRAWS)]
