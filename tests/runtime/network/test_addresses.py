"""Addresses and ports: what variables say, IPv6, and that no socket of ours is elsewhere."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import ifaddr
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed import HashStore

from latecomer import runtime, synth
from latecomer.runtime.network import addresses
from latecomer.runtime.optireduce.engine import OptiReduceEngine
from latecomer.runtime.optireduce.options import Options
from latecomer.runtime.torch_versions import PrefixStore
from latecomer.verify.errors import ArgumentError
from tests.runtime.spawning import on_ranks

LOOPBACK = "127.0.0.1"
RANKS = 3
LISTENING = "0A"  # the state of a TCP socket in /proc/net


def _has_ipv6():
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


needs_ipv6 = pytest.mark.skipif(not _has_ipv6(), reason="this host has no IPv6 on loopback")


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in (addresses.ADDRESS, addresses.INTERFACE, addresses.PORTS):
        monkeypatch.delenv(name, raising=False)


@given(st.integers(1, 65_535), st.integers(1, 65_535))
def test_a_range_of_ports_is_read_or_refused(first, last):
    os.environ[addresses.PORTS] = f"{first}-{last}"
    try:
        if first <= last:
            assert addresses.allowed_ports() == range(first, last + 1)
        else:
            with pytest.raises(ArgumentError, match="must be a range of ports"):
                addresses.allowed_ports()
    finally:
        del os.environ[addresses.PORTS]


@pytest.mark.parametrize("text", ["", "29600", "29600-29600"])
def test_one_port_or_none_named(monkeypatch, text):
    monkeypatch.setenv(addresses.PORTS, text)
    assert list(addresses.allowed_ports()) == ([29600] if text else [0])


@pytest.mark.parametrize("text", ["x", "1-", "-5", "0-9", "65530-65536", "29600,29601", "1-2-3"])
def test_what_is_no_range_is_refused(monkeypatch, text):
    monkeypatch.setenv(addresses.PORTS, text)
    with pytest.raises(ArgumentError, match=r"LATECOMER_PORTS = .* such as 29600-29663"):
        addresses.allowed_ports()


def _free_range(count):
    """Ports of which nobody had one a moment ago."""
    for first in range(20_011, 32_000, 101):
        try:
            for port in range(first, first + count):
                for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                    with socket.socket(socket.AF_INET, kind) as probe:
                        probe.bind((LOOPBACK, port))
        except OSError:
            continue
        return range(first, first + count)
    raise AssertionError("no free ports on this host")


@pytest.mark.parametrize("take", [addresses.listening_socket, addresses.datagram_socket])
def test_every_port_of_the_range_is_taken_and_then_no_more(monkeypatch, take):
    ports = _free_range(3)
    monkeypatch.setenv(addresses.PORTS, f"{ports[0]}-{ports[-1]}")
    taken = [take(LOOPBACK) for _ in ports]
    try:
        assert sorted(sock.getsockname()[1] for sock in taken) == list(ports)
        with pytest.raises(ArgumentError, match=r"has no free (TCP|UDP) port left on 127"):
            take(LOOPBACK)
    finally:
        for sock in taken:
            sock.close()


def test_an_address_of_another_host_is_the_systems_error():
    with pytest.raises(OSError, match="assign"):
        addresses.datagram_socket("192.0.2.77")  # of a network for documentation


def test_the_address_is_what_the_variables_say(monkeypatch):
    store = HashStore()
    assert addresses.own_address(store) == LOOPBACK

    monkeypatch.setenv(addresses.ADDRESS, "fd00::0:7")
    assert addresses.own_address(store) == "fd00::7"
    monkeypatch.setenv(addresses.ADDRESS, "host7")
    with pytest.raises(ArgumentError, match="must be an IPv4 or IPv6 address"):
        addresses.own_address(store)

    monkeypatch.setenv(addresses.INTERFACE, "lo")
    with pytest.raises(ArgumentError, match="Set one of both"):
        addresses.own_address(store)
    monkeypatch.delenv(addresses.ADDRESS)
    assert addresses.own_address(store) == LOOPBACK
    monkeypatch.setenv(addresses.INTERFACE, "nonesuch0")
    with pytest.raises(ArgumentError, match=r"must be an interface of this host: .*lo"):
        addresses.own_address(store)


def test_an_interface_with_ipv6_only_and_one_with_nothing_for_others(monkeypatch):
    def adapters(*ips):
        return lambda: [ifaddr.Adapter("eth7", "eth7", list(ips))]

    link_local = ifaddr.IP(("fe80::1", 0, 2), 64, "eth7")
    monkeypatch.setenv(addresses.INTERFACE, "eth7")
    monkeypatch.setattr(
        addresses.ifaddr, "get_adapters", adapters(link_local, ifaddr.IP(("fd00::9", 0, 0), 64, ""))
    )
    assert addresses.own_address(HashStore()) == "fd00::9"
    monkeypatch.setattr(addresses.ifaddr, "get_adapters", adapters(link_local))
    with pytest.raises(ArgumentError, match="no address that other hosts can reach"):
        addresses.own_address(HashStore())


def _reachable_ports():
    """(address, port) of this process's UDP sockets and of its listening TCP sockets."""
    inodes = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(descriptor)
        except OSError:  # it was the listing's own
            continue
        if target.startswith("socket:["):
            inodes.add(target[len("socket:[") : -1])

    ports = []
    for name in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path("/proc/self/net", name).read_text().splitlines()[1:]:
            fields = line.split()
            is_reachable = name.startswith("udp") or fields[3] == LISTENING
            if fields[9] in inodes and is_reachable:
                ports.append((name, int(fields[1].rsplit(":", 1)[1], 16)))
    return ports


def _summed(rank, size, store):
    """Sum by a schedule, and by OptiReduce on each data path; the UDP ports meanwhile."""
    ports = []
    executor = runtime.Executor(
        runtime.load(synth.generate(size)),
        PrefixStore("executor", store),
        rank,
        size,
        timeout_s=60,
    )
    total = executor.submit(torch.full((1000,), rank + 1.0)).wait()
    assert total[-1] == size * (size + 1) / 2
    ports += _reachable_ports()
    executor.close()

    for compiled in ("off", "auto"):
        engine = OptiReduceEngine(
            PrefixStore(compiled, store),
            rank,
            size,
            options=Options(warmup_steps=0, bound_s=5.0, compiled=compiled),
            timeout_s=60,
        )
        tensor = torch.full((100_000,), rank + 1.0)
        mean = engine.submit(tensor, average=True, last=True).wait()
        assert mean[0].item() == pytest.approx((size + 1) / 2, rel=1e-3)
        ports += _reachable_ports()
        engine.close()
    return ports


@needs_ipv6
@on_ranks(RANKS)
def test_ranks_meet_over_ipv6(rank, size, store):
    os.environ[addresses.ADDRESS] = "::1"
    ports = _summed(rank, size, store)
    assert {name for name, _ in ports} <= {"udp6", "tcp6", "tcp"}  # tcp: the store of the test
    assert "udp6" in {name for name, _ in ports}


@on_ranks(RANKS)
def test_all_sockets_that_others_send_to_are_on_allowed_ports(rank, size, store):
    before = set(_reachable_ports())
    allowed = range(28_100, 28_164)
    os.environ[addresses.PORTS] = f"{allowed[0]}-{allowed[-1]}"
    ports = set(_summed(rank, size, store)) - before
    assert ports
    assert all(port in allowed for _, port in ports), ports
