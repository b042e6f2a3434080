"""Where ranks run for these measurements: on hosts of the lab, or side by side on loopback.

The caller's side starts one process per rank and gets back what each printed as its last line of
JSON. The ranks' side reads from the environment which rank it is, meets the others through a store,
and leaves without a teardown, which over a lossy network would be no part of the measurement.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn

from bench.lab import Lab, Network

TIMEOUT_S = 90.0


def run(argv: Sequence[str], ranks: int, network: Network | None, limit_s: float) -> list[Any]:
    """What each rank printed at the end.

    Args:
        argv: a module and its arguments, for ``python -m``.
        network: of the lab; none: loopback.
        limit_s: after it the ranks are killed.
    """
    command = [sys.executable, "-m", *argv]
    if network is not None:
        with Lab(network) as lab:
            job = lab.run(command, timeout_s=limit_s).check()
        outputs = [rank.output for rank in job.ranks]
    else:
        outputs = _on_loopback(command, ranks, limit_s)

    results = []
    for output in outputs:
        json_lines = [line for line in output.splitlines() if line.startswith("{")]
        if not json_lines:
            raise SystemExit("a rank said nothing:\n" + "\n".join(outputs))
        results.append(json.loads(json_lines[-1]))
    return results


def _on_loopback(command: list[str], ranks: int, limit_s: float) -> list[str]:
    """The output of each rank."""
    with socket.create_server(("127.0.0.1", 0)) as server:  # to learn of a free port
        port = server.getsockname()[1]
    env = os.environ | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(ranks),
    }
    processes = [
        subprocess.Popen(command, env=env | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(ranks)
    ]

    until_s = time.monotonic() + limit_s
    outputs = []
    try:
        for process in processes:
            left_s = max(1.0, until_s - time.monotonic())
            output, _ = process.communicate(timeout=left_s)
            outputs.append(output)
    finally:
        for process in processes:
            process.kill()
    return outputs


@dataclass
class RankProcess:
    """Which rank this process is, and the store by which the ranks meet.

    Attributes:
        store: nobody else uses it; for keys of one's own.
    """

    rank: int
    world_size: int
    store: Any

    @classmethod
    def from_environment(cls) -> RankProcess:
        """As under torchrun. Joins torch's default group (Gloo), too."""
        import torch
        import torch.distributed as dist
        from torch._C._distributed_c10d import TCPStore

        torch.set_num_threads(1)
        timeout = timedelta(seconds=TIMEOUT_S)
        dist.init_process_group("gloo", timeout=timeout)
        rank = dist.get_rank()
        world_size = dist.get_world_size()

        host = os.environ["MASTER_ADDR"]
        port = int(os.environ["MASTER_PORT"]) + 1  # that of torch's own store is taken
        store = TCPStore(host, port, world_size, rank == 0, timeout)
        return cls(rank, world_size, store)

    def meet(self, name: str) -> None:
        """Wait for all ranks; a name serves once."""
        self.store.set(f"{name}/{self.rank}", "")
        keys = [f"{name}/{rank}" for rank in range(self.world_size)]
        self.store.wait(keys, timedelta(seconds=TIMEOUT_S))

    def leave(self, result: dict[str, Any]) -> NoReturn:
        """Print the result, wait for the others, end the process."""
        print(json.dumps(result), flush=True)
        self.meet("over")
        time.sleep(1.0 if self.rank == 0 else 0.0)  # it holds the store
        os._exit(0)
