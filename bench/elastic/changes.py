"""How long a change of view takes by itself: its members meet and connect, and nothing else.

Each rank is a process of its own on this machine, and makes the engine of one view after the other,
as ``latecomer.elastic.Job`` does; schedules are made once, before (as a job makes those for one
rank less ahead). Where there are more ranks than cores they take turns, so what is told besides is
the processor time of a rank: with a core each, a change takes about as long as that, and a few
round trips.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from latecomer.runtime.elastic.connecting import Connector
from latecomer.runtime.elastic.presence import Presence
from latecomer.runtime.elastic.view import Member, View
from latecomer.runtime.network.processes import run as on_processes
from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.runtime.policy.options import Options
from latecomer.runtime.torch_versions import Store

TIMEOUT_S = 120.0
SILENCE_S = 30.0
PRELOADED = ("latecomer.runtime.backend", "latecomer.synth.candidates", "numba")


def run(options: argparse.Namespace) -> None:
    """Print a row for each number of replicas."""
    if not options.json:
        print("| replicas | wall time, median | longest | a rank's processor time, median |")
        print("|--:|--:|--:|--:|", flush=True)
    for replicas in options.replicas:
        row = _measured(replicas, options.repeat)
        if options.json:
            print(json.dumps(row), flush=True)
            continue
        print(
            f"| {replicas} | {row['median_s'] * 1e3:.0f} ms | {row['longest_s'] * 1e3:.0f} ms "
            f"| {row['processor_s'] * 1e3:.0f} ms |",
            flush=True,
        )


def _measured(replicas: int, changes: int) -> dict[str, float]:
    """Over all changes but the first: from the first rank's begin to the last rank's end."""
    by_rank: dict[int, list[tuple[float, float, float]]] = {}
    said = on_processes(
        _rank,
        replicas,
        1 + changes,
        timeout_s=TIMEOUT_S,
        deadline_s=10 * TIMEOUT_S,
        preload=PRELOADED,
    )
    for rank, kind, value in said:
        if kind != "done":
            raise SystemExit(f"rank {rank}: {kind}: {value}")
        by_rank[rank] = value

    walls_s = []
    processor_s: list[float] = []
    for times in list(zip(*by_rank.values(), strict=True))[1:]:
        begun_s, ended_s, used_s = zip(*times, strict=True)
        walls_s.append(max(ended_s) - min(begun_s))
        processor_s += used_s
    return {
        "replicas": replicas,
        "median_s": statistics.median(walls_s),
        "longest_s": max(walls_s),
        "processor_s": statistics.median(processor_s),
    }


def _rank(
    store: Store, rank: int, size: int, say: Callable[[Any], None], changes: int
) -> list[tuple[float, float, float]]:
    """Of each change: begin, end (monotonic, the same for all processes), processor time."""
    torch.set_num_threads(1)
    connector = Connector(
        replica=rank,
        options=Options("auto"),
        device=torch.device("cpu"),
        timeout_s=TIMEOUT_S,
        silence_s=SILENCE_S,
        join_timeout_s=TIMEOUT_S,
    )
    presence = Presence("127.0.0.1")
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
        begun_s = time.monotonic()
        used_s = time.process_time()
        connected = connector.connect(view, exchange.under(f"view {number}").store)
        ended_s = time.monotonic()
        times.append((begun_s, ended_s, time.process_time() - used_s))
        exchange.all_gather(f"after {number}")
        connected.engine.close()
    exchange.all_gather("over")
    presence.close()
    return times
