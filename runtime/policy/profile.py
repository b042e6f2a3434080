"""Alpha and beta of both methods, measured on a job's own ranks and links, shared, kept in a file.

Two sizes each, the least of several repeats: with all ranks on time, the native all-reduce is taken
as a ring and the schedule as all its rounds one after the other; a line through the two gives
seconds per message and per byte. It is repeated until the least three times of every rank agree
within a tenth, so that a job and the next one on the same machines come to the same decisions; this
takes a few operations of ``LARGE`` bytes on a quiet machine, and about ``MOST_S`` on a busy one.
``latecomer profile`` under ``torchrun`` does just this, and writes the file.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import torch

from latecomer.runtime.collective import COLLECTIVES, Collective
from latecomer.runtime.host import host
from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.runtime.policy.arrivals import size_class
from latecomer.runtime.policy.cost_model import PROFILE, AlphaBeta, Profile, ScheduleCandidate
from latecomer.runtime.policy.machines import measure_machines
from latecomer.runtime.policy.options import Options
from latecomer.runtime.torch_versions import PrefixStore, Store, TCPStore
from latecomer.verify.errors import ArgumentError, RankFailure

SMALL = 2**14  # bytes
LARGE = 2**21  # bytes: a start costs a few operations of these
AGREEING = 3  # repeats that have to come within AGREEMENT of the least
AGREEMENT = 0.1
MOST_S = 1.0  # a machine on which no three agree by then is too noisy for more to help
DIFFERENT = 2.0  # by this factor a profile is off, if it is not of this network
LEAST_ALPHA_S = 1e-7  # where noise makes the fitted line pass below zero, or fall:
LEAST_BETA_S = 1e-13  # predicted times have to be positive, and to grow with the buffer
CLASSES = range(12, 25)  # of sizes, of which the command tries all ways on time: 3 KiB to 12 MiB
EACH = 8  # operations between two looks whether a class is settled
MOST_OPERATIONS = 600  # in which it has to be
LONG_S = 0.5  # where an operation takes so long, larger ones are not tried
LEAVE_S = 5.0  # how long rank 0, whose store it may be, waits for the others to have left
VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # by which torchrun says who joins

TimedSum = Callable[[torch.Tensor], object]
"""Sums a tensor over all ranks, in place; returns when that is done."""

logger = logging.getLogger("latecomer")


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

    def cost_of(run: TimedSum | None, messages: float, share: float) -> AlphaBeta:
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

    Raises:
        ArgumentError: the given one is of another number of ranks, or of other hosts.
        RankFailure: ranks that did not join in time, or a measurement that failed.
    """
    given_text = "" if given_profile is None else msgspec.json.encode(given_profile).decode()
    received = group.all_gather("host and profile", f"{host.name()} {given_text}")
    host_of_rank = [received[rank].partition(" ")[0] for rank in range(group.world_size)]
    hosts = tuple(len(list(ranks)) for _, ranks in itertools.groupby(host_of_rank))
    text_of_rank_0 = received[0].partition(" ")[2]
    if text_of_rank_0:
        profile = PROFILE.decode(text_of_rank_0)
        _require_same_network(profile, group.world_size, hosts)
        if profile.hosts:
            _warn_if_different(profile, native, device, group.rank)
        return profile

    profile = measure(group, native, schedule, candidate, device, two_level, ranks_per_machine)
    if group.rank == 0:
        own_profile = msgspec.structs.replace(profile, hosts=hosts)
        group.send("profile", msgspec.json.encode(own_profile).decode())
    return PROFILE.decode(group.receive_from(0, "profile"))


def _require_same_network(profile: Profile, ranks: int, hosts: tuple[int, ...]) -> None:
    """ArgumentError for a profile of another number of ranks, or of ranks on other hosts."""
    remedy = "Measure anew: torchrun ... -m latecomer profile, or leave it out"
    if profile.ranks != ranks:
        text = f"was measured with {profile.ranks} ranks, this group has {ranks}"
        raise ArgumentError("profile", f"of {profile.ranks} ranks", text, remedy)
    if profile.hosts and profile.hosts != hosts:
        measured = f"{len(profile.hosts)} host(s) with {_listed(profile.hosts)} ranks"
        text = f"was measured on {measured}, this group is on {len(hosts)} with {_listed(hosts)}"
        raise ArgumentError("profile", f"of {measured}", text, remedy)


def _listed(counts: tuple[int, ...]) -> str:
    """``4`` for hosts with four ranks each, else every host's number."""
    return ", ".join(map(str, sorted(set(counts)) if len(set(counts)) == 1 else counts))


