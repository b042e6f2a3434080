"""Every constant of OptiReduce as a named option, with its default and the reason for it.

Source: OptiReduce (arXiv 2310.06993). Where a default differs from the source the comment beside it
says so. All ranks must use the same options; the engine compares a digest of them.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from latecomer.verify.errors import ArgumentError

HEADER_BYTES = 48  # of the wire format: docs/reference/ubt-protocol.md
KIB = 1024
MOST_BYTES = 65_507  # that one call with UDP_SEGMENT takes: the largest payload of UDP over IPv4
MOST_SEGMENTS = 64  # that it cuts them into
When = Literal["auto", "on", "off"]


def _in(low: float, high: float, default: Any) -> Any:
    """An option's range, both ends included, and its default."""
    return field(default=default, metadata={"range": (low, high)})


@dataclass(frozen=True)
class Options:
    """What may be set, and why; ArgumentError for what is out of its range.

    Examples:
        >>> from latecomer.runtime.optireduce.options import Options
        >>> options = Options(bound_s=0.2, hadamard="on")  # for ddp.attach, or runtime.configure
        >>> options.burst * options.datagram_bytes <= options.burst_bytes
        True
    """

    # --- datagrams
    datagram_bytes: int = _in(128, 65_000, 1472)  # fills an Ethernet frame; a multiple of 8
    authenticate: bool = False  # a keyed tag on each datagram; costs a hash per datagram
    burst_bytes: int = _in(128, 65_536, 46 * KIB)  # handed to the kernel at once, to one peer
    window_bytes: int = _in(4096, 2**30, 256 * KIB)  # underway to a receiver, at least
    window_most_bytes: int = _in(4096, 2**30, 2048 * KIB)  # what a socket buffer of 4 MiB bears
    window_step_bytes: int = _in(0, 2**30, 128 * KIB)  # after a clean stage, half after a lossy
    grant_bytes: int = _in(128, 2**30, 32 * KIB)  # what a sender may send before the first credit
    send_buffer_bytes: int = _in(4096, 2**30, 100_000)  # below a port's queue: the kernel clocks us
    receive_buffer_bytes: int = _in(4096, 2**30, 4096 * KIB)  # the most without root
    offload: bool = True  # UDP segmentation and receive offload, where the kernel has them
    compiled: When = "auto"  # the data path: compiled where the extra ``fast`` is installed

    # --- hard bound t_B
    bound_s: float = _in(0, 3600, 0.0)  # 0: measured (the source), else set by hand
    warmup_steps: int = _in(0, 10_000, 20)  # source; there by TAR over TCP, here mostly over UBT
    reliable_steps: int = _in(0, 10_000, 3)  # the first, over TCP: cold connections, DDP's buckets
    warmup_bound_s: float = _in(0.01, 3600, 30.0)  # in their place, until there is a t_B
    bound_percentile: float = _in(1, 100, 95.0)  # source
    bound_factor: float = _in(0.1, 1000, 2.0)  # source: 1; a transport in user space needs room
    bound_floor_s: float = _in(0, 3600, 0.05)  # scheduling noise of a shared machine is such
    absence_s: float = _in(0, 3600, 10.0)  # source: 0; being late is no matter of the network
    dead_s: float = _in(0.1, 3600, 5.0)  # no answer on the control plane: dead or stopped

    # --- early end
    last_share: float = _in(0, 1, 0.01)  # source: the last percentile of a sender is marked
    end_copies: int = _in(0, 10, 2)  # ours: "all is sent" again, for when marks are lost
    grace_percent: float = _in(0, 1000, 10.0)  # source: x, part of t_C waited after the last marks
    grace_most_percent: float = _in(0, 1000, 50.0)  # source
    grace_floor_s: float = _in(0, 60, 0.004)  # source: 0; a thread not scheduled looks like a loss
    grace_up_loss: float = _in(0, 1, 0.02)  # x doubles if more came too late; source: 0.1 % lost
    grace_down_loss: float = _in(0, 1, 0.005)  # x shrinks by one when less did; source: 0.01 %
    expected_weight: float = _in(0.001, 1, 0.2)  # of the newest sample in the moving average t_C

    # --- incast and pacing
    incast: int = _in(1, 255, 255)  # senders a receiver takes at once, at first: all; source: 1
    incast_up_after: int = _in(1, 1000, 4)  # clean stages in a row before one more
    incast_down_loss: float = _in(0, 1, 0.001)  # above it, or on a time-out: half, if that helps
    rtt_high_s: float = _in(1e-6, 10, 0.05)  # source: 250 us, by hardware; ours is a thread's
    rate_start: float = _in(1, 1e12, 1.25e9)  # bytes/s; the window is what holds back at first
    rate_least: float = _in(1, 1e12, 1.25e6)
    rate_most: float = _in(1, 1e12, 12.5e9)
    rate_step: float = _in(0, 1e12, 50e6)  # additive; recovers 1 GB/s in 20 round trips
    rate_decrease: float = _in(0.01, 0.99, 0.5)  # source: TIMELY's multiplicative decrease
    stall_s: float = _in(1e-4, 60, 0.003)  # no credit for it and four round trips: lost

    # --- what is done about loss
    hadamard: When = "auto"
    hadamard_above: float = _in(0, 1, 0.02)  # source: from about 2 % on it pays
    hadamard_block: int = _in(2, 2**16, 4096)  # stays in cache: docs/measurements/optireduce.md
    skip_loss: float = _in(0, 1, 0.25)  # a step that lost more is not applied
    stop_loss: float = _in(0, 1, 0.5)  # mean of the last steps above it: LossExceeded
    stop_window: int = _in(1, 100_000, 10)
    resync_steps: int = _in(0, 2**31, 50)  # parameters are averaged reliably; 0: never

    def __post_init__(self) -> None:
        for option in fields(self):
            value = getattr(self, option.name)
            low, high = option.metadata.get("range", (value, value))
            if not low <= value <= high:
                raise ArgumentError(option.name, value, f"must be in {low:g}..{high:g}")
        block = self.hadamard_block
        tcp_steps = self.reliable_steps
        nbytes = self.datagram_bytes
        if nbytes % 8:
            raise ArgumentError("datagram_bytes", nbytes, "must be a multiple of 8")
        if block & (block - 1):
            raise ArgumentError("hadamard_block", block, "must be a power of two")
        for name in ("hadamard", "compiled"):
            if (value := getattr(self, name)) not in ("auto", "on", "off"):
                raise ArgumentError(name, value, "must be auto, on or off")
        if 0 < self.warmup_steps <= tcp_steps:
            raise ArgumentError("reliable_steps", tcp_steps, "must be less than warmup_steps")
        if not self.warmup_steps and not self.bound_s:
            problem = "nothing to measure the bound by"
            raise ArgumentError("warmup_steps", 0, problem, "Set bound_s, too")

    @property
    def payload_bytes(self) -> int:
        """Bytes of the tensor in a datagram."""
        return self.datagram_bytes - HEADER_BYTES

    @property
    def burst(self) -> int:
        """Datagrams in a burst: no more than one call to the kernel takes."""
        burst = max(1, self.burst_bytes // self.datagram_bytes)
        return min(burst, MOST_BYTES // self.datagram_bytes, MOST_SEGMENTS)

    @property
    def digest(self) -> str:
        """Equal on ranks that have equal options."""
        return hashlib.sha256(repr(sorted(asdict(self).items())).encode()).hexdigest()
