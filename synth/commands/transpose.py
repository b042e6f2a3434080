"""``synth transpose``. Exit codes: 0 written, 1 no schedule was made, 2 bad arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from latecomer.synth.answer import answered
from latecomer.synth.commands.options import (
    Buffer,
    Json,
    Output,
    Quiet,
    Ranks,
    bandwidth_each_way,
    latency,
    parse_setting,
    refuse,
    refuse_json_if_quiet,
    require_writable,
    write_and_show,
)
from latecomer.synth.transpose import show
from latecomer.synth.transpose.generate import Exchange
from latecomer.synth.transpose.generate import transpose as make_transpose
from latecomer.verify.replacing import Force

DEFAULT = ("50us", "25Gbit/s")
"""Latency and bandwidth where none are given: of a network card, not of a GPU's port."""


def transpose(
    context: typer.Context,
    n: Ranks,
    incast: Annotated[
        int, typer.Option(help="Messages a rank receives (and sends) at the same time.")
    ] = 1,
    groups: Annotated[
        int, typer.Option(help="Work inside so many groups of ranks, and between them.")
    ] = 1,
    exchange: Annotated[
        Exchange,
        typer.Option(
            help="How groups add up their sums: in fewer rounds (doubling), or with "
            "fewer bytes (transpose)."
        ),
    ] = "doubling",
    buffer: Buffer = None,
    alpha: Annotated[str | None, latency(DEFAULT[0])] = None,
    bandwidth: Annotated[str | None, bandwidth_each_way(DEFAULT[1])] = None,
    output: Output = Path("schedule.json"),
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Write the transpose AllReduce: what is lost on one link concerns two ranks only.

    What a lost transfer does to the result: verify --loss 1 schedule.json

    \b
    Examples:
      synth transpose --n 8
      synth transpose --n 8 --incast 2 --bytes 25MiB
      synth transpose --n 64 --groups 16
      synth transpose --n 64 --groups 8 --exchange transpose -o two-level.json
    """
    require_writable(output, force=force)
    refuse_json_if_quiet(context, quiet=quiet)
    setting = parse_setting(context, buffer, alpha, bandwidth, DEFAULT)
    if groups == 1:
        refuse(context, ["exchange"], "has no use with one group", "Add --groups")
    if groups == n and exchange == "doubling":
        alone = "has no use with one rank in each group and --exchange doubling"
        refuse(context, ["incast"], alone, "Leave it out, or lower --groups")
    schedule = make_transpose(n, incast=incast, groups=groups, exchange=exchange)
    write_and_show(show, output, answered(schedule), setting, json=json, quiet=quiet)
