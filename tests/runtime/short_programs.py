"""Very short programs that don't destroy their process group, and how their ranks end.

    python -m tests.runtime.short_programs FOLDER

prints a JSON list with an :class:`End` of each rank; the folder is for their standard errors. Each
rank is a fork of this process, which has imported torch once. It ends as every program does: Python
takes its interpreter down.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from latecomer import runtime
from latecomer.runtime.optireduce.options import Options
from latecomer.runtime.policy.cost_model import AlphaBeta, Profile
from latecomer.runtime.samebits.option import Bits
from latecomer.runtime.torch_versions import PrefixStore, TCPStore
from tests.runtime.schedules import ring

RANKS = 2
PROFILE = Profile(RANKS, native=AlphaBeta(1e-2, 1e-9), schedule=AlphaBeta(1e-5, 1e-10))
LAG_S = 0.1  # rank 1 comes so much later; meanwhile rank 0's interpreter is being taken down


@dataclass(frozen=True)
class Program:
    """What all-reduces, and how the program ends while an all-reduce is under way."""

    configuration: str
    ending: str


PROGRAMS = (
    Program("auto", "falls off its end"),
    Program("auto", "calls sys.exit"),
    Program("auto", "raises"),
    Program("same bits", "falls off its end"),
    Program("same bits", "raises"),
    Program("schedule", "falls off its end"),
    Program("optireduce", "falls off its end"),
)


@dataclass(frozen=True)
class End:
    """How a rank of a program ended."""

    program: Program
    rank: int
    exit_code: int
    stderr: str


def run_rank(program: Program, rank: int, port: int, prefix: str) -> None:
    """The program of one rank."""
    if program.configuration == "schedule":
        runtime.configure(ring(RANKS))
    elif program.configuration == "optireduce":
        # not compiled: that takes ten seconds
        runtime.configure(algorithm="optireduce", options=Options(compiled="off"))
    else:
        bits: Bits = "same" if program.configuration == "same bits" else "any"
        runtime.configure(mode="auto", profile=PROFILE, bits=bits)
    store = PrefixStore(prefix, TCPStore("127.0.0.1", port))
    dist.init_process_group("latecomer", store=store, rank=rank, world_size=RANKS)

    tensor = torch.ones(1000)
    dist.all_reduce(tensor)
    time.sleep(LAG_S * rank)
    dist.all_reduce(tensor, async_op=True)

    if program.ending == "calls sys.exit":
        sys.exit(3)
    if program.ending == "raises":
        raise ValueError("on purpose")


def fork_store() -> int:
    """The port of a store in a process of its own, which no rank's end takes away."""
    port_read, port_written = os.pipe()
    parent = os.getpid()
    if os.fork() == 0:
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        os.write(port_written, str(store.port).encode())
        while os.getppid() == parent:
            time.sleep(LAG_S)
        os._exit(0)
    return int(os.read(port_read, 16))


def main(folder: str) -> None:
    """Run the programs, one after the other; in a fork: be one of its ranks."""
    port = fork_store()
    ends = []
    for number, program in enumerate(PROGRAMS):
        processes = []
        for rank in range(RANKS):
            errors = Path(folder) / f"{number}.{rank}"
            process = os.fork()
            if process == 0:
                os.dup2(os.open(errors, os.O_CREAT | os.O_WRONLY), sys.stderr.fileno())
                run_rank(program, rank, port, prefix=f"program {number}")
                return
            processes.append((process, errors))

        for rank, (process, errors) in enumerate(processes):
            _, status = os.waitpid(process, 0)
            exit_code = os.waitstatus_to_exitcode(status)
            ends.append(End(program, rank, exit_code, stderr=errors.read_text()))
    print(json.dumps([asdict(end) for end in ends]))


if __name__ == "__main__":
    main(folder=sys.argv[1])
