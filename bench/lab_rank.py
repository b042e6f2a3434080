"""One rank of a benchmark on the lab, and how long an all-reduce takes from the last arrival.

``bench.lab_completion``, ``bench.lab_machines`` and ``bench.lab_predictions`` make their own ranks
of it. torch is imported by the ranks alone: who builds the lab has no use for it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

NATIVE = "Gloo"
TIMEOUT_S = 120.0


class LabRank:
    """One rank, and its executor with all schedules of a folder, if there are any.

    Args:
        folder: of the schedule files.
        rate_mbit: of a port, by which lateness is measured out.

    Attributes:
        rank, ranks: this rank, and how many there are.
        store: by which the ranks have met, for what is made besides.
        schedules: the names of the schedules, which are those of their files.
    """

    def __init__(self, folder: Path, rate_mbit: float) -> None:
        import torch
        import torch.distributed as dist
        from torch._C._distributed_c10d import PrefixStore, TCPStore

        from latecomer.runtime import Executor, load

        torch.set_num_threads(1)
        timeout = timedelta(seconds=TIMEOUT_S)
        dist.init_process_group("gloo", timeout=timeout)
        self.rank = dist.get_rank()
        self.ranks = dist.get_world_size()
        self._rate_mbit = rate_mbit

        host = os.environ["MASTER_ADDR"]
        port = int(os.environ["MASTER_PORT"]) + 1
        self.store = TCPStore(host, port, self.ranks, self.rank == 0, timeout)
        paths = sorted(folder.glob("*.json"))
        self.schedules = [path.stem for path in paths]
        self._executor: Any = None
        if paths:
            self._executor = Executor(
                [load(path) for path in paths],
                PrefixStore("schedules", self.store),
                self.rank,
                self.ranks,
                timeout_s=TIMEOUT_S,
            )

    def port_s(self, nbytes: int) -> float:
        """How long a port needs for so many bytes."""
        return nbytes * 8e-6 / self._rate_mbit

    def run(self, way: str, tensor: Any) -> None:
        """Sum ``tensor`` over all ranks, by Gloo or a schedule; returns when that is done."""
        import torch.distributed as dist

        if way == NATIVE:
            dist.all_reduce(tensor)
        else:
            self._executor.submit(tensor, schedule=self.schedules.index(way)).wait()

    def if_last(self, late_s: float) -> float:
        """``late_s`` on the last rank, nothing on the others."""
        return late_s if self.rank == self.ranks - 1 else 0.0

    def from_last_arrival_s(self, run: Callable[[Any], None], nbytes: int, late_s: float) -> float:
        """Seconds from the last arrival to the last rank's result; SystemExit if a sum is wrong.

        Args:
            run: sums a tensor over all ranks, in place.
            nbytes: of the tensor, of float32.
            late_s: by how much this rank comes later than it could.
        """
        import torch

        numbers = self.numbers(nbytes)
        tensor = numbers * (self.rank + 1)
        expected = numbers * (self.ranks * (self.ranks + 1) // 2)
        return self.timed_s(lambda: run(tensor), lambda: torch.equal(tensor, expected), late_s)

    def numbers(self, nbytes: int) -> Any:
        """Whole numbers as float32, of which sums over all ranks are exact."""
        import torch

        return torch.arange(nbytes // 4, dtype=torch.float32) % 251

    def timed_s(
        self, call: Callable[[], None], is_right: Callable[[], bool], late_s: float = 0.0
    ) -> float:
        """Seconds of a collective from the last arrival to the last rank's result.

        SystemExit if a result is not right.
        """
        import torch.distributed as dist

        dist.barrier()
        if late_s > 0:
            time.sleep(late_s)

        arrived_s = time.monotonic()
        call()
        done_s = time.monotonic()

        by_rank: list[Any] = [None] * self.ranks
        dist.all_gather_object(by_rank, (arrived_s, done_s, is_right()))
        wrong_ranks = [rank for rank, (_, _, right) in enumerate(by_rank) if not right]
        if wrong_ranks:
            raise SystemExit(f"wrong result on rank(s) {wrong_ranks}")
        last_arrived_s: float = max(arrived for arrived, _, _ in by_rank)
        last_done_s: float = max(done for _, done, _ in by_rank)
        return last_done_s - last_arrived_s

    def close(self) -> None:
        """Release all connections."""
        import torch.distributed as dist

        if self._executor is not None:
            self._executor.close()
        dist.destroy_process_group()
