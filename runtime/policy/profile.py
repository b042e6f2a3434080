"""Alpha and beta of both methods, measured on a job's own ranks and links, shared, kept in a file.

Two sizes each, the least of a few repeats: with all ranks on time, the native all-reduce is taken
as a ring and the schedule as all its rounds one after the other; a line through the two gives
seconds per message and per byte. It costs a few operations of ``LARGE`` bytes each.
``python -m runtime profile`` under ``torchrun`` does just this, and writes the file.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import torch

from runtime.network.store_exchange import StoreExchange
from runtime.policy.cost_model import PROFILE, AlphaBeta, Profile, ScheduleCandidate
from runtime.policy.machines import measure_machines
from runtime.policy.options import Options
from runtime.torch_versions import PrefixStore, Store, TCPStore
from verify.errors import ArgumentError, RankFailure

SMALL = 2**14  # bytes
LARGE = 2**21  # bytes: a start costs a few operations of these
REPEATS = 3
LEAST_ALPHA_S = 1e-7  # where noise makes the fitted line pass below zero, or fall:
LEAST_BETA_S = 1e-13  # predicted times have to be positive, and to grow with the buffer
LEAVE_S = 5.0  # how long rank 0, whose store it may be, waits for the others to have left
VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # by which torchrun says who joins

TimedSum = Callable[[torch.Tensor], object]
"""Sums a tensor over all ranks, in place; returns when that is done."""


def measure(
    group: StoreExchange,
    native: TimedSum,
    schedule: TimedSum,
    candidate: ScheduleCandidate,
    device: torch.device,
    two_level: Mapping[str, TimedSum],
    ranks_per_machine: int,
) -> Profile:
    """The profile of the native all-reduce and ``candidate``'s schedule, here (collective).

    Where machines have several ranks, of the links inside and between them and of the ``two_level``
    schedules, too.
    """
    ranks = group.world_size
    hops = 2 * (ranks - 1)
    phases = (candidate.waiting, candidate.completion)
    messages = sum(phase.messages for phase in phases)
    share = sum(phase.share for phase in phases)

    def cost_of(run: TimedSum, messages: float, share: float) -> AlphaBeta:
        small_s = _least_s(native, run, torch.zeros(SMALL // 4, device=device))
        large_s = _least_s(native, run, torch.zeros(LARGE // 4, device=device))
        return _fitted(small_s, large_s, messages=messages, share=share)

    native_cost = cost_of(native, hops, hops / ranks)
    schedule_cost = cost_of(schedule, messages, share)
    if not two_level:
        return Profile(ranks, native_cost, schedule_cost)

    machines = measure_machines(group, ranks_per_machine, two_level, cost_of)
    return Profile(ranks, native_cost, schedule_cost, machines)


def shared_profile(
    group: StoreExchange,
    given_profile: Profile | None,
    native: TimedSum,
    schedule: TimedSum,
    candidate: ScheduleCandidate,
    device: torch.device,
    two_level: Mapping[str, TimedSum],
    ranks_per_machine: int,
) -> Profile:
    """The profile that rank 0 was given or, together with all others, measures on ``device``.

    RankFailure is raised for ranks that did not join in time, or where a measurement failed.
    """
    received = group.all_gather("profile given", "" if given_profile is None else "yes")
    profile = given_profile
    if not received[0]:
        profile = measure(group, native, schedule, candidate, device, two_level, ranks_per_machine)
    if group.rank == 0:
        group.send("profile", msgspec.json.encode(profile).decode())
    return PROFILE.decode(group.receive_from(0, "profile"))


def run(dispatch: Callable[..., Any], out: Path, *, timeout_s: float = 300.0) -> Profile:
    """Measure on all ranks with ``dispatch``, the class AllReduceDispatcher; rank 0 writes ``out``.

    Raises:
        ArgumentError: this process is not a rank of a job.
        RankFailure: ranks that did not join within ``timeout_s``, or died.
    """
    for name in VARIABLES:
        if name not in os.environ:
            remedy = "Start it with: torchrun --nproc-per-node N -m runtime profile"
            raise ArgumentError(name, None, "must be set: there is no job to measure", remedy)
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    ranks = int(os.environ["WORLD_SIZE"])
    store = PrefixStore("latecomer/profile", _store(rank, timeout_s))
    leaving = StoreExchange(store, rank, ranks, LEAVE_S)
    staying = set(range(ranks))
    try:
        dispatcher = dispatch(store, rank, ranks, options=Options("native"), timeout_s=timeout_s)
        profile: Profile = dispatcher.profile
        if rank == 0:
            out.write_bytes(msgspec.json.format(msgspec.json.encode(profile), indent=2) + b"\n")
        dispatcher.close()
        return profile
    except RankFailure as failure:
        staying -= set(failure.ranks)
        raise
    finally:
        with contextlib.suppress(RankFailure):  # of the store: what came before says more
            leaving.send(f"done/{rank}")
            if rank == 0:  # the store may be its own: it leaves last
                leaving.receive({peer: f"done/{peer}" for peer in staying})


def _store(rank: int, timeout_s: float) -> Store:
    """The agent's store under ``torchrun``; else rank 0 has it. Waits for no rank but its host."""
    agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    host = os.environ["MASTER_ADDR"]
    port = int(os.environ["MASTER_PORT"])
    limit = timedelta(seconds=timeout_s)
    is_host = rank == 0 and not agent
    try:
        return TCPStore(host, port, None, is_host, limit, wait_for_workers=False)
    except RuntimeError as error:
        reason = str(error).split("\n", 1)[0]
        text = f"the store of the job can't be reached: {reason}"
        raise RankFailure([] if agent else [0], text) from None


def _fitted(small_s: float, large_s: float, *, messages: float, share: float) -> AlphaBeta:
    """Alpha and beta of something that took ``small_s`` for SMALL and ``large_s`` for LARGE."""
    beta_s = max(LEAST_BETA_S, (large_s - small_s) / (share * (LARGE - SMALL)))
    return AlphaBeta(max(LEAST_ALPHA_S, (small_s - share * SMALL * beta_s) / messages), beta_s)


def _least_s(native: TimedSum, run: TimedSum, data: torch.Tensor) -> float:
    """The shortest of some runs, each begun by all ranks together."""
    signal = torch.zeros(1, device=data.device)
    durations_s = []
    for _ in range(REPEATS + 1):  # the first one warms connections and buffers
        native(signal)
        began_s = time.monotonic()
        run(data)
        durations_s.append(time.monotonic() - began_s)
    return min(durations_s[1:])
