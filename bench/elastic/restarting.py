"""A host of a job that restarts from checkpoints: torch's elastic agent, and a worker with DDP.

    python -m bench.elastic.restarting --endpoint STORE:PORT --address 10.77.0.3 --folder DIR

What ``torchrun --nnodes 8 --rdzv-backend c10d`` does, with settings that favour it:

- The rendezvous' store is served by a process that no death takes away.
- The agent looks for its worker's end ten times a second.
- Workers are forked from the agent, which has all of torch loaded. ``torchrun`` would start Python
  anew, which takes seconds; here, where eight of them would share two cores, even more.
- Each run has a store of its own. The agents would keep the first one (torch 2.13), in which the
  next run's workers find the addresses of the last one's: then they restart again and again.
- The first rank writes checkpoints, to a folder that all hosts see and that takes no network.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch._dynamo  # which optimizers and torch's logs of errors load, when they need it first
import torch.distributed as dist
from torch import nn
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from examples.train_elastic import hash_of, microbatch_of, model_of, tell

RESTARTS = 1000
LOOK_S = 0.1


def train(options: argparse.Namespace) -> None:
    """One worker's training, from the last checkpoint on, until it is ended."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # not the agent's, which waits for Python
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=options.timeout))
    rank = dist.get_rank()
    began = [int(1000 * time.time())]
    dist.broadcast_object_list(began)  # all workers of a run call it by the same number

    model = model_of(options.width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    saved = options.folder / "checkpoint.pt"
    first_step = 0
    if saved.exists():
        state = torch.load(saved)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first_step = state["steps"]

    parallel = nn.parallel.DistributedDataParallel(model)
    tell(begins=rank, pid=os.getpid())
    for number in itertools.count(first_step):
        inputs, classes = microbatch_of(number, rank)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(parallel(inputs), classes)
        time.sleep(options.compute)
        loss.backward()
        optimizer.step()
        tell(
            step=number,
            view=began[0],
            replicas=list(range(dist.get_world_size())),
            hash=hash_of(model),
        )
        if rank == 0 and (number + 1) % options.save_every == 0:
            _save(model, optimizer, number + 1, saved)


def _save(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, path: Path) -> None:
    """Write a checkpoint; who dies in it leaves the one before."""
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "steps": steps}
    written = path.with_suffix(".new")
    torch.save(state, written)
    written.replace(path)


def main() -> None:
    """Run the agent."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--endpoint", required=True, help="of the store for the rendezvous")
    parser.add_argument("--address", required=True, help="of this host")
    parser.add_argument("--hosts", type=int, default=8)
    parser.add_argument("--folder", type=Path, required=True, help="for checkpoints")
    parser.add_argument("--save-every", type=int, default=10, metavar="STEPS")
    parser.add_argument("--width", type=int, default=512, help="units of the hidden layer")
    parser.add_argument("--compute", type=float, default=0.005, help="seconds for a microbatch")
    parser.add_argument("--timeout", type=float, default=12.0, help="of Gloo, in seconds")
    options = parser.parse_args()
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    config = LaunchConfig(
        min_nodes=options.hosts,
        max_nodes=options.hosts,
        nproc_per_node=1,
        run_id="lab",
        rdzv_backend="c10d",
        rdzv_endpoint=options.endpoint,
        rdzv_configs={"is_host": False},
        max_restarts=RESTARTS,
        monitor_interval=LOOK_S,
        start_method="fork",
        local_addr=options.address,
    )
    elastic_launch(config, train)(options)


if __name__ == "__main__":
    main()
