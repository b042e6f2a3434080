"""Where ranks run for these measurements: on hosts of the lab, or side by side on loopback.

The caller's side starts one process per rank and gets back what each printed as its last line of
JSON. The ranks' side finds its place in the environment, meets the others through a store, and
leaves without a teardown, which over a lossy network would be no part of the measurement.
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
    """What each rank said.

    Args:
        argv: a module and its arguments, for ``python -m``.
        network: of the lab; none: loopback.
        limit_s: after it the ranks are killed.
    """
    command = [sys.executable, "-m", *argv]
    if network is not None:
        with Lab(network) as lab:
            job = lab.run(command, timeout_s=limit_s).check()
        said = [rank.output for rank in job.ranks]
    else:
        said = _on_loopback(command, ranks, limit_s)
    told = [[line for line in one.splitlines() if line.startswith("{")] for one in said]
    if not all(told):
        raise SystemExit("a rank said nothing:\n" + "\n".join(said))
    return [json.loads(lines[-1]) for lines in told]


def _on_loopback(command: list[str], ranks: int, limit_s: float) -> list[str]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    processes = [
        subprocess.Popen(
            command,
            env={**os.environ, **place, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    until_s = time.monotonic() + limit_s
    try:
        return [p.communicate(timeout=max(1.0, until_s - time.monotonic()))[0] for p in processes]
    finally:
        for process in processes:
            process.kill()


@dataclass
class Place:
    """One rank's place, and the store by which the ranks meet.

    Attributes:
        store: nobody else uses it; for keys of one's own.
    """

    rank: int
    size: int
    store: Any

    @classmethod
    def find(cls) -> Place:
        """By the environment, as under torchrun. Joins torch's default group (Gloo), too."""
        import torch
        import torch.distributed as dist
        from torch._C._distributed_c10d import TCPStore

        torch.set_num_threads(1)
        timeout = timedelta(seconds=TIMEOUT_S)
        dist.init_process_group("gloo", timeout=timeout)
        rank = dist.get_rank()
        size = dist.get_world_size()
        host = os.environ["MASTER_ADDR"]
        port = int(os.environ["MASTER_PORT"])
        return cls(rank, size, TCPStore(host, port + 1, size, rank == 0, timeout))

    def meet(self, name: str) -> None:
        """Wait for all ranks; a name serves once."""
        self.store.set(f"{name}/{self.rank}", "")
        self.store.wait([f"{name}/{r}" for r in range(self.size)], timedelta(seconds=TIMEOUT_S))

    def leave(self, told: dict[str, Any]) -> NoReturn:
        """Print what was found, wait for the others, end the process."""
        print(json.dumps(told), flush=True)
        self.meet("over")
        time.sleep(1.0 if self.rank == 0 else 0.0)  # it holds the store
        os._exit(0)
