"""One replica of a training that goes on when another one dies: what examples/elastic.py starts.

    python examples/train_elastic.py --store HOST:PORT --replica 2 --replicas 4

``HOST:PORT`` is a ``torch.distributed.TCPStore`` that another process serves. A replica that has
died is started again by the same line. Prints a line of JSON for each step, with a hash of all
parameters, and in the end that hash again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from pathlib import Path

import torch
import torch._dynamo  # optimizers load it in their first step, in which others would wait for that
from torch import nn

from latecomer import elastic

MICROBATCHES = 8
SAMPLES = 32  # in a microbatch


def microbatch_of(step: int, microbatch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The same samples, whichever replica asks."""
    dice = torch.Generator().manual_seed(1000 * step + microbatch)
    inputs = torch.randn(SAMPLES, 64, generator=dice)
    return inputs, inputs.square().sum(dim=1).gt(64.0).long()


def model_of(width: int) -> nn.Module:
    """A network with 67 parameters for each unit, the same ones in every process."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 2))


def tell(**what: object) -> None:
    print(json.dumps({"at_s": time.time(), **what}), flush=True)


def hash_of(model: nn.Module) -> str:
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", required=True)
    parser.add_argument("--replica", type=int, required=True)
    parser.add_argument("--replicas", type=int, required=True)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--bits", choices=("any", "same"), default="same")
    parser.add_argument("--silence", type=float, default=0.3, help="seconds")
    parser.add_argument("--width", type=int, default=512, help="units of the hidden layer")
    parser.add_argument("--compute", type=float, default=0.005, help="seconds for a microbatch")
    parser.add_argument("--late", type=float, default=0.0, help="seconds more in each step")
    parser.add_argument("--until", type=Path, help="be late in the middle until this file is there")
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = model_of(options.width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    tell(begins=options.replica, pid=os.getpid())
    job = elastic.Job(
        model,
        optimizer,
        store=options.store,
        replica=options.replica,
        replicas=options.replicas,
        microbatches=MICROBATCHES,
        bits=options.bits,
        silence_s=options.silence,
        timeout_s=60.0,
        join_timeout_s=20.0,
    )
    for step in job.steps(options.steps):
        for microbatch in step:
            inputs, classes = microbatch_of(step.number, microbatch)
            loss = nn.functional.cross_entropy(model(inputs), classes)
            loss.backward()
            time.sleep(options.compute)
        time.sleep(options.late)
        while options.until and step.number == options.steps // 2 and not options.until.exists():
            time.sleep(0.01)
        optimizer.step()
        tell(
            step=step.number,
            view=job.view.number,
            replicas=job.view.replicas,
            hash=hash_of(model),
        )
    job.close()
    tell(hash=hash_of(model))


if __name__ == "__main__":
    main()
