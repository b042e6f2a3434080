"""How ranks find each other: addresses of the data sockets, the session and its key, by the store.

The session number and the key are random (``secrets``) and known to whoever can read the store.
Ranks with different options refuse to start.
"""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from datetime import timedelta

from runtime.optireduce.options import Options
from runtime.torch_versions import Store
from verify.errors import ArgumentError, RankFailure


@dataclass(frozen=True)
class Meeting:
    """What the ranks agreed on.

    Attributes:
        session: 64 random bits in every datagram.
        key: 32 random bytes, for those who authenticate.
        addresses: per other rank, (host, port) of its socket.
    """

    session: int
    key: bytes
    addresses: dict[int, tuple[str, int]]


def meet(
    store: Store,
    rank: int,
    size: int,
    address: tuple[str, int],
    options: Options,
    timeout_s: float,
) -> Meeting:
    """Exchange addresses. Collective.

    Raises:
        RankFailure: ranks that did not come within ``timeout_s``.
        ArgumentError: other ranks use other options.
    """
    if rank == 0:
        store.set("session", f"{secrets.token_hex(8)} {secrets.token_hex(32)}")
    store.set(f"{rank}", f"{options.digest} {address[0]} {address[1]}")
    deadline = time.monotonic() + timeout_s
    told: dict[int, list[str]] = {}
    for peer in range(size):
        left = max(0.01, deadline - time.monotonic())
        try:
            store.wait([f"{peer}"], timedelta(seconds=left))
        except RuntimeError:
            continue
        told[peer] = store.get(f"{peer}").decode().split(" ")
    if absent := [peer for peer in range(size) if peer not in told]:
        names = ", ".join(map(str, absent))
        raise RankFailure(absent, f"rank(s) {names}: did not join within {timeout_s:g} s")
    if differing := [peer for peer in told if told[peer][0] != options.digest]:
        ranks = ", ".join(map(str, differing))
        raise ArgumentError(
            "options", options, f"rank(s) {ranks} have others", "Give all ranks the same options"
        )
    session, key = store.get("session").decode().split(" ")
    addresses = {p: (host, int(port)) for p, (_, host, port) in told.items() if p != rank}
    return Meeting(int(session, 16), bytes.fromhex(key), addresses)
