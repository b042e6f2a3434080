"""What keeps replicas on the lab together: this project, restarts from checkpoints, torchft."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from bench.elastic.fleet import MANY_STEPS, StepTold, command, serves_store
from bench.lab.plan import SWITCH_ADDRESS, address

HOSTS = 8
MICROBATCHES = 8  # in a step: one for each host, as long as nobody is missing
PORT = 29_600
WHERE = f"{SWITCH_ADDRESS}:{PORT}"
SERVES_LIGHTHOUSE = """
import sys, time
from bench.torchft import served_lighthouse
served = served_lighthouse(sys.argv[1])
print(served.address(), flush=True)
time.sleep(1e6)
"""


@dataclass(frozen=True)
class Setting:
    """What is trained, by each system.

    Attributes:
        width: units of the hidden layer; 67 parameters each.
        compute_s: for a microbatch, besides what the model takes.
        silence_s: of ``latecomer.elastic.Job``.
        save_every: steps from one checkpoint to the next.
        torchft_timeout_s: how long Gloo waits under torchft.
        folder: for checkpoints, which all hosts see.
    """

    width: int
    compute_s: float
    silence_s: float
    save_every: int
    torchft_timeout_s: float
    folder: Path


@dataclass(frozen=True)
class System:
    """How replicas are kept together.

    Attributes:
        name: in the table.
        command: of the replica on a host.
        served: commands on the switch, which no host's death takes away; each prints a line.
        restarts_itself: it starts a killed process again, and needs nobody for that.
        repeats: steps are done again after a death.
        worth: microbatches of a step.
    """

    name: str
    command: Callable[[int], list[str]]
    served: list[list[str]] = field(default_factory=list)
    restarts_itself: bool = False
    repeats: bool = False
    worth: Callable[[StepTold], int] = lambda step: MICROBATCHES


def elastic(setting: Setting) -> System:
    """``latecomer.elastic.Job``, as ``examples/train_elastic.py`` uses it."""

    def of_host(host: int) -> list[str]:
        words = ["--store", WHERE, "--replica", host, "--replicas", HOSTS]
        words += ["--steps", MANY_STEPS, "--silence", setting.silence_s]
        words += ["--width", setting.width, "--compute", setting.compute_s]
        return command(words)

    return System("latecomer.elastic", of_host, served=[serves_store(SWITCH_ADDRESS, PORT)])


def checkpoints(setting: Setting) -> System:
    """torch's elastic agents, which restart all workers from the last checkpoint."""

    def of_host(host: int) -> list[str]:
        words = ["--endpoint", WHERE, "--address", address(host), "--hosts", HOSTS]
        words += ["--folder", setting.folder, "--save-every", setting.save_every]
        words += ["--width", setting.width, "--compute", setting.compute_s]
        return _module("bench.elastic.restarting", words)

    return System(
        "restart from checkpoint",
        of_host,
        served=[serves_store(SWITCH_ADDRESS, PORT)],
        restarts_itself=True,
        repeats=True,
    )


def torchft(setting: Setting) -> System:
    """torchft over Gloo; a step is worth as many microbatches as replicas have taken part."""

    def of_host(host: int) -> list[str]:
        words = ["--lighthouse", f"http://{WHERE}", "--address", address(host), "--replica", host]
        words += ["--width", setting.width, "--compute", setting.compute_s]
        return _module(
            "bench.elastic.under_torchft", [*words, "--timeout", setting.torchft_timeout_s]
        )

    return System(
        "torchft, Gloo",
        of_host,
        served=[[sys.executable, "-c", SERVES_LIGHTHOUSE, f"0.0.0.0:{PORT}"]],
        worth=lambda step: len(step.replicas),
    )


SYSTEMS = {"elastic": elastic, "checkpoints": checkpoints, "torchft": torchft}


def _module(name: str, words: Iterable[object]) -> list[str]:
    """A command that runs a module with these options."""
    return [sys.executable, "-m", name, *map(str, words)]
