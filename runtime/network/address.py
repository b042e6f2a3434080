"""Under which address the other ranks reach this one.

``LATECOMER_ADDRESS`` if set; otherwise the local end of the way to the store's host, which every
rank can reach; loopback for stores without a host.
"""

from __future__ import annotations

import os
import socket

from runtime.torch_versions import PrefixStore, Store, TCPStore


def own_address(store: Store) -> str:
    """The IPv4 address for this rank's sockets, given the store by which the ranks met."""
    if chosen := os.environ.get("LATECOMER_ADDRESS"):
        return chosen
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    if not isinstance(store, TCPStore):
        return "127.0.0.1"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            store.host, store.port, socket.AF_INET, socket.SOCK_DGRAM
        )[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"
