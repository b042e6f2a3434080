"""Kernel or fallback: each rank says what it has, and all decide alike.

Only where every rank can run the kernel does any: a rank without it would leave the others waiting.
What is decided from is what all have said, so all come to the same answer, and the same reason.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import platform
import socket
from collections.abc import Mapping
from pathlib import Path

import msgspec
import torch

from runtime.network.store_exchange import StoreExchange
from verify.errors import KernelUnavailable

LEAST_CAPABILITY = (8, 0)  # bfloat16, and the system scope as the kernel uses it
BOOT = Path("/proc/sys/kernel/random/boot_id")
NATIVE_ATOMICS = 3  # CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED: over NVLink, not over PCIe


class Capability(msgspec.Struct, frozen=True):
    """What a rank says of itself.

    Attributes:
        problem: why it can't run the kernel; empty if it can.
        machine: on which it runs; device: a name that no other device of the machine has.
        versions: of all that makes the kernel, and its settings: the same everywhere.
        reaches: the devices of the machine on which this rank's kernel can raise flags.
    """

    problem: str
    machine: str
    device: str
    versions: str
    reaches: tuple[str, ...]


def decide(said: Mapping[int, Capability]) -> str:
    """Why there will be no kernel on any rank; empty if there will be one on all."""
    for rank, each in sorted(said.items()):
        if each.problem:
            return f"rank {rank}: {each.problem}"
    first = said[0]
    for rank, each in sorted(said.items()):
        if each.machine != first.machine:
            return f"ranks 0 and {rank} are on different machines"
        if each.versions != first.versions:
            return f"rank {rank} has {each.versions}, rank 0 {first.versions}"
    for rank, each in sorted(said.items()):
        for peer, other in sorted(said.items()):
            if other.device not in each.reaches:
                return (
                    f"rank {rank} ({each.device}) can't raise flags on the device of rank {peer} "
                    f"({other.device}): no NVLink between them, or it does not see that device"
                )
    return ""


def own_capability(device: torch.device, settings: str) -> Capability:
    """What this rank can say of itself and ``device``."""
    boot = BOOT.read_text().strip() if BOOT.exists() else ""
    machine = f"{socket.gethostname()} {boot}".strip()
    try:
        triton = importlib.import_module("triton")
    except ImportError as error:
        problem = f"triton can't be imported ({error}): pip install 'latecomer[gpu]'"
        return Capability(problem, machine, "", "", ())
    versions = f"torch {torch.__version__}, triton {triton.__version__}, {settings}"
    if device.type == "cpu":
        simulated = f"CPU {platform.machine()}"
        problem = ""
        if os.environ.get("TRITON_INTERPRET") != "1":
            problem = "a CPU runs kernels in triton's interpreter alone: set TRITON_INTERPRET=1"
        return Capability(problem, machine, simulated, versions, (simulated,))
    here = torch.cuda.get_device_properties(device)
    capability = here.major, here.minor
    problem = ""
    if capability < LEAST_CAPABILITY:
        problem = f"{here.name} has compute capability {capability}, not {LEAST_CAPABILITY}"
    names = [
        str(torch.cuda.get_device_properties(i).uuid) for i in range(torch.cuda.device_count())
    ]
    index = torch.cuda.current_device() if device.index is None else device.index
    reaches = tuple(name for peer, name in enumerate(names) if _reaches(index, peer))
    return Capability(problem, machine, names[index], versions, reaches)


def agree_on_kernel(group: StoreExchange, device: torch.device, settings: str) -> None:
    """Go on only if all ranks can (collective); else KernelUnavailable, on all."""
    own = msgspec.json.encode(own_capability(device, settings)).decode()
    said = group.all_gather("capability", own)
    decode = msgspec.json.Decoder(Capability).decode
    if reason := decide({rank: decode(each) for rank, each in said.items()}):
        raise KernelUnavailable(reason)


def agree_that_done(group: StoreExchange, step: str, problem: str) -> None:
    """Go on only if no rank has a problem with ``step`` (collective); else KernelUnavailable."""
    said = group.all_gather(step, problem)
    if failed := {rank: each for rank, each in sorted(said.items()) if each}:
        reason = "; ".join(f"rank {rank}: {each}" for rank, each in failed.items())
        raise KernelUnavailable(f"{step}: {reason}")


def _reaches(index: int, peer: int) -> bool:
    """Whether device ``index`` can do atomic operations on device ``peer``, natively."""
    if index == peer:
        return True
    if not torch.cuda.can_device_access_peer(index, peer):
        return False
    value = ctypes.c_int()
    call = ctypes.CDLL("libcuda.so.1").cuDeviceGetP2PAttribute
    return call(ctypes.byref(value), NATIVE_ATOMICS, index, peer) == 0 and value.value == 1
