"""How ranks find each other: addresses of the data sockets, the session and its key, by the store.

The session number and the key are random (``secrets``) and known to whoever can read the store.
Ranks with different options refuse to start.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from runtime.network.store_exchange import require_all, tell_all
from runtime.optireduce.options import Options
from runtime.torch_versions import Store
from verify.errors import ArgumentError


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
    session = f"{secrets.token_hex(8)} {secrets.token_hex(32)}"  # rank 0's is that of the group
    own = f"{options.digest} {address[0]} {address[1]} {session}"
    said = tell_all(store, "meeting", rank, size, own, timeout_s)
    require_all(said, range(size), timeout_s)
    told = {peer: text.split(" ") for peer, text in said.items()}
    if differing := [peer for peer in told if told[peer][0] != options.digest]:
        ranks = ", ".join(map(str, differing))
        raise ArgumentError(
            "options", options, f"rank(s) {ranks} have others", "Give all ranks the same options"
        )
    addresses = {p: (host, int(port)) for p, (_, host, port, *_) in told.items() if p != rank}
    return Meeting(int(told[0][3], 16), bytes.fromhex(told[0][4]), addresses)
