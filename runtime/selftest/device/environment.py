"""What the machine is, for whoever reads the report: asked of torch and of the driver.

Nothing here fails: what can't be found out is reported with the reason.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from typing import Any

import msgspec
import torch
import torch.distributed as dist

COMMAND_S = 20.0  # the driver's own tool may hang where a GPU has fallen off the bus
VARIABLES = ("NCCL_", "TORCH_NCCL_", "TORCH_SYMM", "CUDA_", "LATECOMER_", "TRITON_")


class Gpu(msgspec.Struct, frozen=True):
    """One GPU, and the GPUs whose memory it reaches."""

    name: str
    capability: str
    memory_bytes: int
    processors: int
    peers: list[int]


class Environment(msgspec.Struct, frozen=True):
    """The machine and what runs on it; versions that can't be found are reasons in brackets."""

    machine: str
    versions: dict[str, str]
    gpus: list[Gpu]
    links: str
    variables: dict[str, str]

    def lines(self) -> list[str]:
        """For people."""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        lines = [f"machine  {self.machine}", f"versions {versions}"]
        for number, gpu in enumerate(self.gpus):
            reach = ", ".join(map(str, gpu.peers)) or "none"
            size = f"{gpu.memory_bytes / 2**30:.0f} GiB, {gpu.processors} processors"
            lines.append(f"GPU {number}    {gpu.name}, sm_{gpu.capability}, {size}; peers: {reach}")
        lines += [f"  {line}" for line in self.links.splitlines()]
        lines += [f"variable {name}={value}" for name, value in self.variables.items()]
        return lines


def inspect() -> Environment:
    """Ask for all of it, on one rank."""
    driver = "[no CUDA device]"
    links = ""
    if torch.cuda.is_available():
        driver = _command("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
        links = _command("nvidia-smi", "topo", "-m")
    versions = {
        "torch": str(torch.__version__),
        "CUDA": torch.version.cuda or "[torch was built without]",
        "NCCL": _nccl() if dist.is_nccl_available() else "[torch was built without]",
        "triton": _installed("triton"),
        "driver": driver.splitlines()[0] if driver else "[nothing said]",
        "python": platform.python_version(),
    }
    variables = {
        name: value for name, value in sorted(os.environ.items()) if name.startswith(VARIABLES)
    }
    return Environment(platform.platform(), versions, _gpus(), links, variables)


def _gpus() -> list[Gpu]:
    count = torch.cuda.device_count()
    gpus = []
    for index in range(count):
        properties = torch.cuda.get_device_properties(index)
        peers = [
            peer
            for peer in range(count)
            if peer != index and torch.cuda.can_device_access_peer(index, peer)
        ]
        gpus.append(
            Gpu(
                name=properties.name,
                capability=f"{properties.major}{properties.minor}",
                memory_bytes=properties.total_memory,
                processors=properties.multi_processor_count,
                peers=peers,
            )
        )
    return gpus


def _nccl() -> str:
    ask_version: Any = torch.cuda.nccl.version  # untyped
    version = ask_version()
    return ".".join(map(str, version)) if isinstance(version, tuple) else str(version)


def _installed(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "[not installed]"


def _command(*words: str) -> str:
    try:
        process = subprocess.run(
            words, capture_output=True, text=True, timeout=COMMAND_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"[{error}]"
    return process.stdout.strip()
