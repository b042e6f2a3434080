"""The ladder of folders: who may import whom.

    python -m tests.ladder

prints each import that breaks one of these rules, and exits with 1 if there is one. Names are
shown without the ``latecomer.`` before them.

- Floors. ``verify`` imports no other floor, ``synth`` only ``verify``. ``runtime`` imports
  ``verify``, and ``synth`` only through :data:`DOORS_TO_SYNTH`. None imports tests, benchmarks, or
  what lies directly in ``latecomer``, which hands on names and has the command.
- ``verify`` and ``synth`` do without torch: a proof takes no training framework.
- Rungs. What lies directly in ``runtime`` imports only what is on a lower rung of
  :data:`RUNGS_OF_RUNTIME`, or beside it. What a lower rung needs of a higher one is handed in.
- No circles: neither among modules, nor among the files and folders that lie in one folder, at any
  depth.
- Names of torch that are private are imported by ``runtime.torch_versions`` alone.
- Clocks, threads and sockets are asked of ``runtime.host`` (:data:`OF_THE_HOST`), so that the code
  runs on a simulated host, too.

Imports within functions and for type checking count as all others do.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import networkx as nx

ROOT = Path(__file__).resolve().parents[1]
FLOORS = ("verify", "synth", "runtime")
OUTSIDE = ("bench", "examples", "proofs", "src", "tests")

FLOORS_BELOW = {
    "verify": (),
    "synth": ("verify",),
    "runtime": ("verify", "synth"),
}
"""The floors that each floor may import (``runtime`` imports ``synth`` through doors only)."""

DOORS_TO_SYNTH = {
    "runtime.device.predict": "predictions use the cost model of synth",
    "runtime.executor.closed_form": "a mode makes this rank's part of the closed form itself",
    "runtime.optireduce.engine": "OptiReduce's transpose for this number of ranks",
    "runtime.pipeline.agent": "adaptation plans again when a link has changed",
    "runtime.pipeline_command": "the demo plans the schedule that it runs",
    "runtime.policy.candidates": "a mode's candidates, and what they cost",
    "runtime.simulation.command": "quantities as people type them",
    "runtime.simulation.report": "and as they are printed",
    "runtime.whatif.command": "quantities as people type them",
    "runtime.whatif.report": "and as they are printed",
    "runtime.whatif.pipeline_plans": "what a recorded pipeline could run instead is planned",
    "runtime.selftest": "the self-test runs schedules of all kinds",
}
"""What of ``runtime`` imports ``synth``, and why; all else executes what is handed in."""

RUNGS_OF_RUNTIME = (
    ("__init__",),
    ("whatif",),
    ("explain", "pipeline_command", "profile_command", "simulation"),
    ("selftest",),
    ("backend", "ddp", "elastic", "pipeline", "torchft"),
    ("config",),
    ("optireduce", "policy"),
    ("device", "process_group", "samebits"),
    ("executor",),
    ("health", "telemetry"),
    ("network", "work"),
    ("at_exit", "compiling"),
    ("collective", "host"),
    ("torch_versions",),
)
"""What lies directly in ``runtime``, from the highest rung to the lowest."""

OF_THE_HOST = ("asyncio", "queue", "select", "selectors", "socket", "threading", "time")
HAVE_THEIR_OWN = {
    "runtime.host": "it is the host",
    "runtime.simulation.threads": "raises queue.Empty in place of the real queue",
    "runtime.optireduce.udp.compiled.choice": "tries system calls before the first use",
    "runtime.optireduce.udp.compiled.sockets": "hands addresses to system calls",
}
"""Modules of ``runtime`` that import one of these all the same, and why."""
TYPES_OF_THE_HOST = ("Condition", "Event", "Queue", "SimpleQueue", "Socket", "Thread")
"""What ``runtime.host`` has for annotations; what is made is asked of the host."""

PRIVATE_NAME_OF_TORCH = re.compile(r"torch\..*\b_")


@dataclass(frozen=True, order=True)
class Import:
    """One module that imports another (both by their dotted names)."""

    importer: str
    imported: str

    def __str__(self) -> str:
        return f"{self.importer} imports {self.imported}"


def modules(*folders: str, root: Path = ROOT) -> dict[str, Path]:
    """Every module of ``folders``, by its dotted name (a package by its folder's).

    Links are not followed: what lies in ``src/latecomer`` itself is ``src.latecomer``.
    """
    paths = {}
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            dotted = ".".join(path.relative_to(root).with_suffix("").parts)
            paths[dotted.removesuffix(".__init__")] = path
    return paths


def imported_names(path: Path) -> Iterator[str]:
    """What a module imports anywhere: ``a.b`` for ``import a.b`` and for ``from a import b``."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield _shown(alias.name)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield _shown(f"{node.module}.{alias.name}")


def _shown(name: str) -> str:
    """A module of a floor without its ``latecomer.``; one of latecomer itself by where it lies."""
    parts = name.split(".")
    if parts[0] != "latecomer":
        return name
    if parts[1:] and parts[1] in FLOORS:
        return ".".join(parts[1:])
    return f"src.{name}"


def imports(paths: dict[str, Path]) -> list[Import]:
    """Every import among the modules of ``paths``."""
    edges = set()
    for importer, path in paths.items():
        for name in imported_names(path):
            imported = name if name in paths else name.rpartition(".")[0]
            if imported in paths and imported != importer:
                edges.add(Import(importer, imported))
    return sorted(edges)


def floors_broken(paths: dict[str, Path], edges: Iterable[Import]) -> Iterator[str]:
    """Imports that go up, or to another floor beside the doors."""
    for edge in edges:
        floor = edge.importer.partition(".")[0]
        floor_imported = edge.imported.partition(".")[0]
        if floor not in FLOORS or floor_imported == floor:
            continue

        if floor_imported not in FLOORS_BELOW[floor]:
            yield f"{edge}, which is not below it"
        elif (floor, floor_imported) == ("runtime", "synth") and not _is_door(edge.importer):
            yield f"{edge}, and is no door to it"

    for importer, path in paths.items():
        if importer.partition(".")[0] not in ("verify", "synth"):
            continue
        for name in imported_names(path):
            if name.partition(".")[0] == "torch":
                yield f"{importer} imports {name}: proofs and schedules do without torch"


def _is_door(module: str) -> bool:
    """Whether a module of ``runtime`` is a door to ``synth``, or in one."""
    return any(module == door or module.startswith(f"{door}.") for door in DOORS_TO_SYNTH)


def rungs_broken(edges: Iterable[Import]) -> Iterator[str]:
    """Imports within ``runtime`` that go up, and entries without a rung."""
    rung_of = {}
    for height, entries in enumerate(reversed(RUNGS_OF_RUNTIME)):
        for entry in entries:
            rung_of[entry] = height

    for edge in edges:
        if not (_in_runtime(edge.importer) and _in_runtime(edge.imported)):
            continue

        importer = _entry_of(edge.importer, folder="runtime")
        imported = _entry_of(edge.imported, folder="runtime")
        without_rung = [entry for entry in (importer, imported) if entry not in rung_of]
        if without_rung:
            yield f"{edge}: runtime.{without_rung[0]} is on no rung"
        elif rung_of[imported] > rung_of[importer]:
            yield f"{edge}, which is on a higher rung"


def _in_runtime(module: str) -> bool:
    return module.partition(".")[0] == "runtime"


def _entry_of(module: str, folder: str) -> str:
    """The file or folder directly in ``folder`` in which a module lies."""
    below = module.removeprefix(folder).removeprefix(".")
    return below.partition(".")[0] or "__init__"


def circles(edges: Iterable[Import]) -> Iterator[str]:
    """Files and folders of one folder that import each other, at any depth; and such modules.

    A package's own ``__init__`` is left out among its entries: it is the door to them.
    """
    edges = list(edges)
    graphs: dict[str, nx.DiGraph] = {"": nx.DiGraph()}
    for edge in edges:
        graphs[""].add_edge(edge.importer, edge.imported)
        for folder in _common_folders(edge):
            importer = _entry_of(edge.importer, folder)
            imported = _entry_of(edge.imported, folder)
            if importer != imported and "__init__" not in (importer, imported):
                graphs.setdefault(folder, nx.DiGraph()).add_edge(importer, imported)

    for folder, graph in sorted(graphs.items()):
        for component in nx.strongly_connected_components(graph):
            if len(component) > 1:
                yield f"in {folder or 'modules'}: a circle of {', '.join(sorted(component))}"


def _common_folders(edge: Import) -> Iterator[str]:
    """The folders of the floors that hold both ends of an import, from the outermost."""
    parts = edge.importer.split(".")
    for depth in range(1, len(parts)):
        folder = ".".join(parts[:depth])
        if parts[0] in FLOORS and edge.imported.startswith(f"{folder}."):
            yield folder


def private_torch(paths: dict[str, Path]) -> Iterator[str]:
    """Imports of torch's private modules and names, outside of ``runtime.torch_versions``."""
    for importer, path in paths.items():
        if importer == "runtime.torch_versions":
            continue
        for name in imported_names(path):
            if PRIVATE_NAME_OF_TORCH.match(name):
                yield f"{importer} imports {name}: a private name, for runtime.torch_versions"


def past_the_host(paths: dict[str, Path]) -> Iterator[str]:
    """Imports in ``runtime`` of what the host has."""
    for importer, path in paths.items():
        if not _in_runtime(importer) or importer in HAVE_THEIR_OWN:
            continue
        for name in imported_names(path):
            if name.partition(".")[0] in OF_THE_HOST:
                yield f"{importer} imports {name}: ask runtime.host for it"
        for name in _made_of_a_type(path):
            yield f"{importer} makes a {name}: ask runtime.host for it"


def _made_of_a_type(path: Path) -> Iterator[str]:
    """Calls of ``Queue`` or ``Queue[...]`` where the host's is meant, and of its like."""
    tree = ast.parse(path.read_text())
    imported = {alias.name for node in ast.walk(tree) for alias in _from_the_host(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func.value if isinstance(node.func, ast.Subscript) else node.func
            if isinstance(called, ast.Name) and called.id in imported & set(TYPES_OF_THE_HOST):
                yield called.id


def _from_the_host(node: ast.AST) -> list[ast.alias]:
    is_from_it = isinstance(node, ast.ImportFrom) and node.module == "latecomer.runtime.host"
    return node.names if is_from_it else []


def broken_rules() -> list[str]:
    """A line for each import of the project that breaks a rule."""
    floors = modules(*FLOORS)
    everything = floors | modules(*OUTSIDE)
    edges = imports(everything)
    return [
        *floors_broken(floors, edges),
        *rungs_broken(edges),
        *circles(edges),
        *private_torch(floors),
        *past_the_host(floors),
    ]


def main() -> None:
    """Print what breaks the rules; exit with 1 if something does."""
    lines = broken_rules()
    for line in lines:
        print(line)
    print(f"{len(lines)} imports or circles break the ladder" if lines else "the ladder holds")
    sys.exit(bool(lines))


if __name__ == "__main__":
    main()
