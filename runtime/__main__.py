"""The command ``python -m runtime``.

What takes torch is imported by the command that needs it: ``watch`` follows a job from a machine
that may have better things to do than to load a training framework.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from runtime.pipeline_command import pipeline
from runtime.telemetry.page.command import watch
from verify.errors import ArgumentError
from verify.replacing import GPU_REPORT, PROFILE, Force, require_replaceable
from verify.running import Version, run

if TYPE_CHECKING:
    from verify.core.schedule import Schedule

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback()
def runtime(show_version: Version = False) -> None:
    """Run verified schedules on torch.distributed."""


@app.command()
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
      python -m runtime selftest
      python -m runtime selftest --device cuda --json gpus.json
      python -m runtime selftest --device simulated --ranks 2
      python -m runtime selftest --algorithm optireduce
      python -m runtime selftest --ranks 8 --schedule schedule.json
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
        from runtime.selftest.device.command import on_gpus

        raise typer.Exit(0 if on_gpus(device, ranks, json, say) else 1)
    ranks = ranks or 4
    if algorithm == "schedule":
        schedules = _from_files(schedule, ranks) if schedule else _of_each_kind(ranks)
        subject = f"on {device}"
    elif device != "cpu" or schedule:
        raise ArgumentError("--algorithm", algorithm, "takes no --schedule; cpu only")
    if json:
        raise ArgumentError("--json", str(json), "is for --device cuda without --schedule")
    from runtime.selftest.suite import selftest as run_suite

    passed = run_suite(schedules, ranks, device, say)
    print(f"selftest {subject}: {'passed' if passed else 'FAILED'}")
    raise typer.Exit(0 if passed else 1)


def _from_files(paths: list[Path], ranks: int) -> dict[str, Schedule]:
    from runtime.executor.load import load, require_size

    schedules = {}
    for path in paths:
        verified = load(path)
        require_size(verified, ranks)
        schedules[str(path)] = verified.schedule
    return schedules


def _of_each_kind(ranks: int) -> dict[str, Schedule]:
    import synth
    from synth.arrivals.generate import search

    makers = {"ring": synth.ring, "rhd": synth.rhd, "direct": synth.direct}
    schedules = {kind: make(ranks) for kind, make in makers.items()}
    schedules["straggler"] = synth.generate(ranks)
    if ranks >= 4:
        schedules["delay"] = search(ranks, {ranks - 1: 1}).schedule
        schedules["two late"] = search(ranks, {ranks - 2: 1, ranks - 1: 3}).schedule
    return schedules


@app.command()
def profile(
    out: Annotated[Path, typer.Option("--out", "-o", help="Where rank 0 writes it.")] = Path(
        "profile.json"
    ),
    force: Force = False,
) -> None:
    """Measure latency and bandwidth of the native all-reduce and of ours, for the modes.

    \b
    Examples:
      torchrun --nproc-per-node 4 -m runtime profile
      torchrun --nnodes 8 --nproc-per-node 1 ... -m runtime profile -o profile.json
    """
    from runtime.policy.dispatcher import AllReduceDispatcher
    from runtime.policy.profile import run as measure

    if os.environ.get("RANK") == "0":
        require_replaceable("--out", out, PROFILE, force=force)
    measured = measure(AllReduceDispatcher, out)
    if os.environ["RANK"] == "0":
        for name, cost in (("native", measured.native), ("schedule", measured.schedule)):
            latency_us = cost.alpha_s * 1e6
            megabytes_per_s = 1e-6 / cost.beta_s
            print(f"{name:<9} {latency_us:9.1f} us a message, {megabytes_per_s:9.1f} MB/s")
        print(f"written: {out} ({measured.ranks} ranks)")


app.command()(pipeline)
app.command()(watch)


if __name__ == "__main__":
    run(app)
