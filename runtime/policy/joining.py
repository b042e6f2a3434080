"""What ranks settle when they start together: equal options, one profile."""

from __future__ import annotations

import msgspec

from runtime.network.store_exchange import hear, require_all, tell, tell_all
from runtime.policy import profile as profiles
from runtime.policy.cost_model import Candidate, Profile
from runtime.policy.options import Options
from runtime.policy.profile import Run
from runtime.torch_versions import Store
from verify.errors import ArgumentError


def agree(store: Store, rank: int, size: int, options: Options, timeout_s: float) -> None:
    """See to it that all ranks have the same options.

    Raises:
        ArgumentError: they have not; names the ranks that differ from this one.
        RankFailure: ranks that did not join within ``timeout_s``.
    """
    own = msgspec.json.encode(options).decode()
    told = tell_all(store, "options", rank, size, own, timeout_s)
    require_all(told, range(size), timeout_s)
    if differing := [peer for peer, theirs in told.items() if theirs != own]:
        ranks = ", ".join(map(str, differing))
        requirement = f"must be the same on all ranks; rank(s) {ranks}: {told[differing[0]]}"
        raise ArgumentError("options", own, requirement)


def shared_profile(
    store: Store,
    rank: int,
    size: int,
    given: Profile | None,
    ways: tuple[Run, Run],
    candidate: Candidate,
    timeout_s: float,
) -> Profile:
    """The profile that rank 0 was given or, together with all others, measures.

    Args:
        ways: the native all-reduce, and the schedule of ``candidate``.

    Raises:
        RankFailure: ranks that did not join within ``timeout_s``; or a measurement failed.
    """
    own = "" if given is None else "yes"
    told = tell_all(store, "profile given", rank, size, own, timeout_s)
    require_all(told, range(size), timeout_s)
    if not told[0]:
        given = profiles.measure(size, *ways, candidate)
    if rank == 0:
        tell(store, "profile", msgspec.json.encode(given).decode(), timeout_s)
    heard = hear(store, {0: "profile"}, timeout_s)
    require_all(heard, [0], timeout_s)
    return msgspec.json.decode(heard[0], type=Profile)
