"""How ranks find each other: addresses of the data sockets, the session and its key, by the store.

The session number and the key are random (``secrets``) and known to whoever can read the store.
Ranks with different options refuse to start.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from runtime.network.store_exchange import StoreExchange
from runtime.optireduce.options import Options
from verify.errors import ArgumentError


@dataclass(frozen=True)
class Session:
    """What the ranks agreed on."""

    number: int  # 64 random bits in every datagram
    key: bytes  # 32 random bytes, for those who authenticate
    addresses: dict[int, tuple[str, int]]  # of each other rank's socket


def meet(group: StoreExchange, address: tuple[str, int], options: Options) -> Session:
    """Exchange addresses. Collective.

    Raises:
        RankFailure: ranks that did not come in time.
        ArgumentError: other ranks use other options.
    """
    session = f"{secrets.token_hex(8)} {secrets.token_hex(32)}"  # rank 0's is that of the group
    own = f"{options.digest} {address[0]} {address[1]} {session}"
    received = {r: text.split(" ") for r, text in group.all_gather("meeting", own).items()}
    if differing := [r for r, (digest, *_) in received.items() if digest != options.digest]:
        ranks = ", ".join(map(str, differing))
        raise ArgumentError(
            "options", options, f"rank(s) {ranks} have others", "Give all ranks the same options"
        )
    others = {r: fields for r, fields in received.items() if r != group.rank}
    addresses = {r: (host, int(port)) for r, (_, host, port, *_) in others.items()}
    return Session(int(received[0][3], 16), bytes.fromhex(received[0][4]), addresses)
