"""Metrics over HTTP, by the server of ``prometheus_client``: where, by which rank, until when."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection
from typing import NamedTuple

from prometheus_client import start_http_server
from prometheus_client.registry import Collector, CollectorRegistry

from latecomer.runtime.telemetry.origin import local_rank
from latecomer.verify.errors import ArgumentError

VARIABLE = "LATECOMER_PROMETHEUS"
LOOPBACK = "127.0.0.1"  # what is served has no password, so others are let in on request only

logger = logging.getLogger("latecomer")


class Address(NamedTuple):
    """Where to serve; the port 0 lets the system choose."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def parse_address(text: str, name: str) -> Address:
    """``9464``, ``0.0.0.0:9464`` or ``[::1]:9464``; ArgumentError, by ``name``, for others."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        raise ArgumentError(name, text, "must be [address:]port, as 9464 or 0.0.0.0:9464")
    return Address(host.removeprefix("[").removesuffix("]") or LOOPBACK, int(port))


def address(port: int | None, host: str | None) -> Address | None:
    """Where to serve, from the arguments of a watch or else the environment; None: nowhere.

    Raises:
        ArgumentError: no port, or an address without one.
    """
    if port is not None:
        if port not in range(65_536):
            raise ArgumentError("prometheus_port", port, "must be a port, 0 to 65535")
        return Address(host or LOOPBACK, port)
    if host is not None:
        remedy = "Give prometheus_port, too"
        raise ArgumentError("prometheus_address", host, "goes with a port only", remedy)
    text = os.environ.get(VARIABLE, "")
    return parse_address(text, VARIABLE) if text else None


def own_address(rank: int, asked: Address, ranks: Collection[int] | None) -> Address | None:
    """Where this rank serves; None: it is not asked to.

    By default the first rank of each host is. Ranks that are named get a port each, so that those
    of one host do not meet: the port asked for plus the rank's number on its host.
    """
    number = local_rank(os.environ, rank)
    if ranks is None:
        return asked if number == 0 else None
    if rank not in ranks:
        return None
    return asked if asked.port == 0 else asked._replace(port=asked.port + number)


def serve_if_possible(collector: Collector, at: Address) -> Callable[[], None] | None:
    """Serve it until what is returned is called; None, and a warning, where that can't be."""
    try:
        return serve(collector, at)
    except OSError as error:
        logger.warning(
            "prometheus: can't serve at %s (%s), so nothing is served; training goes on. Free the "
            "port, or choose another with prometheus_port or %s",
            at,
            error.strerror or error,
            VARIABLE,
        )
        return None


def serve(collector: Collector, at: Address) -> Callable[[], None]:
    """Serve it until what is returned is called; OSError where that can't be."""
    registry = CollectorRegistry()
    registry.register(collector)
    server, thread = start_http_server(at.port, at.host, registry)
    logger.info("prometheus: http://%s/metrics", Address(at.host, server.server_port))

    def close() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return close
