"""Kernel or fallback: each rank says what it has, and all decide alike.

Only where every rank can run the kernel does any: a rank without it would leave the others waiting.
What is decided from is what all have said, so all come to the same answer, and the same reason.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import platform
from collections.abc import Mapping
from pathlib import Path

import msgspec
import torch

from latecomer.runtime.executor.nccl.streams import Device
from latecomer.runtime.host import host
from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.verify.errors import KernelUnavailable

LEAST_CAPABILITY = (8, 0)  # bfloat16, and the system scope as the kernel uses it
BOOT = Path("/proc/sys/kernel/random/boot_id")  # tells machines apart that have one name
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


def decide(capabilities: Mapping[int, Capability], ranks_per_machine: int | None = None) -> str:
    """Why there will be no kernel on any rank; empty if there will be one on all.

    ``ranks_per_machine``: kernels are to reach the ranks of the own machine; default: all ranks.
    """
    if ranks_per_machine is None:
        ranks_per_machine = len(capabilities)
    by_rank = sorted(capabilities.items())
    for rank, capability in by_rank:
        if capability.problem:
            return f"rank {rank}: {capability.problem}"

    first = capabilities[0]
    for rank, capability in by_rank:
        first_there = rank // ranks_per_machine * ranks_per_machine
        if capability.machine != capabilities[first_there].machine:
            return f"ranks {first_there} and {rank} are on different machines"
        if capability.versions != first.versions:
            return f"rank {rank} has {capability.versions}, rank 0 {first.versions}"

    for rank, capability in by_rank:
        for peer, peer_capability in by_rank:
            if peer // ranks_per_machine != rank // ranks_per_machine:
                continue
            if peer_capability.device not in capability.reaches:
                return (
                    f"rank {rank} ({capability.device}) can't raise flags on the device of rank "
                    f"{peer} ({peer_capability.device}): no NVLink between them, or it does not "
                    "see that device"
                )
    return ""


def agree_on_machines(group: StoreExchange, machine: str) -> int | None:
    """How many ranks each of several machines has; None if there is one (collective).

    ``machine``: what the device is called, see ``latecomer.runtime.executor.nccl.streams.Device``.

    Raises:
        KernelUnavailable: there are several that can't have kernels inside; on all ranks.
    """
    names = group.all_gather("machine", _machine(machine))
    machine_of = [names[rank] for rank in range(group.world_size)]
    machines = list(dict.fromkeys(machine_of))
    if len(machines) == 1:
        return None
    per_machine = len(machine_of) // len(machines)
    in_order = [name for name in machines for _ in range(per_machine)]
    if machine_of != in_order or per_machine < 2:
        other = next(rank for rank, name in enumerate(machine_of) if name != machine_of[0])
        raise KernelUnavailable(
            f"ranks 0 and {other} are on different machines, and it is not so that each machine "
            "has equally many ranks, two or more, with numbers in a row"
        )
    return per_machine


def _machine(machine: str) -> str:
    """A name that no other machine has."""
    boot = BOOT.read_text().strip() if BOOT.exists() else ""
    return f"{host.name()} {boot} {machine}".strip()


def own_capability(device: torch.device, settings: str, machine: str = "") -> Capability:
    """What this rank can say of itself and ``device``; ``machine``: see ``Device``."""
    machine = _machine(machine)
    try:
        triton = importlib.import_module("triton")
    except ImportError as error:
        problem = f"triton can't be imported ({error}): pip install triton"
        return Capability(problem, machine, "", "", ())

    versions = f"torch {torch.__version__}, triton {triton.__version__}, {settings}"
    if device.type == "cpu":
        simulated = f"CPU {platform.machine()}"
        problem = ""
        if os.environ.get("TRITON_INTERPRET") != "1":
            problem = "a CPU runs kernels in triton's interpreter alone: set TRITON_INTERPRET=1"
        return Capability(problem, machine, simulated, versions, (simulated,))

    properties = torch.cuda.get_device_properties(device)
    compute_capability = (properties.major, properties.minor)
    problem = ""
    if compute_capability < LEAST_CAPABILITY:
        problem = (
            f"{properties.name} has compute capability {compute_capability}, not {LEAST_CAPABILITY}"
        )
    # an index means another device where processes have other CUDA_VISIBLE_DEVICES
    names = [
        str(torch.cuda.get_device_properties(i).uuid) for i in range(torch.cuda.device_count())
    ]
    index = torch.cuda.current_device() if device.index is None else device.index
    reaches = tuple(name for peer, name in enumerate(names) if _reaches(index, peer))
    return Capability(problem, machine, names[index], versions, reaches)


def agree_on_kernel(
    group: StoreExchange, device: Device, settings: str, ranks_per_machine: int | None = None
) -> None:
    """Go on only if all ranks can (collective); else KernelUnavailable, on all.

    ``ranks_per_machine``: see :func:`decide`.
    """
    own = own_capability(device.tensors, settings, device.machine)
    messages = group.all_gather("capability", msgspec.json.encode(own).decode())
    decode = msgspec.json.Decoder(Capability).decode
    capabilities = {rank: decode(message) for rank, message in messages.items()}
    if reason := decide(capabilities, ranks_per_machine):
        raise KernelUnavailable(reason)


def agree_that_done(group: StoreExchange, step: str, problem: str) -> None:
    """Go on only if no rank has a problem with ``step`` (collective); else KernelUnavailable."""
    problems = group.all_gather(step, problem)
    reasons = [
        f"rank {rank}: {rank_problem}"
        for rank, rank_problem in sorted(problems.items())
        if rank_problem
    ]
    if reasons:
        raise KernelUnavailable(f"{step}: {'; '.join(reasons)}")


def _reaches(index: int, peer: int) -> bool:
    """Whether device ``index`` can do atomic operations on device ``peer``, natively."""
    if index == peer:
        return True
    if not torch.cuda.can_device_access_peer(index, peer):
        return False
    value = ctypes.c_int()
    call = ctypes.CDLL("libcuda.so.1").cuDeviceGetP2PAttribute
    return call(ctypes.byref(value), NATIVE_ATOMICS, index, peer) == 0 and value.value == 1
