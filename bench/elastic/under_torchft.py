"""One replica on the lab under torchft, over Gloo; it tells of every committed step.

    python -m bench.elastic.under_torchft --replica 2 --address 10.77.0.3 --lighthouse http://HOST:PORT

A probe that is summed in every step says who has taken part in it: see ``bench.torchft_replica``.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time

import torch
import torch._dynamo  # optimizers load it in their first step, in which others would wait for that

from bench.torchft import LEAST
from bench.torchft_replica import Managed, process_group
from examples.train_elastic import hash_of, microbatch_of, model_of, tell


def train(options: argparse.Namespace) -> None:
    """Train until this process is ended."""
    model = model_of(options.width)
    managed = Managed(
        model,
        torch.optim.AdamW(model.parameters(), lr=1e-3),
        group=process_group("gloo", late=-1, timeout_s=options.timeout),
        replica=options.replica,
        address=options.address,
        lighthouse=options.lighthouse,
        timeout_s=options.timeout,
        least=LEAST,
    )
    manager = managed.manager
    tell(begins=options.replica, pid=os.getpid())
    while True:
        loss = managed.forward(*microbatch_of(manager.current_step(), options.replica))
        time.sleep(options.compute)
        loss.backward()
        is_committed, probe = managed.commit(elements=1)
        if not is_committed:
            continue

        number = manager.current_step()
        replicas = [each for each in range(probe.bit_length()) if probe >> each & 1]
        if number > 1 and len(replicas) != manager.num_participants():  # one brings the first step
            sys.exit(f"step {number}: {replicas} are in a sum of {manager.num_participants()}")
        tell(step=number, view=manager._quorum_id, replicas=replicas, hash=hash_of(model))


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replica", type=int, required=True)
    parser.add_argument("--address", required=True, help="of this host")
    parser.add_argument("--lighthouse", required=True)
    parser.add_argument("--width", type=int, default=512, help="units of the hidden layer")
    parser.add_argument("--compute", type=float, default=0.005, help="seconds for a microbatch")
    parser.add_argument("--timeout", type=float, default=12.0, help="of Gloo, in seconds")
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    torch.set_num_threads(1)
    train(parser.parse_args())


if __name__ == "__main__":
    main()
