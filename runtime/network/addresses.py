"""Where this rank's sockets are: the address at which others reach it, and the ports it may take.

| variable | example | what it does |
|---|---|---|
| ``LATECOMER_ADDRESS`` | ``10.1.0.7``, ``fd00::7`` | this host's own address, IPv4 or IPv6 |
| ``LATECOMER_INTERFACE`` | ``eth1`` | the address of this interface; IPv4 if it has one |
| ``LATECOMER_PORTS`` | ``29600-29663`` | the only ports on which sockets of ours are reached |

Without the first two it is the local end of the way to the store's host, where all can reach it.
The calling end of a TCP connection has a port of the kernel's choice, as with every program:
firewalls look at the other end.
"""

from __future__ import annotations

import errno
import ipaddress
import os
from collections.abc import Callable

import ifaddr

from latecomer.runtime.host import (
    AF_INET,
    AF_INET6,
    SO_REUSEADDR,
    SOCK_DGRAM,
    SOCK_STREAM,
    SOL_SOCKET,
    SOMAXCONN,
    Socket,
    SocketKind,
    host,
)
from latecomer.runtime.torch_versions import Store
from latecomer.verify.errors import ArgumentError

ADDRESS = "LATECOMER_ADDRESS"
INTERFACE = "LATECOMER_INTERFACE"
PORTS = "LATECOMER_PORTS"
ANY_PORT = range(0, 1)  # the kernel chooses


def own_address(store: Store) -> str:
    """The address, IPv4 or IPv6, for this rank's sockets, given the store by which the ranks met.

    Loopback for stores without a host, unless a variable says otherwise. ArgumentError: a variable
    that is no address, or names no interface.
    """
    chosen = os.environ.get(ADDRESS, "")
    interface = os.environ.get(INTERFACE, "")
    if chosen and interface:
        text = f"goes without {INTERFACE}, which is set, too"
        raise ArgumentError(ADDRESS, chosen, text, "Set one of both")
    if chosen:
        return _require_address(chosen)
    if interface:
        return _address_of_interface(interface)

    return host.address_towards(store)


def _require_address(text: str) -> str:
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        requirement = "must be an IPv4 or IPv6 address of this host"
        raise ArgumentError(ADDRESS, text, requirement) from None


def _address_of_interface(name: str) -> str:
    """Its first IPv4 address, or else its first IPv6 address that other hosts can reach."""
    adapters = {adapter.name: adapter for adapter in ifaddr.get_adapters()}
    if name not in adapters:
        requirement = f"must be an interface of this host: {', '.join(sorted(adapters))}"
        raise ArgumentError(INTERFACE, name, requirement)

    ipv4 = [ip.ip for ip in adapters[name].ips if ip.is_IPv4]
    ipv6 = [ip.ip[0] for ip in adapters[name].ips if ip.is_IPv6]
    # a link-local address is good only together with the interface of whoever sends to it
    reachable = [address for address in ipv6 if not ipaddress.ip_address(address).is_link_local]
    addresses = [*map(str, ipv4), *reachable]
    if not addresses:
        raise ArgumentError(INTERFACE, name, "has no address that other hosts can reach")
    return addresses[0]


def allowed_ports() -> range:
    """The ports that sockets may be bound to; :data:`ANY_PORT` if ``LATECOMER_PORTS`` is not set.

    ArgumentError if that is no range of ports.
    """
    text = os.environ.get(PORTS, "")
    if not text:
        return ANY_PORT
    first, separator, last = text.partition("-")
    if first.isdecimal() and (last.isdecimal() or not separator):
        ports = range(int(first), int(last if separator else first) + 1)
        if ports and ports.start >= 1 and ports.stop <= 65_536:
            return ports
    raise ArgumentError(PORTS, text, "must be a range of ports, such as 29600-29663")


def family_of(address: str) -> int:
    """Of a socket that is to reach this IPv4 or IPv6 address."""
    return AF_INET6 if ":" in address else AF_INET


def listening_socket(address: str) -> Socket:
    """A TCP socket that listens on ``address`` and a port that is allowed and free.

    Raises:
        ArgumentError: ``LATECOMER_PORTS`` is no range, or has no free port left.
        OSError: the address is not of this host.
    """

    def listen(sock: Socket, port: int) -> None:
        # a port of connections that ended a minute ago would still be taken otherwise
        sock.setsockopt(SOL_SOCKET, SO_REUSEADDR, 1)
        sock.bind((address, port))
        sock.listen(SOMAXCONN)  # only now does another rank of this host find it taken

    return _on_a_free_port(SOCK_STREAM, address, listen)


def datagram_socket(address: str) -> Socket:
    """A UDP socket on ``address`` and a port that is allowed and free; raises as for TCP."""
    return _on_a_free_port(SOCK_DGRAM, address, lambda sock, port: sock.bind((address, port)))


def _on_a_free_port(kind: SocketKind, address: str, take: Callable[[Socket, int], None]) -> Socket:
    """A socket for which ``take`` has taken a port."""
    family = family_of(address)
    ports = allowed_ports()
    begin = os.getpid() % len(ports)  # the ranks of a host do not all try the same port first
    for port in (*ports[begin:], *ports[:begin]):
        sock = host.socket(family, kind)
        try:
            take(sock, port)
            return sock
        except OSError as error:
            sock.close()
            if error.errno != errno.EADDRINUSE:
                raise

    name = "TCP" if kind == SOCK_STREAM else "UDP"
    raise ArgumentError(
        PORTS,
        os.environ.get(PORTS),
        f"has no free {name} port left on {address}",
        "Each rank takes a UDP port for each model or group, two with OptiReduce, and a TCP port "
        "while it connects",
    )
