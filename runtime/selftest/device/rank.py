"""One rank of the self-test: its device, its streams' clock, and how ranks agree and meet.

The simulated device has no GPU's clock: there a mark is the host's time at which the stream comes
to it. A delay holds up the stream, not the host, as a kernel does that takes long.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from latecomer.runtime.device.simulated import SimulatedDevice, SimulatedStream
from latecomer.runtime.executor.nccl.streams import CudaDevice, CudaStream, Stream, take_gpu
from latecomer.runtime.host import host, monotonic_now
from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.runtime.torch_versions import PrefixStore, Store, occupy_gpu

PATIENCE = 3  # times our limit is torch's, which names nobody and may end the process
CALIBRATION_CYCLES = 10_000_000  # of a GPU's clock, some milliseconds

Mark = Any  # a CUDA event, or a list that gets the host's time


class _RecordingCudaDevice(CudaDevice):
    """Knows the streams that were made of it."""

    def __init__(self) -> None:
        super().__init__()
        self.streams: list[Stream] = []

    def stream(self) -> CudaStream:
        stream = super().stream()
        self.streams.append(stream)
        return stream


class _RecordingSimulatedDevice(SimulatedDevice):
    """Likewise."""

    def __init__(self) -> None:
        super().__init__()
        self.streams: list[Stream] = []

    def stream(self) -> SimulatedStream:
        stream = super().stream()
        self.streams.append(stream)
        return stream


@dataclass
class RankContext:
    """One rank. Made by :func:`join_group`, on all ranks together.

    Attributes:
        kind: cuda or simulated.
        timeout_s: how long ranks wait for each other on the host.
        library_problem: why the device's library (NCCL, Gloo) does not work here; empty if it does.
        cycles_per_s: the frequency of the GPU's clock; 0 without a GPU.
        steps: how many steps this rank has taken (see :meth:`advance`).
        doing: what it does in the latest of them.
        since_s: when that began, by ``time.monotonic``.
    """

    kind: str
    store: Store
    rank: int
    world_size: int
    timeout_s: float
    device: _RecordingCudaDevice | _RecordingSimulatedDevice
    library_problem: str = ""
    cycles_per_s: float = 0.0
    steps: int = field(default=0, init=False)
    doing: str = field(default="starts", init=False)
    since_s: float = field(default_factory=monotonic_now, init=False)

    @property
    def tensors(self) -> torch.device:
        """Where tensors live."""
        return self.device.tensors

    @property
    def shared(self) -> bool:
        """Whether ranks share a GPU: then no bandwidth means anything."""
        return self.kind == "simulated" or self.world_size > torch.cuda.device_count()

    def advance(self, doing: str) -> None:
        """Note what this rank does next.

        All ranks take the same steps, so their numbers tell who is behind when all hang.
        """
        self.steps += 1
        self.doing = doing
        self.since_s = host.monotonic()

    def fresh_store(self, name: str) -> Store:
        """A part of the store that nobody has used; all ranks ask for it at the same step."""
        return PrefixStore(f"step/{self.steps}/{name}", self.store)

    def gather(self, message: dict[str, str]) -> list[dict[str, str]]:
        """The messages of all ranks, by rank (collective)."""
        self.advance(f"waits for what other ranks say ({self.doing})")
        store = self.fresh_store("gather")
        exchange = StoreExchange(store, self.rank, self.world_size, self.timeout_s)
        answers = exchange.all_gather("message", msgspec.json.encode(message).decode())
        return [
            msgspec.json.decode(answers[rank], type=dict[str, str])
            for rank in range(self.world_size)
        ]

    def agree(self, reason: str) -> str:
        """The reasons of all ranks against something, "" if none has any (collective)."""
        messages = self.gather({"reason": reason})
        reasons = {
            rank: message["reason"] for rank, message in enumerate(messages) if message["reason"]
        }
        joined = "; ".join(sorted(set(reasons.values())))
        if len(reasons) in (0, self.world_size):
            return joined
        return f"on rank(s) {list(reasons)}: {joined}"

    def launch(self, call: Callable[[], object]) -> None:
        """Enqueue on the current stream."""
        self.device.current().launch(call)

    def join(self) -> None:
        """Let the current stream wait for all that were made of the device; no host waits."""
        current: Any = self.device.current()
        for stream in self.device.streams:
            current.wait(stream.record())

    def synchronize(self) -> None:
        """Wait on the host for all streams; raises what broke the device."""
        if isinstance(self.device, CudaDevice):
            torch.cuda.synchronize(self.tensors)
        else:
            self.device.synchronize()

    def mark(self) -> Mark:
        """A place in the current stream, with the time at which it is reached."""
        if self.kind == "cuda":
            make_event: Any = torch.cuda.Event  # untyped
            event: Mark = make_event(enable_timing=True)
            event.record()
            return event

        reached_s: list[float] = []
        self.launch(lambda: reached_s.append(host.perf_counter()))
        return reached_s

    def between_s(self, first: Mark, last: Mark) -> float:
        """Seconds between two marks that were reached."""
        if self.kind == "cuda":
            return float(first.elapsed_time(last)) * 1e-3
        return float(last[0] - first[0])

    def delay(self, seconds: float) -> None:
        """Hold up the current stream, and not the host."""
        if self.kind == "cuda":
            occupy_gpu(int(seconds * self.cycles_per_s))
        else:
            self.launch(lambda: host.sleep(seconds))

    def barrier(self, element: torch.Tensor) -> None:
        """No stream gets past it before all have come to it; ``element`` is one, to reduce."""
        if self.library_problem:
            self.synchronize()
            self.gather({})
        else:
            self.launch(lambda: dist.all_reduce(element))


def join_group(
    kind: str, store: Store, rank: int, world_size: int, timeout_s: float, machines: int
) -> RankContext:
    """Take this rank's device, and join torch's process group, which compares and barriers need.

    With several ``machines`` the device says that it is on one of them, with ranks in a row.
    """
    device: _RecordingCudaDevice | _RecordingSimulatedDevice
    if kind == "cuda":
        take_gpu(rank, world_size)
        device = _RecordingCudaDevice()
    else:
        os.environ["TRITON_INTERPRET"] = "1"
        device = _RecordingSimulatedDevice()
    if machines > 1:
        device.machine = f"machine {rank * machines // world_size}"
    dist.init_process_group(
        device.backend,
        store=PrefixStore("torch", store),
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=PATIENCE * timeout_s),
    )

    context = RankContext(kind, store, rank, world_size, timeout_s, device)
    context.library_problem = context.agree(_library_problem(context))
    if kind == "cuda":
        context.cycles_per_s = _cycles_per_s(context)
    return context


def _library_problem(context: RankContext) -> str:
    """What the library says against all-reducing one element."""
    try:
        context.barrier(torch.zeros(1, device=context.tensors))
        context.synchronize()
    except RuntimeError as error:
        return f"{context.device.backend}: {str(error).splitlines()[-1]}"
    return ""


def _cycles_per_s(context: RankContext) -> float:
    """The frequency of the GPU's clock, measured."""
    seconds = 0.0
    for _ in range(2):  # the first time, the kernel is loaded
        first = context.mark()
        occupy_gpu(CALIBRATION_CYCLES)
        last = context.mark()
        context.synchronize()
        seconds = context.between_s(first, last)
    return CALIBRATION_CYCLES / seconds
