"""``python -m bench.lab``: is a lab possible here, run a command in one, measure one."""

from __future__ import annotations

import json as jsonlib
import signal
import sys
from enum import StrEnum
from typing import Annotated

import typer

from bench.lab.calibrate import calibrate
from bench.lab.errors import LabUnavailable
from bench.lab.job import Job, Rank
from bench.lab.lab import Lab
from bench.lab.mechanisms import Mechanism, choose, probe, require
from bench.lab.network import Network
from bench.lab.options import network
from bench.lab.plan import plan
from bench.lab.sandbox import Sandbox
from latecomer.verify.errors import InputError, LatecomerError

UNAVAILABLE = 3
app = typer.Typer(
    add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False,
    no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]},
)  # fmt: skip

Hosts = Annotated[int, typer.Option(help="Hosts; host r runs rank r.")]
Rate = Annotated[float, typer.Option(help="Mbit/s of every port, each way.")]
Loss = Annotated[str, typer.Option(metavar="SHARE", help="Frames lost on every path: 1%.")]
Delay = Annotated[str, typer.Option(metavar="TIME", help="Delay of every path, one way: 5ms.")]
Tail = Annotated[
    list[str] | None,
    typer.Option(metavar="SHARE:TIME", help="Delay this share of the frames more: 1%:20ms."),
]
Host = Annotated[
    list[str] | None,
    typer.Option("--host", metavar="R:...", help="For one host: 3:rate=50,loss=1%,delay=5ms."),
]
Link = Annotated[
    list[str] | None,
    typer.Option(
        "--link",
        metavar="A-B:...",
        help="For one path, both ways (A>B: one way): 6-7:rate=30,tail=1%:20ms.",
    ),
]
Buffer = Annotated[
    str, typer.Option(metavar="TIME", help="What a full port holds before it drops.")
]
Burst = Annotated[
    str, typer.Option(metavar="TIME", help="A port makes up for a pause of up to so much at once.")
]
Mtu = Annotated[int, typer.Option(help="Bytes of a frame without its Ethernet header.")]
Congestion = Annotated[str, typer.Option(help="TCP's congestion control in the hosts.")]
Seed = Annotated[int, typer.Option(help="Of the delay draws.")]
Timeout = Annotated[float, typer.Option(help="Seconds the command may take.")]
KeepGoing = Annotated[bool, typer.Option(help="Do not end the other ranks when one fails.")]
DryRun = Annotated[bool, typer.Option(help="Print the commands that would build it.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class Part(StrEnum):
    """What can be calibrated."""

    setup = "setup"
    rate = "rate"
    loss = "loss"
    delay = "delay"
    congestion = "congestion"


@app.command("check")
def check(json: Json = False) -> None:
    """Say whether a lab is possible on this machine, and with which mechanisms.

    Exit code: 0 possible, 3 not.

    \b
    Examples:
      python -m bench.lab check
      python -m bench.lab check --json
    """
    mechanisms: dict[str, Mechanism] = {}
    refused = ""
    try:
        with Sandbox() as sandbox:
            mechanisms = probe(sandbox)
        require(mechanisms, ["veth", "tbf"])
    except LabUnavailable as error:
        refused = str(error)

    if json:
        rows = {
            m.name: {"serves": m.serves, "available": m.available, "detail": m.detail}
            for m in mechanisms.values()
        }
        result = {"possible": not refused, "reason": refused, "mechanisms": rows}
        print(jsonlib.dumps(result))
    else:
        print(refused or "an emulated network is possible here, without root")
        for m in mechanisms.values():
            state = "works" if m.available else f"missing: {m.detail}. {m.remedy}"
            print(f"  {m.name:<10} {m.serves:<23} {state}")
    raise typer.Exit(UNAVAILABLE if refused else 0)


@app.command("up", context_settings={"allow_interspersed_args": False})
def up(
    command: Annotated[
        list[str] | None, typer.Argument(metavar="[-- COMMAND...]", show_default=False)
    ] = None,
    hosts: Hosts = 8,
    rate: Rate = 200.0,
    loss: Loss = "0%",
    delay: Delay = "0ms",
    tail: Tail = None,
    host: Host = None,
    link: Link = None,
    buffer: Buffer = "500ms",
    burst: Burst = "2ms",
    mtu: Mtu = 1500,
    congestion: Congestion = "reno",
    seed: Seed = 0,
    timeout: Timeout = 600.0,
    keep_going: KeepGoing = False,
    dry_run: DryRun = False,
    json: Json = False,
) -> None:
    """Build a network, run COMMAND as rank r on host r, take the network down.

    Every rank gets torchrun's variables (RANK, WORLD_SIZE, MASTER_ADDR, ...) and the interface to
    use (GLOO_SOCKET_IFNAME, ...). Lines are printed with their rank in front. Without a COMMAND
    the network stays up until Ctrl-C. Nothing is left behind, whatever ends this process.

    Exit code: 0, or 1 if a rank failed, 2 for unusable options, 3 if no lab is possible here.

    \b
    Examples:
      python -m bench.lab up --hosts 8 --rate 200 -- python train.py
      python -m bench.lab up --hosts 4 --loss 1% --delay 2ms --tail 1%:20ms -- ping -c 3 10.77.0.1
      python -m bench.lab up --link 6-7:rate=30 --host 3:rate=50 -- python train.py
      python -m bench.lab up --hosts 2 --dry-run
    """
    asked = network(
        hosts=hosts, rate=rate, loss=loss, delay=delay, tail=tail or [], host=host or [],
        link=link or [], buffer=buffer, burst=burst, mtu=mtu, congestion=congestion, seed=seed,
    )  # fmt: skip
    if dry_run:
        _print_plan(asked)
        return

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # an end like Ctrl-C, tidily
    with Lab(asked) as lab:
        description = lab.describe()
        if not json:
            _say(description)
        if not command:
            _wait_for_ctrl_c(lab)
            return
        on_line = None if json else _print_line
        job = lab.run(command, timeout_s=timeout, keep_going=keep_going, on_line=on_line)

    if json:
        ranks = [_as_json(rank) for rank in job.ranks]
        print(jsonlib.dumps({"ok": job.ok, "lab": description, "ranks": ranks}))
    _print_failures(job)
    raise typer.Exit(0 if job.ok else 1)


def _print_failures(job: Job) -> None:
    for rank in job.ranks:
        if rank.returncode:
            print(f"rank {rank.rank}: {rank.stopped or rank.returncode}", file=sys.stderr)


def _print_line(rank: int, line: str) -> None:
    print(f"[{rank}] {line}", flush=True)


def _as_json(rank: Rank) -> dict[str, object]:
    return {
        "rank": rank.rank,
        "returncode": rank.returncode,
        "seconds": round(rank.seconds, 3),
        "stopped": rank.stopped,
        "output": rank.output,
    }


@app.command("calibrate")
def calibrate_command(
    parts: Annotated[
        list[Part] | None, typer.Argument(help="What to measure; default: all.")
    ] = None,
    hosts: Hosts = 8,
) -> None:
    """Measure the lab against what it was set to; prints the tables of bench/tables/lab.md.

    \b
    Examples:
      python -m bench.lab calibrate
      python -m bench.lab calibrate rate loss
    """
    for part in parts or list(Part):
        calibrate(part.value, hosts)


def _print_plan(asked: Network) -> None:
    with Sandbox() as sandbox:
        mechanisms = probe(sandbox)
    for step in plan(asked, choose(asked, mechanisms)).steps:
        print(step)


def _say(description: dict[str, object]) -> None:
    text = ", ".join(f"{key} {value}" for key, value in description.items())
    print(f"lab: {text}".replace("{", "(").replace("}", ")").replace("'", ""), file=sys.stderr)


def _wait_for_ctrl_c(lab: Lab) -> None:
    print("up until Ctrl-C; a shell on host 0:\n  " + lab.entrance(0), file=sys.stderr)
    while True:
        signal.pause()


def main() -> None:
    """Entry point; errors are one line on stderr, no traceback."""
    try:
        app()
    except LatecomerError as error:
        print(f"error: {error}", file=sys.stderr)
        if isinstance(error, LabUnavailable):
            sys.exit(UNAVAILABLE)
        sys.exit(2 if isinstance(error, InputError) else 1)


if __name__ == "__main__":
    main()
