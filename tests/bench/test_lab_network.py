import pytest

from bench.lab import Limits, Network, Tail
from bench.lab.options import network
from verify.errors import ArgumentError

PLAIN = {
    "hosts": 8, "rate": 200.0, "loss": "0%", "delay": "0ms", "tail": (), "host": (), "link": (),
    "buffer": "500ms", "burst": "2ms", "mtu": 1500, "congestion": "reno", "seed": 0,
}  # fmt: skip


def test_cables_add_to_the_network_and_a_link_replaces_both():
    asked = Network(
        hosts=4,
        everywhere=Limits(loss=0.1, delay_s=0.001),
        of_host={1: Limits(loss=0.5, delay_s=0.01), 2: Limits(rate_mbit=10, tails=(Tail(0.1, 1),))},
        of_link={(1, 3): Limits(rate_mbit=5)},
    )
    assert asked.path(0, 3) == Limits(loss=0.1, delay_s=0.001)
    both = asked.path(1, 2)
    assert both.loss == pytest.approx(1 - 0.9 * 0.5)
    assert both.delay_s == pytest.approx(0.011)
    assert both.tails == (Tail(0.1, 1),)
    assert both.rate_mbit is None
    assert asked.path(1, 3) == Limits(rate_mbit=5)
    assert asked.path(3, 1).delay_s == pytest.approx(0.011)
    assert [asked.port_mbit(h) for h in range(4)] == [200, 200, 10, 200]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"hosts": 0}, "hosts"),
        ({"hosts": 65}, "hosts"),
        ({"rate_mbit": 0}, "rate_mbit"),
        ({"everywhere": Limits(loss=1.5)}, "loss"),
        ({"everywhere": Limits(rate_mbit=3)}, "everywhere.rate_mbit"),
        ({"of_host": {8: Limits()}}, "host"),
        ({"of_link": {(0, 0): Limits()}}, "link"),
        ({"of_link": {(0, 9): Limits()}}, "host"),
        ({"of_link": {(0, 1): Limits(rate_mbit=-1)}}, "link 0>1"),
        ({"of_host": {0: Limits(tails=(Tail(2, 0),))}}, "tail share"),
        ({"everywhere": Limits(delay_s=11)}, "delay_s"),
        ({"burst_s": -1}, "burst_s"),
    ],
)
def test_what_is_out_of_range_is_refused_by_name(settings, named):
    with pytest.raises(ArgumentError, match=named):
        Network(**settings)


def test_options_become_a_network():
    read = network(
        **{
            **PLAIN,
            "loss": "1%",
            "delay": "5ms",
            "tail": ["1%:20ms"],
            "host": ["3:rate=50,loss=0.5"],
            "link": ["6-7:rate=30,tail=2%:1s", "0>1:delay=1ms"],
        }
    )
    assert read.everywhere == Limits(loss=0.01, delay_s=0.005, tails=(Tail(0.01, 0.02),))
    assert read.of_host == {3: Limits(rate_mbit=50, loss=0.5)}
    slow = Limits(rate_mbit=30, tails=(Tail(0.02, 1),))
    assert read.of_link == {(6, 7): slow, (7, 6): slow, (0, 1): Limits(delay_s=0.001)}


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("loss", "much"),
        ("delay", "5"),
        ("tail", ["20ms"]),
        ("host", ["rate=50"]),
        ("host", ["3:speed=50"]),
        ("link", ["6:rate=30"]),
        ("link", ["6-7"]),
        ("buffer", "big"),
    ],
)
def test_options_that_cannot_be_read_are_named(option, value):
    with pytest.raises(ArgumentError, match=f"--{option}"):
        network(**{**PLAIN, option: value})
