"""How long a change of view takes by itself: its members meet and connect, and nothing else.

Each rank is a process of its own on this machine, and makes the engine of one view after the other,
as ``latecomer.elastic.Job`` does; schedules are made once, before (as a job makes those for one
rank less ahead). Where there are more ranks than cores they take turns, so what is told besides is
what a change is made of where each rank has a core: the processor time of a rank, that of the one
store that all of them ask, and what the same code takes on simulated hosts, where computing takes
no time, but each question to the store and each message as long as on a fast network.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from latecomer.runtime.elastic.connecting import Connector
from latecomer.runtime.elastic.presence import Presence
from latecomer.runtime.elastic.view import Member, View
from latecomer.runtime.network.processes import run as on_processes
from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.runtime.policy.options import Options
from latecomer.runtime.simulation.job import Job
from latecomer.runtime.simulation.network import Weather
from latecomer.runtime.torch_versions import Store

TIMEOUT_S = 120.0
SILENCE_S = 30.0
SIMULATED = 3  # changes on simulated hosts
RATE = 1.25e9  # bytes a second of their ports
LATENCY_S = 5e-5
PRELOADED = ("latecomer.runtime.backend", "latecomer.synth.candidates", "numba")


class Change(NamedTuple):
    """One change of view on one rank; processor times are of the change alone."""

    began_s: float
    ended_s: float
    processor_s: float
    store_s: float  # of the store's process meanwhile


def run(options: argparse.Namespace) -> None:
    """Print a row for each number of replicas."""
    if not options.json:
        print("| replicas | wall time | longest | processor: a rank | the store | no computing |")
        print("|--:|--:|--:|--:|--:|--:|", flush=True)
    for replicas in options.replicas:
        row = _measured(replicas, options.repeat) | _simulated(replicas)
        if options.json:
            print(json.dumps(row), flush=True)
            continue
        print(
            f"| {replicas} | {row['median_s'] * 1e3:.0f} ms | {row['longest_s'] * 1e3:.0f} ms "
            f"| {row['processor_s'] * 1e3:.0f} ms | {row['store_s'] * 1e3:.0f} ms "
            f"| {row['simulated_s'] * 1e3:.0f} ms |",
            flush=True,
        )


def _measured(replicas: int, changes: int) -> dict[str, float]:
    """Over all changes but the first."""
    by_rank: dict[int, list[Change]] = {}
    said = on_processes(
        _rank,
        replicas,
        1 + changes,
        os.getpid(),
        timeout_s=TIMEOUT_S,
        deadline_s=10 * TIMEOUT_S,
        preload=PRELOADED,
    )
    for rank, kind, value in said:
        if kind != "done":
            raise SystemExit(f"rank {rank}: {kind}: {value}")
        by_rank[rank] = value

    walls_s = _walls_s(by_rank.values())
    measured = [change for changes in by_rank.values() for change in changes[1:]]
    return {
        "replicas": replicas,
        "median_s": statistics.median(walls_s),
        "longest_s": max(walls_s),
        "processor_s": statistics.median(change.processor_s for change in measured),
        "store_s": statistics.median(change.store_s for change in measured),
    }


def _simulated(replicas: int) -> dict[str, float]:
    """The same on simulated hosts, whose processors take no time for anything."""

    def body(rank: int, size: int, store: Store) -> list[Change]:
        address = f"rank{rank}"
        return _changes(store, rank, size, SIMULATED, address, lambda: job.world.now_s, None)

    job = Job(replicas, seed=0, weather=Weather(rate=RATE, latency_s=LATENCY_S))
    by_rank = []
    for rank, outcome in job.run(body).items():
        if outcome.error is not None:
            raise SystemExit(f"rank {rank}: {outcome.error!r}")
        by_rank.append(outcome.result)
    return {"simulated_s": statistics.median(_walls_s(by_rank))}


def _walls_s(by_rank: Collection[Sequence[Change]]) -> list[float]:
    """Of each change but the first: from the first rank's begin to the last rank's end."""
    walls_s = []
    for of_ranks in list(zip(*by_rank, strict=True))[1:]:
        first_s = min(change.began_s for change in of_ranks)
        last_s = max(change.ended_s for change in of_ranks)
        walls_s.append(last_s - first_s)
    return walls_s


def _rank(
    store: Store,
    rank: int,
    size: int,
    say: Callable[[Any], None],
    changes: int,
    store_process: int,
) -> list[Change]:
    torch.set_num_threads(1)
    return _changes(store, rank, size, changes, "127.0.0.1", time.monotonic, store_process)


def _processor_s(process: int) -> float:
    """What all threads of a process have had of processors so far."""
    files = Path(f"/proc/{process}/task").glob("*/schedstat")
    return sum(int(file.read_text().split()[0]) for file in files) / 1e9


def _changes(
    store: Store,
    rank: int,
    size: int,
    changes: int,
    address: str,
    clock: Callable[[], float],  # the same on all ranks
    store_process: int | None,  # that serves the store, if it is one of its own
) -> list[Change]:
    connector = Connector(
        replica=rank,
        options=Options("auto"),
        device=torch.device("cpu"),
        timeout_s=TIMEOUT_S,
        silence_s=SILENCE_S,
        join_timeout_s=TIMEOUT_S,
    )
    presence = Presence(address)
    exchange = StoreExchange(store, rank, size, TIMEOUT_S)
    presences = exchange.all_gather("presence", presence.where)
    members = tuple(Member(replica, where) for replica, where in sorted(presences.items()))
    times = []
    for number in range(changes):
        view = View(
            number=number,
            members=members,
            step=0,
            behind=(),
            newcomers=(),
            owners=(),
            store="",
        )
        exchange.all_gather(f"before {number}")
        began_s = clock()
        used_before_s = time.process_time()
        store_before_s = _processor_s(store_process) if store_process else 0.0
        connected = connector.connect(view, exchange.under(f"view {number}").store)
        ended_s = clock()
        used_s = time.process_time() - used_before_s
        store_s = _processor_s(store_process) - store_before_s if store_process else 0.0
        times.append(Change(began_s, ended_s, used_s, store_s))
        exchange.all_gather(f"after {number}")
        connected.engine.close()
    exchange.all_gather("over")
    presence.close()
    return times
