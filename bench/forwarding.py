"""What the backend costs for collectives that it only forwards: the same calls on Gloo beside it.

    python -m bench.forwarding [--ranks 2] [--calls 400] [--repeats 15] [--mode auto]

Both groups are in the same processes. Each row is the time of one synchronous call of 256 bytes a
rank, in microseconds: the median over the repeats of the mean over ``calls`` calls in a row, the
two groups in turn (A B A B). ``alone`` is the same with one rank in the group, so that nothing is
waited for: what is left is the way to Gloo and back. Every result is checked.
"""

from __future__ import annotations

import argparse
import json
import queue
import statistics
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from latecomer import runtime

ELEMENTS = 64
LIMIT_S = 300


def calls(group: Any, rank: int, ranks: int) -> dict[str, Callable[[], bool]]:
    """By name: a call on ``group`` that says whether its result was right."""
    x = torch.empty(ELEMENTS)
    whole = torch.empty(ELEMENTS * ranks)
    parts = [torch.empty(ELEMENTS) for _ in range(ranks)]
    root = dist.get_process_group_ranks(group)[-1]
    last = ranks - 1

    def broadcast() -> bool:
        x.fill_(rank)
        dist.broadcast(x, root, group=group)
        return x[0].item() == last

    def all_gather_into_tensor() -> bool:
        dist.all_gather_into_tensor(whole, x.fill_(rank), group=group)
        return whole[-1].item() == last

    def all_gather() -> bool:
        dist.all_gather(parts, x.fill_(rank), group=group)
        return parts[-1][0].item() == last

    def all_reduce_max() -> bool:
        dist.all_reduce(x.fill_(rank), dist.ReduceOp.MAX, group=group)
        return x[0].item() == last

    def barrier() -> bool:
        dist.barrier(group=group)
        return True

    return {
        "broadcast": broadcast,
        "all_gather_into_tensor": all_gather_into_tensor,
        "all_gather": all_gather,
        "all_reduce MAX": all_reduce_max,
        "barrier": barrier,
    }


def group_of_one(rank: int, ranks: int, backend: str) -> Any:
    """The group of this rank alone. Every rank has to take part in making each of them."""
    groups = [dist.new_group([member], backend=backend) for member in range(ranks)]
    return groups[rank]


def measure(rank: int, ranks: int, port: int, arguments: argparse.Namespace, out: Any) -> None:
    """Rank's part; rank 0 puts (call, where, {group: microseconds}) rows."""
    torch.set_num_threads(1)
    limit = timedelta(seconds=LIMIT_S)
    store = dist.TCPStore("127.0.0.1", port, None, False, limit)
    runtime.configure(mode=arguments.mode)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=limit)

    latecomer = dist.new_group(list(range(ranks)), backend="latecomer")
    gloo_alone = group_of_one(rank, ranks, "gloo")
    latecomer_alone = group_of_one(rank, ranks, "latecomer")
    dist.all_reduce(torch.ones(4), group=latecomer)  # the control plane runs, too

    calls_of = {
        f"{ranks} ranks": {
            "Gloo": calls(dist.group.WORLD, rank, ranks),
            "latecomer": calls(latecomer, rank, ranks),
        },
        "alone": {
            "Gloo": calls(gloo_alone, 0, 1),
            "latecomer": calls(latecomer_alone, 0, 1),
        },
    }

    for where, groups in calls_of.items():
        for call in groups["Gloo"]:
            times_us: dict[str, list[float]] = {name: [] for name in groups}
            for _ in range(arguments.repeats + 1):
                for name, group in groups.items():
                    run = group[call]
                    dist.barrier()
                    began = time.perf_counter()
                    is_right = all([run() for _ in range(arguments.calls)])
                    seconds = time.perf_counter() - began
                    times_us[name].append(seconds / arguments.calls * 1e6)
                    if not is_right:
                        raise SystemExit(f"{name}: {call} was wrong")

            if rank == 0:  # without the first repeat, which warms up
                medians = {name: statistics.median(times[1:]) for name, times in times_us.items()}
                out.put((call, where, medians))

    if rank == 0:
        out.put(None)
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Print the table (``--json``: one object a row)."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--calls", type=int, default=400)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--mode", default="auto")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()

    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    context = mp.get_context("spawn")
    out = context.Queue()
    arguments_of_rank = (arguments.ranks, store.port, arguments, out)
    ranks = mp.spawn(measure, arguments_of_rank, arguments.ranks, join=False)

    if not arguments.json:
        print("| call | ranks | Gloo, us | latecomer, us | more, us | ratio |")
        print("|:--|:--|--:|--:|--:|--:|")
    while True:
        try:
            row = out.get(timeout=1.0)
        except queue.Empty:
            ranks.join(0.1)  # raises what a rank raised
            continue
        if row is None:
            break

        call, where, medians = row
        ours = medians["latecomer"]
        gloo = medians["Gloo"]
        if arguments.json:
            print(json.dumps({"call": call, "ranks": where, "gloo_us": gloo, "latecomer_us": ours}))
        else:
            ratio = f"{ours - gloo:.1f} | {ours / gloo:.2f}"
            print(f"| {call} | {where} | {gloo:.1f} | {ours:.1f} | {ratio} |", flush=True)

    while not ranks.join():
        pass


if __name__ == "__main__":
    main()
