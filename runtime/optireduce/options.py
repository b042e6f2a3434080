"""Every constant of OptiReduce as a named option, with its default and the reason for it.

Source: OptiReduce (arXiv 2310.06993). Where a default differs from the source the comment beside it
says so. All ranks must use the same options; the engine compares a digest of them.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from typing import Literal

from verify.errors import ArgumentError

HEADER_BYTES = 48
KIB = 1024
MOST_BYTES, MOST_SEGMENTS = 65_507, 64  # of one call with UDP_SEGMENT
When = Literal["auto", "on", "off"]


@dataclass(frozen=True)
class Options:
    """What may be set; see the comments for reasons.

    Raises:
        ArgumentError: an option is out of its range.
    """

    # --- datagrams
    datagram_bytes: int = 1472  # fills an Ethernet frame of 1500 bytes; a multiple of 8
    authenticate: bool = False  # a keyed tag on each datagram; costs a hash per datagram
    burst_bytes: int = 46 * KIB  # handed to the kernel at once, to one peer: 32 frames
    window_bytes: int = 256 * KIB  # underway to one receiver, to begin with and at least
    window_most_bytes: int = 1024 * KIB  # what a socket buffer of 4 MiB bears
    window_step_bytes: int = 32 * KIB  # more after a clean stage; half after a lossy one
    grant_bytes: int = 32 * KIB  # what each sender may send before the first credit
    send_buffer_bytes: int = 50_000  # below a port's queue: the kernel clocks the sender, no drops
    receive_buffer_bytes: int = 4096 * KIB  # the most that Linux gives without root
    offload: bool = True  # UDP segmentation and receive offload, where the kernel has them

    # --- hard bound t_B
    bound_s: float = 0.0  # 0: measured (the source), else set by hand
    warmup_steps: int = 20  # source; there as TAR over TCP, here over UBT but for the first
    reliable_steps: int = 3  # of them, over TCP: cold connections, DDP's first buckets
    warmup_bound_s: float = 30.0  # in their place, until there is a t_B
    bound_percentile: float = 95.0  # source
    bound_factor: float = 2.0  # source: 1; ours leaves room for a transport in user space
    bound_floor_s: float = 0.05  # scheduling noise of a shared machine is of this order
    absence_s: float = 10.0  # source: 0; a rank that is not there yet is no matter of the network
    dead_s: float = 5.0  # no answer on the control plane for so long: dead or stopped

    # --- early end
    last_share: float = 0.01  # source: the last percentile of a sender's datagrams is marked
    end_copies: int = 2  # ours: "all is sent" as datagrams of their own, for when marks are lost
    grace_percent: float = 10.0  # source: x, how much of t_C is waited after the last marks
    grace_most_percent: float = 50.0  # source
    grace_floor_s: float = 0.004  # source: 0; a thread that is not scheduled looks like a loss
    grace_up_loss: float = 0.02  # x doubles when more came too late; source: 0.1 % that was lost
    grace_down_loss: float = 0.005  # x shrinks by one when less did; source: 0.01 %
    expected_weight: float = 0.2  # of the newest sample in the moving average t_C

    # --- incast and pacing
    incast: int = 255  # senders that a receiver takes at once, to begin with: all; source: 1
    incast_up_after: int = 4  # clean stages in a row before one more
    incast_down_loss: float = 0.001  # above it, or on a time-out: half, if that helps
    rtt_low_s: float = 0.0005  # source: 25 us, by clocks in hardware; ours is a Python thread's
    rtt_high_s: float = 0.05  # source: 250 us; a window behind a 200 Mbit/s port takes 42 ms
    rate_start: float = 1.25e9  # bytes/s; the window is what holds a sender back at first
    rate_least: float = 1.25e6
    rate_most: float = 12.5e9
    rate_step: float = 50e6  # additive; recovers 1 GB/s in 20 round trips
    rate_decrease: float = 0.5  # source: TIMELY's multiplicative decrease
    stall_s: float = 0.003  # no credit for so long, and four round trips: what is underway is lost

    # --- what is done about loss
    hadamard: When = "auto"
    hadamard_above: float = 0.02  # source: from about 2 % on it pays
    hadamard_block: int = 4096  # stays in cache: docs/optireduce.md
    skip_loss: float = 0.25  # a step that lost more is not applied
    stop_loss: float = 0.5  # mean of the last steps above it: LossExceeded
    stop_window: int = 10
    resync_steps: int = 50  # parameters are averaged reliably; 0: never

    def __post_init__(self) -> None:
        for (low, high), names in _RANGES.items():
            for name in names.split():
                value = getattr(self, name)
                if not low <= value <= high:
                    raise ArgumentError(name, value, f"must be in {low:g}..{high:g}")
        if self.datagram_bytes % 8:
            raise ArgumentError("datagram_bytes", self.datagram_bytes, "must be a multiple of 8")
        block, tcp_steps = self.hadamard_block, self.reliable_steps
        if block & (block - 1):
            raise ArgumentError("hadamard_block", block, "must be a power of two")
        if self.hadamard not in ("auto", "on", "off"):
            raise ArgumentError("hadamard", self.hadamard, "must be auto, on or off")
        if 0 < self.warmup_steps <= tcp_steps:
            raise ArgumentError("reliable_steps", tcp_steps, "must be less than warmup_steps")
        if not self.warmup_steps and not self.bound_s:
            requirement = "nothing to measure the bound by"
            raise ArgumentError("warmup_steps", 0, requirement, "Set bound_s, too")

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


_RANGES: dict[tuple[float, float], str] = {
    (128, 65_000): "datagram_bytes",
    (128, 65_536): "burst_bytes",
    (4096, 2**30): "window_bytes window_most_bytes send_buffer_bytes receive_buffer_bytes",
    (0, 2**30): "window_step_bytes",
    (128, 2**30): "grant_bytes",
    (0, 3600): "bound_s bound_floor_s absence_s",
    (0, 10_000): "warmup_steps reliable_steps",
    (0.01, 3600): "warmup_bound_s",
    (1, 100): "bound_percentile",
    (0.1, 1000): "bound_factor",
    (0.1, 3600): "dead_s",
    (0, 1): "last_share grace_up_loss grace_down_loss incast_down_loss "
    "hadamard_above skip_loss stop_loss",
    (0, 10): "end_copies",
    (0, 1000): "grace_percent grace_most_percent",
    (0, 60): "grace_floor_s",
    (0.001, 1): "expected_weight",
    (1, 255): "incast",
    (1, 1000): "incast_up_after",
    (1e-6, 10): "rtt_low_s rtt_high_s",
    (1, 1e12): "rate_start rate_least rate_most",
    (0, 1e12): "rate_step",
    (0.01, 0.99): "rate_decrease",
    (1e-4, 60): "stall_s",
    (2, 2**16): "hadamard_block",
    (1, 100_000): "stop_window",
    (0, 2**31): "resync_steps",
}
