"""The lab measured against what it was set to: the tables of bench/tables/lab.md."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from bench.lab import measure
from bench.lab.lab import Lab
from bench.lab.network import Limits, Network, Tail

STREAM_S = 3.0
RATES_MBIT = (100.0, 200.0, 400.0, 1000.0)
LINKS_MBIT = (10.0, 50.0)
LOSSES = (0.001, 0.01, 0.05)
LOSS_FRAMES = 40_000
LOSS_GAP_S = 0.0001
DELAYS_S = (0.001, 0.005, 0.02)
TAIL = Tail(0.01, 0.02)
DELAY_FRAMES = 4000
DELAY_GAP_S = 0.001
REPEATS = 3


def calibrate(part: str, hosts: int) -> None:
    """Print the Markdown table of one part."""
    print(f"\n### {part}, {hosts} hosts\n")
    _PARTS[part](hosts)


def _setup(hosts: int) -> None:
    print("| hosts | up, settings read back and delays measured | down |")
    print("|--:|--:|--:|")
    for count in sorted({2, 4, hosts, 2 * hosts}):
        up = []
        down = []
        for _ in range(REPEATS):
            with Lab(Network(hosts=count)) as lab:
                up.append(lab.setup_s)
                began = time.monotonic()
            down.append(time.monotonic() - began)
        print(f"| {count} | {statistics.median(up):.2f} s | {statistics.median(down):.3f} s |")


def _rate(hosts: int) -> None:
    """A ring of TCP streams; then one stream over a link that is slower than its ports."""
    print("| set | TCP streams | reached, median | least | RTT idle | RTT under load | cores |")
    print("|:--|--:|--:|--:|--:|--:|--:|", flush=True)
    ring = [(h, (h + 1) % hosts) for h in range(hosts)]
    for mbit in RATES_MBIT:
        _rate_row(f"ports {mbit:g} Mbit/s", mbit, Network(hosts=hosts, rate_mbit=mbit), ring)
    for mbit in LINKS_MBIT:
        network = Network(hosts=2, of_link={(0, 1): Limits(rate_mbit=mbit)})
        _rate_row(f"link {mbit:g} Mbit/s, ports 200", mbit, network, [(0, 1)])


def _rate_row(name: str, mbit: float, network: Network, pairs: list[tuple[int, int]]) -> None:
    with Lab(network) as lab:
        streams = measure.streams(lab, pairs, STREAM_S)
        rtt = statistics.median(streams.rtt_ms.values())
        print(
            f"| {name} | {len(pairs)} | {streams.median_mbit / mbit:.3f} "
            f"| {min(streams.mbit.values()) / mbit:.3f} | {lab.rtt_ms:.2f} ms | {rtt:.1f} ms "
            f"| {streams.busy_cores:.1f} |",
            flush=True,
        )


def _loss(hosts: int) -> None:
    print("| lost, set | frames sent | lost, measured | expected to be within | by |")
    print("|--:|--:|--:|--:|:--|", flush=True)
    for loss in LOSSES:
        with Lab(Network(hosts=hosts, everywhere=Limits(loss=loss))) as lab:
            frames = measure.frames(lab, [(0, 1)], LOSS_FRAMES, LOSS_GAP_S)[0, 1]
            three_sigma = 3 * (loss * (1 - loss) / frames.sent) ** 0.5
            print(
                f"| {loss:.3%} | {frames.sent} | {frames.loss:.3%} | ±{three_sigma:.3%} "
                f"| {lab.choice.loss} |",
                flush=True,
            )


def _delay(hosts: int) -> None:
    print("| set, one way | median | p90 | p99 | p99.9 | overtaken | RTT idle | by |")
    print("|:--|--:|--:|--:|--:|--:|--:|:--|", flush=True)
    settings = [("none", Limits())]
    settings += [(f"{delay * 1e3:g} ms", Limits(delay_s=delay)) for delay in DELAYS_S]
    tail = f"{TAIL.share:.0%} by {TAIL.delay_s * 1e3:g} ms"
    settings += [(tail, Limits(tails=(TAIL,)))]
    settings += [(f"5 ms, {tail} more", Limits(delay_s=0.005, tails=(TAIL,)))]
    for name, limits in settings:
        with Lab(Network(hosts=hosts, everywhere=limits)) as lab:
            frames = measure.frames(lab, [(0, 1)], DELAY_FRAMES, DELAY_GAP_S)[0, 1]
            shares = " | ".join(f"{frames.percentile(p):.2f} ms" for p in (0.5, 0.9, 0.99, 0.999))
            print(
                f"| {name} | {shares} | {frames.overtaken / frames.sent:.2%} | {lab.rtt_ms:.2f} ms "
                f"| {lab.choice.delay or '-'} |",
                flush=True,
            )


def _congestion(hosts: int) -> None:
    """What loss does to TCP, which depends on its congestion control and round trip."""
    print("| lost | one way | RTT idle | congestion control | one stream of 200 Mbit/s |")
    print("|--:|--:|--:|:--|--:|", flush=True)
    for loss, delay in ((0.0, 0.0), (0.01, 0.0), (0.01, 0.0005), (0.01, 0.005)):
        limits = Limits(loss=loss, delay_s=delay)
        with Lab(Network(hosts=2, everywhere=limits)) as lab:
            streams = measure.streams(lab, [(0, 1)], STREAM_S)
            print(
                f"| {loss:.0%} | {delay * 1e3:g} ms | {lab.rtt_ms:.2f} ms | {streams.congestion} "
                f"| {streams.median_mbit:.0f} Mbit/s |",
                flush=True,
            )


_PARTS: dict[str, Callable[[int], None]] = {
    "setup": _setup,
    "rate": _rate,
    "loss": _loss,
    "delay": _delay,
    "congestion": _congestion,
}
