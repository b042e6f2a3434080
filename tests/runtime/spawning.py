"""Runs a function on n processes, each a rank, with a deadline; reports what each one returned."""

from __future__ import annotations

import functools
import importlib
import inspect
import os
import subprocess
import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from latecomer.runtime.network.processes import run

PATIENCE = 5
"""How many times slower a machine may be that has other work; against hangs, no claim on speed."""
IMPORTED = [
    "hypothesis",
    "networkx",
    "ortools.sat.python.cp_model",
    "pytest",
    "latecomer.runtime.optireduce.udp.compiled.placement",
    "latecomer.runtime.pipeline",
    "latecomer.runtime.selftest.suite",
    "latecomer.synth.arrivals.generate",
    "latecomer.synth.pipeline",
    "torch._dynamo",  # otherwise imported by a process's first optimizer or DDP, in 2 s
    "torch.distributed.pipelining",
]
"""What is imported once, by the server that forks the processes, and not by each of them."""


@dataclass
class Outcome:
    """What a rank did: its value, or the text of its exception, or (neither) it died."""

    value: Any = None
    error: str = ""
    finished: bool = False


def _call(store, rank, size, say, body, *args):
    """Hand a rank to the body of a test, which makes no use of ``say``."""
    return body(rank, size, store, *args)


def spawn(body, size, *args, timeout_s=90.0, victims=()):
    """Call ``body(rank, size, store, *args)`` on each of ``size`` processes.

    Returns one outcome per rank; ranks still running at the deadline,
    ``PATIENCE`` times ``timeout_s``, are killed and unfinished.
    Nobody waits for ``victims``: they are killed when all others have finished.
    """
    outcomes = [Outcome() for _ in range(size)]
    reports = run(
        _call,
        size,
        body,
        *args,
        timeout_s=60.0 * PATIENCE,
        deadline_s=timeout_s * PATIENCE,
        victims=victims,
        preload=IMPORTED,
    )
    for rank, kind, value in reports:
        if kind == "done":
            outcomes[rank] = Outcome(value=value, finished=True)
        elif kind == "failed":
            outcomes[rank] = Outcome(error=value, finished=True)
    return outcomes


def values(outcomes):
    """The values of all ranks; fails with the first rank's traceback if there is one."""
    for rank, outcome in enumerate(outcomes):
        assert outcome.finished, f"rank {rank} died or hung"
        assert not outcome.error, f"rank {rank}:\n{outcome.error}"
    return [outcome.value for outcome in outcomes]


def on_ranks(size, timeout_s=90.0, victims=()):
    """Makes ``body(rank, size, store, ...)`` a test that every rank runs; destroys its group.

    None may fail but the victims, which nobody waits for: ``victims``, or the test's argument
    ``victim``. ``size`` None: as many ranks as its argument ``schedule`` is for.
    """

    def decorate(body):
        @functools.wraps(body)
        def test(**arguments):
            ranks = arguments["schedule"].ranks if size is None else size
            lost = {*victims, arguments.get("victim")}
            outcomes = spawn(
                _test,
                ranks,
                body.__module__,
                body.__name__,
                arguments,
                timeout_s=timeout_s,
                victims=lost,
            )
            values([outcome for rank, outcome in enumerate(outcomes) if rank not in lost])

        # pytest has to provide all arguments but the first three: rank, size, store
        from_pytest = list(inspect.signature(body).parameters.values())[3:]
        test.__signature__ = inspect.Signature(from_pytest)
        return test

    return decorate


def _test(rank, size, store, module, name, arguments):
    """A rank's part of a test, which is found by its module and name."""
    body = inspect.unwrap(getattr(importlib.import_module(module), name))

    # On a busy machine processes start many seconds apart, which no time-out of a test is about.
    together(store, rank, size, "every rank has its test")

    body(rank, size, store, **arguments)
    if dist.is_initialized():
        dist.destroy_process_group()


def together(store, rank, size, name):
    """Wait until all ranks are here, within the store's time-out; a name serves once."""
    store.set(f"{name} {rank}", "")
    store.wait([f"{name} {peer}" for peer in range(size)])


def default_group(backend, rank, size, store, *, name="default", timeout_s=60.0):
    """Make torch's default group of all ranks.

    Groups of one test have the store in common, and so has what a test makes beside them: their
    names keep them apart.
    """
    dist.init_process_group(
        backend,
        store=dist.PrefixStore(name, store),
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=timeout_s),
    )


def execute(*command, cwd=None, **variables):
    """Run a command in a folder, with more environment variables.

    The commands of this Python's folder come first in ``PATH``.
    """
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"} | variables

    return subprocess.run(
        command,
        cwd=cwd,
        env=environment,
        timeout=500,  # against hangs, and shorter than the time-out of a test
        check=False,
        capture_output=True,
        text=True,
    )


def python(*arguments, cwd=None, **variables):
    """Run Python, as :func:`execute` does."""
    return execute(sys.executable, *arguments, cwd=cwd, **variables)
