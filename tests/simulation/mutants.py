"""Faults planted in the shipped code, one at a time: does a swarm notice?

    python -m tests.simulation.mutants [--seconds 30] [--only NAME]

Each mutant replaces a text of one module. A swarm runs over it until a seed fails, for so many
seconds of one processor at most. Exit code 1: one was not found that should be.
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.machinery
import importlib.util
import multiprocessing
import sys
import time
import tomllib
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Mutant:
    """``old`` of a module becomes ``new``."""

    name: str
    module: str  # below latecomer.runtime
    old: str
    new: str


TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
MUTANTS = [Mutant(**row) for row in TABLE["mutant"]]

OF_THEIR_OWN = ("optireduce", "pipeline")
"""Kinds of executions whose modules are run in no other; they run those of the others, too."""

WITH_SAME_BITS = "samebits"
"""Its modules are run where sums have the same bits only."""

KNOWN = {
    "a copy does not wait until its place is read": "a sum that comes back depends on what is read",
    "calls come after what is submitted": "all calls are of one function, which takes no argument",
    "a handshake takes any token": "no stranger calls in a simulation",
    "a verdict is not acknowledged": "it is sent five times, which costs some datagrams",
    "a failure does not end a repetition": "Gloo's own time limit does, too",
    "a sum that failed holds up repetitions": "it fails with the group only, and so do all others",
    "a wait for a repetition is not under watch": "Gloo's own time limit ends it, too",
    "an acknowledgement is not counted": "it is sent five times, which costs some datagrams",
    "who knows a verdict is told it all the same": "that costs some datagrams",
}
"""Mutants that no swarm can find, and why."""


class _Changed(importlib.abc.MetaPathFinder):
    """Finds the module of a mutant, changed."""

    def __init__(self, mutant: Mutant) -> None:
        self._mutant = mutant
        self._name = f"latecomer.runtime.{mutant.module}"

    def find_spec(
        self, name: str, path: object, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """As the import system asks for it."""
        if name != self._name:
            return None
        file = file_of(self._mutant)
        loader = _Loader(file, self._mutant)
        return importlib.util.spec_from_file_location(name, file, loader=loader)


class _Loader(importlib.abc.SourceLoader):
    def __init__(self, file: Path, mutant: Mutant) -> None:
        self._file = file
        self._mutant = mutant

    def get_filename(self, fullname: str) -> str:
        return str(self._file)

    def get_data(self, path: str | bytes) -> bytes:
        return changed(self._mutant).encode()


def file_of(mutant: Mutant) -> Path:
    """The file of its module."""
    return ROOT / "runtime" / (mutant.module.replace(".", "/") + ".py")


def changed(mutant: Mutant) -> str:
    """The module's text with the fault in it."""
    text = file_of(mutant).read_text()
    assert text.count(mutant.old) >= 1, f"{mutant.name}: {mutant.module} has no such text any more"
    return text.replace(mutant.old, mutant.new, 1)


def hunted(mutant: Mutant, seconds: float) -> tuple[int | None, int, float, str]:
    """The first seed that fails (None: none has), how many were tried, how long, and what fails."""
    sys.meta_path.insert(0, _Changed(mutant))
    from tests.simulation.campaign import allreduces
    from tests.simulation.plan import KINDS, drawn
    from tests.simulation.swarm import be_quiet, run_stretch

    be_quiet()
    own, _, _ = mutant.module.partition(".")
    is_own = own in OF_THEIR_OWN
    kinds = tuple(kind for kind in KINDS if (kind == own if is_own else kind not in OF_THEIR_OWN))

    began_s = time.process_time()
    seed = 0
    while time.process_time() - began_s < seconds:
        if own == WITH_SAME_BITS and drawn(seed, kinds).bits != "same":
            seed += 1
            continue
        text = ""
        try:
            stretch = run_stretch(allreduces(kinds), range(seed, seed + 1), end_s=float("inf"))
            if stretch.failing:
                _, text = stretch.failing[0]
        except Exception as error:  # ranks that exchange what does not fit: no execution goes on
            text = repr(error)
        if text:
            return seed, seed + 1, time.process_time() - began_s, text.partition("\n")[0][:90]
        seed += 1
    return None, seed, time.process_time() - began_s, ""


def main() -> int:
    """Hunt all, and print a table."""
    parser = argparse.ArgumentParser(prog="tests.simulation.mutants", description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0, help="of a processor, for each")
    parser.add_argument("--only", help="mutants whose name has this in it")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    mutants = [mutant for mutant in MUTANTS if not options.only or options.only in mutant.name]

    found = 0
    missed = []
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.processes, mp_context=context, max_tasks_per_child=1) as pool:
        running = [pool.submit(hunted, mutant, options.seconds) for mutant in mutants]
        for mutant, done in zip(mutants, running, strict=True):
            seed, tried, took_s, text = done.result()
            verdict = f"seed {seed}" if seed is not None else f"not in {tried} seeds"
            row = f"{mutant.module:<26} {mutant.name:<50} {verdict:<18} {took_s:5.1f} s  {text}"
            print(row, flush=True)
            found += seed is not None
            if seed is None and mutant.name not in KNOWN:
                missed.append(mutant.name)
    print(f"\n{found} of {len(mutants)} found")
    return bool(missed)


if __name__ == "__main__":
    from tests.simulation.mutants import main as importable  # what its processes run has a name

    sys.exit(importable())
