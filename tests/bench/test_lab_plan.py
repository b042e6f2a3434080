"""Networks, from options, too; their plan against an interpreter of its commands."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.lab import LabUnavailable, Limits, Network, Tail
from bench.lab.mechanisms import CONGESTION, Choice, Mechanism, choose
from bench.lab.options import network as network_of
from bench.lab.plan import plan
from bench.lab.readback import checks
from latecomer.verify.errors import ArgumentError
from tests.bench.interpreter import interpret, tc_json

ALL = "veth", "tbf", "htb", "netem", "statistic", "nfqueue"
HEADERS = 200


def mechanisms(*missing):
    """All mechanisms of a machine on which some are missing."""
    by_name = {}
    for name in ALL:
        by_name[name] = Mechanism(
            name, f"use of {name}", name not in missing, "not in this kernel", "Get it"
        )
    return by_name


def limits(rates=True):
    tail = st.builds(Tail, st.floats(0.001, 1), st.floats(0.001, 1))
    no_rate = st.none()
    return st.builds(
        Limits,
        rate_mbit=no_rate | st.floats(1, 2000) if rates else no_rate,
        loss=st.sampled_from([0.0, 0.01, 0.25, 1.0]),
        delay_s=st.sampled_from([0.0, 0.001, 0.5]),
        tails=st.lists(tail, max_size=2).map(tuple),
    )


@st.composite
def networks(draw):
    n = draw(st.integers(1, 6))
    host = st.integers(0, n - 1)
    links = st.tuples(host, host).filter(lambda pair: pair[0] != pair[1])
    return Network(
        hosts=n,
        rate_mbit=draw(st.floats(1, 2000)),
        everywhere=draw(limits(rates=False)),
        of_host=draw(st.dictionaries(host, limits(), max_size=3)),
        of_link=draw(st.dictionaries(links, limits(), max_size=3)) if n > 1 else {},
        mtu=draw(st.sampled_from([1500, 9000])),
        burst_s=draw(st.sampled_from([0.0005, 0.002])),
        congestion=draw(st.sampled_from(["reno", "cubic"])),
    )


@given(networks(), st.booleans())
def test_the_commands_amount_to_the_network(network, with_netem):
    available = mechanisms() if with_netem else mechanisms("netem")
    built = plan(network, choose(network, available))
    world = interpret(built)

    names = [f"h{host}" for host in range(network.hosts)]
    assert world.namespaces == ["switch", *names]
    assert len(set(world.addresses.values())) == network.hosts

    for receiver, name in enumerate(names):
        port = world.ports[name]
        assert world.routes[world.addresses[name]] == port
        assert world.files[name, CONGESTION] == network.congestion
        sending = world.devices[name, "e0"].rates["root"]
        assert sending == pytest.approx(network.port_mbit(receiver) * 1e6, abs=1)

        into = world.devices["switch", port]
        for sender, sender_name in enumerate(names):
            if sender == receiver:
                continue
            path = network.path(sender, receiver)
            source = world.addresses[sender_name]
            rate_mbit = min(network.port_mbit(receiver), path.rate_mbit or 1e9)
            assert into.rate_for(source) == pytest.approx(rate_mbit * 1e6, abs=1)
            assert world.frames[sender_name] <= into.bursts[into.class_of(source)] - HEADERS
            assert _lost(world, name, source) == pytest.approx(path.loss, abs=1e-8)
            delay_and_tails = _delayed(world, built, sender_name, name)
            assert delay_and_tails == (path.delay_s, path.tails)


def _lost(world, name, source):
    rules = world.losses.get(name, [])
    applying = [loss for address, loss in rules if address in ("*", source, f"{source}/32")]
    assert len(applying) <= 1
    return sum(applying)


def _delayed(world, built, sender, receiver):
    """Delay and tails of a path, by a netem leaf or by a queue, never by both."""
    into = world.devices["switch", world.ports[receiver]]
    leaf = into.leaves.get(into.by_source.get(world.addresses[sender], ""), "")
    number = world.queues.get((world.ports[sender], world.ports[receiver]))
    if match := re.search(r"netem limit \d+ delay (\d+)us", leaf):
        assert number is None
        return int(match[1]) / 1e6, ()
    if number is None:
        return 0.0, ()
    queue = next(queue for queue in built.queues if queue.number == number)
    return queue.path.delay_s, queue.path.tails


@given(networks())
def test_nothing_is_set_that_is_not_asked_for(network):
    bare = Network(hosts=network.hosts, rate_mbit=network.rate_mbit, congestion=network.congestion)
    choice = choose(bare, mechanisms("htb", "netem", "statistic", "nfqueue"))
    assert choice == Choice()
    world = interpret(plan(bare, choice))
    assert not world.losses
    assert not world.queues
    assert all(set(device.rates) == {"root"} for device in world.devices.values())


@pytest.mark.parametrize(
    ("settings", "missing", "named"),
    [
        ({}, "veth", "veth"),
        ({}, "tbf", "tbf"),
        ({"of_link": {(0, 1): Limits(rate_mbit=3)}}, "htb", "htb"),
        ({"everywhere": Limits(loss=0.1)}, "statistic", "statistic"),
        ({"everywhere": Limits(tails=(Tail(0.1, 0.1),))}, "nfqueue", "nfqueue"),
    ],
)
def test_a_setting_without_a_mechanism_is_refused_not_ignored(settings, missing, named):
    network = Network(**settings)
    choose(network, mechanisms())
    with pytest.raises(LabUnavailable, match=f"needs {named}, which does not work .not in this"):
        choose(network, mechanisms(missing))


def test_netem_where_it_exists_and_suffices():
    constant = Limits(delay_s=0.1)
    tailed = Limits(delay_s=0.1, tails=(Tail(0.1, 0.1),))
    assert choose(Network(everywhere=constant), mechanisms()).delay == "netem"
    assert choose(Network(everywhere=constant), mechanisms("netem")).delay == "nfqueue"
    assert choose(Network(everywhere=constant), mechanisms("htb")).delay == "nfqueue"
    assert choose(Network(everywhere=tailed), mechanisms()).delay == "nfqueue"
    assert choose(Network(), mechanisms()).delay == ""


@given(st.floats(1, 2000), st.floats(1, 2000))
def test_a_rate_read_back_is_accepted_exactly_when_it_is_the_one_asked_for(asked, read_back):
    network = Network(hosts=1, rate_mbit=asked)
    check = next(c for c in checks(network, Choice(), ()) if c.setting == "rate out of host 0")
    device = interpret(plan(network, Choice())).devices["h0", "e0"]
    assert check.problem(tc_json(device, "e0")) == ""
    device.rates["root"] = read_back * 1e6
    differs = abs(read_back - asked) > 0.001 * asked + 1e-5
    assert bool(check.problem(tc_json(device, "e0"))) == differs


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
    special = {"host": ["3:rate=50,loss=0.5"], "link": ["6-7:rate=30,tail=2%:1s", "0>1:delay=1ms"]}
    read = network_of(**PLAIN | special | {"loss": "1%", "delay": "5ms", "tail": ["1%:20ms"]})
    assert read.everywhere == Limits(loss=0.01, delay_s=0.005, tails=(Tail(0.01, 0.02),))
    assert read.of_host == {3: Limits(rate_mbit=50, loss=0.5)}

    slow = Limits(rate_mbit=30, tails=(Tail(0.02, 1),))
    assert read.of_link == {(6, 7): slow, (7, 6): slow, (0, 1): Limits(delay_s=0.001)}


UNREADABLE = [
    ("loss", "much"), ("delay", "5"), ("buffer", "big"), ("tail", ["20ms"]), ("host", ["rate=50"]),
    ("host", ["3:speed=50"]), ("link", ["6:rate=30"]), ("link", ["6-7"]),
]  # fmt: skip


@pytest.mark.parametrize(("option", "value"), UNREADABLE)
def test_options_that_cannot_be_read_are_named(option, value):
    with pytest.raises(ArgumentError, match=f"--{option}"):
        network_of(**PLAIN | {option: value})
