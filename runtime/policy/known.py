"""What replicas know of their links and of each other; it outlives every group of theirs.

Ranks shift with each quorum, so arrivals are remembered by replica: of each one ever seen, how far
behind the first it came to the last operations that it took part in. When a group begins, all its
replicas tell what they know, and all go on from what the one knows that has seen most. So no
profile is measured again, and a replica that was always late is known to be when it comes back.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.runtime.policy.cost_model import Profile

KEPT_OPERATIONS = 16  # of each replica: as many as a forecast looks at
KEPT_REPLICAS = 1024  # those seen last; a scheduler may give each new process a new name


class Known(msgspec.Struct, frozen=True):
    """What one replica knows."""

    replica: str  # its own name
    profile: Profile | None = None  # of the links, once it was measured or given
    operations: int = 0  # whose arrivals have been seen by whoever has told of them
    behind_s: dict[
        str, tuple[float, ...]
    ] = {}  # by replica, oldest first; those seen last at the end


KNOWN = msgspec.json.Decoder(Known)  # with the module: see latecomer.verify.core.format


def exchange_known(group: StoreExchange, own: Known) -> tuple[Known, ...]:
    """What all replicas of a group know, by rank (collective).

    RankFailure names those that did not join in time.
    """
    texts = group.all_gather("known", msgspec.json.encode(own).decode())
    return tuple(KNOWN.decode(texts[rank]) for rank in range(group.world_size))


def adopted(members: Sequence[Known], rank: int) -> Known:
    """What the replica of that rank goes on with: the same on all, but for its own name."""
    profiles = [member.profile for member in members if member.profile is not None]
    most = max(members, key=lambda member: member.operations)  # of equal ones the lowest rank
    return msgspec.structs.replace(
        most, replica=members[rank].replica, profile=profiles[0] if profiles else None
    )


def shared_names(members: Sequence[Known]) -> set[str]:
    """Names that several members have, which tell nobody apart."""
    counts = Counter(member.replica for member in members)
    return {name for name, count in counts.items() if count > 1}


def arrivals_of(known: Known, replicas: Sequence[str]) -> list[NDArray[np.float64]]:
    """Earlier arrivals as a history of these replicas would have them: a row each, by rank.

    Who was not seen in as many counts as neither early nor late in the others' rows.
    """
    seen = [known.behind_s.get(replica, ()) for replica in replicas]
    rows = []
    for age in range(max(map(len, seen), default=0), 0, -1):
        row_known_s = [behind_s[-age] for behind_s in seen if len(behind_s) >= age]
        if len(row_known_s) < 2:
            continue
        usual_s = statistics.median(row_known_s)
        row_s = [behind_s[-age] if len(behind_s) >= age else usual_s for behind_s in seen]
        rows.append(np.array(row_s))
    return rows


def having_seen(
    known: Known, replicas: Sequence[str], rows: NDArray[np.float64], unclear: set[str]
) -> Known:
    """``known``, and what the new ``rows`` say of these replicas but for those of ``unclear``."""
    behind_s = dict(known.behind_s)
    for rank, replica in enumerate(replicas):
        if replica in unclear:
            continue
        earlier = behind_s.pop(replica, ())
        behind_s[replica] = (*earlier, *rows[:, rank].tolist())[-KEPT_OPERATIONS:]
    last = dict(list(behind_s.items())[-KEPT_REPLICAS:])
    return msgspec.structs.replace(known, operations=known.operations + len(rows), behind_s=last)
