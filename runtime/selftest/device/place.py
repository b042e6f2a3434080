"""Where a rank of the self-test stands: its device, its streams' clock, and a barrier on them.

The simulated device has no GPU's clock: there a mark is the host's time at which the stream comes
to it. A delay holds up the stream, not the host, as a kernel does that takes long.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import msgspec
import torch
import torch.distributed as dist

from runtime.device.simulated import SimulatedDevice, SimulatedStream
from runtime.executor.nccl.streams import CudaDevice, CudaStream, Stream, take_gpu
from runtime.network.store_exchange import StoreExchange
from runtime.torch_versions import PrefixStore, Store, occupy_gpu

PATIENCE = 3  # times our limit is torch's, which names nobody and may end the process
Mark = Any  # a CUDA event, or a list that gets the host's time


class _Cuda(CudaDevice):
    """Knows the streams that were made of it."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[Stream] = []

    def stream(self) -> CudaStream:
        self.made.append(made := super().stream())
        return made


class _Simulated(SimulatedDevice):
    """Likewise."""

    def __init__(self) -> None:
        self.made: list[Stream] = []
        super().__init__()

    def stream(self) -> SimulatedStream:
        self.made.append(made := super().stream())
        return made


@dataclass
class Place:
    """One rank. Made by :func:`stand`, on all ranks together.

    Attributes:
        kind: cuda or simulated.
        no_library: why the device's library (NCCL, Gloo) does not work here; empty if it does.
    """

    kind: str
    store: Store
    rank: int
    size: int
    timeout_s: float
    device: _Cuda | _Simulated
    no_library: str = ""
    cycles_per_s: float = 0.0
    steps: int = field(default=0, init=False)
    doing: str = field(default="starts", init=False)
    since_s: float = field(default_factory=time.monotonic, init=False)

    @property
    def tensors(self) -> torch.device:
        """Where tensors live."""
        return self.device.tensors

    @property
    def shared(self) -> bool:
        """Whether ranks share a GPU: then no bandwidth means anything."""
        return self.kind == "simulated" or self.size > torch.cuda.device_count()

    def advance(self, doing: str) -> None:
        """Note what this rank does next. All ranks take the same steps, so their numbers tell who
        is behind when all hang.
        """
        self.steps = self.steps + 1
        self.doing = doing
        self.since_s = time.monotonic()

    def fresh_store(self, name: str) -> Store:
        """A part of the store that nobody has used; all ranks ask for it at the same step."""
        return PrefixStore(f"place/{self.steps}/{name}", self.store)

    def gather(self, said: dict[str, str]) -> list[dict[str, str]]:
        """What every rank says, by rank (collective)."""
        self.advance(f"waits for what other ranks say ({self.doing})")
        store = self.fresh_store("gather")
        group = StoreExchange(store, self.rank, self.size, self.timeout_s)
        answers = group.all_gather("said", msgspec.json.encode(said).decode())
        return [msgspec.json.decode(answers[r], type=dict[str, str]) for r in range(self.size)]

    def agree(self, reason: str) -> str:
        """The reasons of all ranks against something, "" if none has any (collective)."""
        said = [one["reason"] for one in self.gather({"reason": reason})]
        texts = sorted({text for text in said if text})
        ranks = [rank for rank, text in enumerate(said) if text]
        everywhere = len(ranks) in (0, self.size)
        return ("" if everywhere else f"on rank(s) {ranks}: ") + "; ".join(texts)

    def launch(self, call: Callable[[], object]) -> None:
        """Enqueue on the current stream."""
        self.device.current().launch(call)

    def join(self) -> None:
        """Let the current stream wait for all that were made of the device; no host waits."""
        current: Any = self.device.current()
        for stream in self.device.made:
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
            make: Any = torch.cuda.Event  # untyped
            event: Mark = make(enable_timing=True)
            event.record()
            return event
        reached: list[float] = []
        self.launch(lambda: reached.append(time.perf_counter()))
        return reached

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
            self.launch(lambda: time.sleep(seconds))

    def barrier(self, one: torch.Tensor) -> None:
        """No stream gets past it before all have come to it; ``one`` is an element to reduce."""
        if self.no_library:
            self.synchronize()
            self.gather({})
        else:
            self.launch(lambda: dist.all_reduce(one))


def stand(kind: str, store: Store, rank: int, size: int, timeout_s: float) -> Place:
    """Take this rank's device, and join torch's process group, which compares and barriers need."""
    device: _Cuda | _Simulated
    if kind == "cuda":
        take_gpu(rank, size)
        device = _Cuda()
    else:
        os.environ["TRITON_INTERPRET"] = "1"
        device = _Simulated()
    limit = timedelta(seconds=PATIENCE * timeout_s)
    dist.init_process_group(
        device.backend, store=PrefixStore("torch", store), rank=rank, world_size=size, timeout=limit
    )
    place = Place(kind, store, rank, size, timeout_s, device)
    place.no_library = place.agree(_problem(place))
    if kind == "cuda":
        cycles = 10_000_000
        for _ in range(2):  # the first time, the kernel is loaded
            first = place.mark()
            occupy_gpu(cycles)
            last = place.mark()
            place.synchronize()
        place.cycles_per_s = cycles / place.between_s(first, last)
    return place


def _problem(place: Place) -> str:
    """What the library says against all-reducing one element."""
    try:
        place.barrier(torch.zeros(1, device=place.tensors))
        place.synchronize()
    except RuntimeError as error:
        return f"{place.device.backend}: {str(error).splitlines()[-1]}"
    return ""
