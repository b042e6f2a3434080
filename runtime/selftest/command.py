"""The command ``latecomer selftest``."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from latecomer.verify.errors import ArgumentError
from latecomer.verify.replacing import GPU_REPORT, Force, require_replaceable

if TYPE_CHECKING:
    from latecomer.verify.core.schedule import Schedule


def selftest(
    device: Annotated[
        Literal["cpu", "cuda", "simulated"],
        typer.Option(help="cpu (TCP), cuda (GPUs), or simulated: what cuda does, without a GPU."),
    ] = "cpu",
    ranks: Annotated[int | None, typer.Option(help="Processes; default: 4, or all GPUs.")] = None,
    schedule: Annotated[
        list[Path] | None,
        typer.Option(help="Schedule files to test; default: one of each kind for RANKS."),
    ] = None,
    machines: Annotated[
        int | None,
        typer.Option(
            metavar="M",
            help="GPUs, simulated: take the ranks for those of M machines; kernels inside them.",
        ),
    ] = None,
    algorithm: Annotated[
        Literal["schedule", "optireduce"], typer.Option(help="optireduce goes over UDP; CPU.")
    ] = "schedule",
    json: Annotated[Path | None, typer.Option(help="GPUs: a report, for an issue.")] = None,
    force: Force = False,
) -> None:
    """Check that this machine runs schedules right: every dtype, size, late rank and way in.

    On GPUs it says what the machine is, checks the kernel and the transfers over NCCL, and times
    them beside NCCL and PyTorch, from the last rank's arrival, with one rank late and with none.

    \b
    Examples:
      latecomer selftest
      latecomer selftest --device cuda --json gpus.json
      latecomer selftest --device simulated --ranks 2
      latecomer selftest --device simulated --ranks 4 --machines 2
      latecomer selftest --algorithm optireduce
      latecomer selftest --ranks 8 --schedule schedule.json
    """
    if ranks is not None and ranks < 2:
        raise ArgumentError("--ranks", ranks, "must be at least 2")
    say = functools.partial(print, flush=True)
    schedules = None
    subject = "of optireduce"
    if json is not None:
        require_replaceable("--json", json, GPU_REPORT, inputs=schedule or (), force=force)
    # What commands need is imported where they begin, so that they, and --help, come up at once.
    if device != "cpu" and algorithm == "schedule" and not schedule:
        from latecomer.runtime.selftest.device.command import on_gpus

        raise typer.Exit(0 if on_gpus(device, ranks, json, say, machines=machines or 1) else 1)
    if machines is not None:
        text = "is for --device cuda and simulated, without --schedule and --algorithm"
        raise ArgumentError("--machines", machines, text)
    ranks = ranks or 4
    if algorithm == "schedule":
        schedules = _from_files(schedule, ranks) if schedule else _of_each_kind(ranks)
        subject = f"on {device}"
    elif device != "cpu" or schedule:
        raise ArgumentError("--algorithm", algorithm, "takes no --schedule; cpu only")
    if json:
        raise ArgumentError("--json", str(json), "is for --device cuda without --schedule")
    from latecomer.runtime.selftest.suite import selftest as run_suite

    passed = run_suite(schedules, ranks, device, say)
    print(f"selftest {subject}: {'passed' if passed else 'FAILED'}")
    raise typer.Exit(0 if passed else 1)


def _from_files(paths: list[Path], ranks: int) -> dict[str, Schedule]:
    from latecomer.runtime.executor.load import load, require_size

    schedules = {}
    for path in paths:
        verified = load(path)
        require_size(verified, ranks)
        schedules[str(path)] = verified.schedule
    return schedules


def _of_each_kind(ranks: int) -> dict[str, Schedule]:
    from latecomer import synth
    from latecomer.synth.arrivals.generate import search

    makers = {"ring": synth.ring, "rhd": synth.rhd, "direct": synth.direct}
    schedules = {kind: make(ranks) for kind, make in makers.items()}
    schedules["straggler"] = synth.generate(ranks)
    if ranks >= 4:
        schedules["delay"] = search(ranks, {ranks - 1: 1}).schedule
        schedules["two late"] = search(ranks, {ranks - 2: 1, ranks - 1: 3}).schedule
    return schedules
