"""How long it takes to reconfigure a process group of torchft's: replicas without a lighthouse.

Each replica is a process. They meet before each reconfiguration, and after it an all-reduce must
sum up to exactly their number.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from datetime import timedelta
from typing import Any

SIZES = (4, 3, 2)
WARM_UP = 2  # rounds of all sizes: what is imported and proved the first time
DEADLINE_S = 300.0


def _reconfigure(store: Any, rank: int, size: int, say: Any, kind: str, rounds: int) -> None:
    """One replica's part: tells of each reconfiguration how many took part, and its seconds."""
    import torch
    from torch.distributed import ReduceOp, TCPStore

    from bench.torchft_replica import name_of, process_group

    torch.set_num_threads(1)
    group = process_group(kind, late=size - 1, timeout_s=60.0)
    if rank == 0:
        served = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        store.set("where", f"127.0.0.1:{served.port}")
    where = store.get("where").decode()

    quorum = 0
    for number in range(WARM_UP + rounds):
        for members in SIZES:
            quorum += 1
            store.set(f"{quorum}/{rank}", "")
            store.wait([f"{quorum}/{peer}" for peer in range(size)])
            if rank >= members:
                continue
            began_s = time.monotonic()
            _configure(group, f"{where}/{quorum}", name_of(rank), rank, members)
            seconds = time.monotonic() - began_s

            ones = torch.ones(1000)
            group.allreduce([ones], ReduceOp.SUM).wait()
            assert ones[0] == members
            if number >= WARM_UP:
                say((members, quorum, seconds))
    group.shutdown()
    store.set(f"done/{rank}", "")
    store.wait([f"done/{peer}" for peer in range(size)])


def _configure(group: Any, address: str, name: str, rank: int, members: int) -> None:
    """What a Manager does when there is a new quorum, in either version of torchft."""
    import torchft.process_group as groups

    if hasattr(group, "configure"):
        group.configure(address, name, rank, members, 0, 0, 1, list(range(members)))
    else:
        group.set_rank_info(name, 0, 1, rank)
        limit = timedelta(seconds=DEADLINE_S)
        groups.reconfigure_with_store(group, address, rank, members, limit)


def reconfigurations_s(kind: str, rounds: int) -> dict[int, float]:
    """By number of replicas: the median of what the slowest of them has taken each time."""
    from latecomer.runtime.network.processes import run

    slowest: dict[int, dict[int, float]] = defaultdict(dict)
    ended = set()
    for said in run(
        _reconfigure, max(SIZES), kind, rounds, timeout_s=DEADLINE_S, deadline_s=DEADLINE_S
    ):
        if said.kind == "says":
            members, quorum, seconds = said.value
            slowest[members][quorum] = max(seconds, slowest[members].get(quorum, 0.0))
        elif said.kind == "done":
            ended.add(said.rank)
        else:
            raise RuntimeError(f"replica {said.rank} {said.kind}: {said.value}")
    assert len(ended) == max(SIZES)
    return {members: statistics.median(times.values()) for members, times in slowest.items()}