def _warn_if_different(profile: Profile, native: TimedSum, device: torch.device, rank: int) -> None:
    """Say so where the native all-reduce takes much more or less time than the profile has it.

    It is no error: who gives a profile wants decisions that are the same in every run, even on a
    machine that is busy. Collective.
    """
    measured_s = _least_s(native, native, torch.zeros(LARGE // 4, device=device))
    predicted_s = profile.native_s(LARGE)
    ratio = measured_s / predicted_s
    if rank == 0 and not 1 / DIFFERENT <= ratio <= DIFFERENT:
        logger.warning(
            "the profile may be of another network: the native all-reduce of 2 MiB took %.3g ms, "
            "%.3g ms by the profile. Measure anew: torchrun ... -m latecomer profile",
            measured_s * 1e3,
            predicted_s * 1e3,
        )


def run(dispatch: Callable[..., Any], out: Path, *, timeout_s: float = 300.0) -> Profile:
    """Measure on all ranks with ``dispatch``, the class AllReduceDispatcher; rank 0 writes ``out``.

    Raises:
        ArgumentError: this process is not a rank of a job.
        RankFailure: ranks that did not join within ``timeout_s``, or died.
    """
    for name in VARIABLES:
        if name not in os.environ:
            remedy = "Start it with: torchrun --nproc-per-node N -m latecomer profile"
            raise ArgumentError(name, None, "must be set: there is no job to measure", remedy)
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    ranks = int(os.environ["WORLD_SIZE"])
    store = PrefixStore("latecomer/profile", _store(rank, timeout_s))
    leaving = StoreExchange(store, rank, ranks, LEAVE_S)
    staying = set(range(ranks))
    try:
        dispatcher = dispatch(store, rank, ranks, options=Options("auto"), timeout_s=timeout_s)
        _settle_ways_on_time(dispatcher)
        exchange = StoreExchange(store, rank, ranks, timeout_s)
        if rank == 0:  # ranks may have heard of different epochs
            exchange.send("settled", msgspec.json.encode(dispatcher.profile).decode())
        profile = PROFILE.decode(exchange.receive_from(0, "settled"))
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


def _settle_ways_on_time(dispatcher: Any) -> None:
    """Run operations of all classes until it is known how each is fastest (collective)."""
    if not any(candidate.late == 0 for candidate in dispatcher.candidates):
        return
    for collective in COLLECTIVES:
        _settle_ways_of(dispatcher, collective)


def _settle_ways_of(dispatcher: Any, collective: Collective) -> None:
    """The same for one collective."""
    for bits in CLASSES:
        part = torch.zeros((3 << bits >> 2) // 4 // dispatcher.size)
        whole = part.repeat(dispatcher.size)
        of_class = size_class(whole.nbytes, collective)
        began_s = host.monotonic()
        for operation in range(1, MOST_OPERATIONS + 1):
            if collective == "all_reduce":
                dispatcher.submit(whole).wait()
            elif collective == "reduce_scatter":
                dispatcher.reduce_scatter(part, whole).wait()
            else:
                dispatcher.all_gather(whole, part).wait()
            if operation % EACH:
                continue
            is_settled = of_class in dispatcher.profile.on_time
            if _is_true_on_all(dispatcher, is_settled):  # ranks hear of it one after the other
                break
        is_long = (host.monotonic() - began_s) / operation > LONG_S
        if _is_true_on_all(dispatcher, is_long):
            return


def _is_true_on_all(dispatcher: Any, is_true: bool) -> bool:
    """Whether it is (collective)."""
    count = torch.tensor([float(is_true)])
    dispatcher.submit(count).wait()
    return bool(count.item() == dispatcher.size)


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


def _least_s(native: TimedSum, run: TimedSum | None, data: torch.Tensor) -> float:
    """The shortest of some runs, each begun by all ranks together (collective).

    They end when all ranks are content: a rank that went on alone would wait for ever. A rank
    without a ``run`` looks on, and is content with anything.
    """
    if run is not None:
        run(data)  # warms connections and buffers
    durations_s: list[float] = []
    give_up_s = host.monotonic() + MOST_S
    while True:
        discontent = torch.zeros(1, device=data.device)
        is_over = host.monotonic() > give_up_s and len(durations_s) >= AGREEING
        if run is not None and not is_over and not least_agree(durations_s):
            discontent += 1
        native(discontent)  # which also brings the ranks together
        if not discontent.item():
            return min(durations_s, default=0.0)

        began_s = host.monotonic()
        if run is not None:
            run(data)
        durations_s.append(host.monotonic() - began_s)


def least_agree(durations_s: Sequence[float]) -> bool:
    """Whether the least ``AGREEING`` of them lie within ``AGREEMENT`` of the least one."""
    least = sorted(durations_s)[:AGREEING]
    return len(least) == AGREEING and least[-1] <= (1 + AGREEMENT) * least[0]
