"""``python -m runtime profile`` under ``torchrun``: measures this job's links and writes a file."""

from __future__ import annotations

import contextlib
import os
from datetime import timedelta
from pathlib import Path

import torch

from runtime.network.store_exchange import hear, tell
from runtime.policy import profile as profiles
from runtime.policy.cost_model import Profile
from runtime.policy.dispatcher import AllReduceDispatcher
from runtime.policy.options import Options
from runtime.torch_versions import PrefixStore, Store, TCPStore
from verify.errors import ArgumentError, RankFailure

LEAVE_S = 5.0
PLACE = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def run(out: Path, *, timeout_s: float = 300.0) -> Profile:
    """Measure on all ranks of this job; rank 0 writes the profile to ``out``.

    Raises:
        ArgumentError: this process is not a rank of a job.
        RankFailure: ranks that did not join within ``timeout_s``, or died.
    """
    for name in PLACE:
        if name not in os.environ:
            remedy = "Start it with: torchrun --nproc-per-node N -m runtime profile"
            raise ArgumentError(name, None, "must be set: there is no job to measure", remedy)
    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = PrefixStore("latecomer/profile", _store(rank, timeout_s))
    staying = set(range(size))
    try:
        reducer = AllReduceDispatcher(
            store, rank, size, options=Options("native"), timeout_s=timeout_s
        )
        if rank == 0:
            profiles.write(reducer.profile, out)
        reducer.close()
        return reducer.profile
    except RankFailure as failure:
        staying -= set(failure.ranks)
        raise
    finally:
        with contextlib.suppress(RankFailure):  # of the store: what came before says more
            tell(store, f"done/{rank}", "", LEAVE_S)
            if rank == 0:  # the store may be its own: it leaves last
                hear(store, {peer: f"done/{peer}" for peer in staying}, LEAVE_S)


def _store(rank: int, timeout_s: float) -> Store:
    """The agent's store under ``torchrun``; else rank 0 has it. Waits for no rank but its host."""
    agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    try:
        return TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            None,
            rank == 0 and not agent,
            timedelta(seconds=timeout_s),
            wait_for_workers=False,
        )
    except RuntimeError as error:
        ranks = [] if agent else [0]
        reason = str(error).split("\n", 1)[0]
        raise RankFailure(ranks, f"the store of the job can't be reached: {reason}") from None
