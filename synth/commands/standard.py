"""``synth ring``, ``rhd``, ``tree``, ``doubling``, ``direct``, ``circulant``: for ranks on time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import typer

from latecomer.synth import standard
from latecomer.synth.answer import answered
from latecomer.synth.commands.options import (
    Json,
    Output,
    Quiet,
    Ranks,
    encoded,
    refuse_json_if_quiet,
    replaced_line,
    require_writable,
    write_schedule,
)
from latecomer.synth.cost import completion_cost
from latecomer.synth.show import standard as shown
from latecomer.verify.core.schedule import Schedule
from latecomer.verify.replacing import Force


def _command(make: Callable[[int], Schedule], what: str) -> Callable[..., None]:
    """The command that writes what ``make`` makes of a number of ranks."""

    def command(
        context: typer.Context,
        n: Ranks,
        output: Output = Path("schedule.json"),
        force: Force = False,
        json: Json = False,
        quiet: Quiet = False,
    ) -> None:
        require_writable(output, force=force)
        refuse_json_if_quiet(context, quiet=quiet)
        answer = answered(make(n))
        replaced = write_schedule(answer.schedule, output)
        text, facts = shown(str(output), answer, completion_cost(answer.schedule))
        if quiet:
            return
        if json:
            print(encoded({**facts, "replaced": replaced}))
        else:
            print(text + replaced_line(replaced))

    # Typer takes the name and the help of a command from these.
    command.__name__ = make.__name__
    command.__doc__ = what
    return command


ring = _command(standard.ring, "Write the ring AllReduce (no straggler).")
rhd = _command(standard.rhd, "Write AllReduce by recursive halving and doubling (no straggler).")
tree = _command(standard.tree, "Write AllReduce up a binomial tree and down (no straggler).")
doubling = _command(
    standard.doubling, "Write AllReduce by recursive doubling of the whole buffer (no straggler)."
)
direct = _command(
    standard.direct,
    "Write the two-round AllReduce in which every rank sends to every other (no straggler).",
)
circulant = _command(
    standard.circulant,
    "Write AllReduce with as few rounds and bytes as rhd, for any number of ranks (no straggler).",
)
