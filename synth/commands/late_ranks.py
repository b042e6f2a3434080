"""What ``synth straggler``, ``arrivals``, ``nodes`` and ``generate`` have in common: options for
schedules in which ranks are late.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from latecomer.synth.commands.options import refuse, refuse_json_if_quiet, require_writable
from latecomer.synth.solvers.choice import SolverName

LINK = ("3us", "450GB/s")
"""Latency and bandwidth of a link where none are given: a GPU's port within a node."""

LateRank = Annotated[
    int | None, typer.Option("--late", "--straggler", help="The late rank (default: the last).")
]
ChunksPerHelper = Annotated[
    int | None,
    typer.Option(
        help="Chunks per helper; the buffer has (n - 1) * m. Default: 1, unless --chunks or "
        "--bytes is given."
    ),
]
Chunks = Annotated[
    int | None,
    typer.Option(
        help="Chunks of the whole buffer, any number. Default with --bytes: the one with the "
        "least predicted time."
    ),
]


@dataclass(frozen=True, kw_only=True)
class CommonOptions:
    """The options that each of these commands has, as they were typed.

    Attributes:
        m: chunks per helper.
        chunks: of the whole buffer, instead of ``m``.
        buffer: size of the whole buffer.
        alpha, bandwidth: of a link; of one within a node, where there are nodes.
    """

    m: int | None
    chunks: int | None
    buffer: str | None
    alpha: str | None
    bandwidth: str | None
    solver: SolverName
    seed: int
    effort: float
    time_limit_s: float | None
    output: Path
    force: bool
    json: bool
    quiet: bool

    def require_usable(self, context: typer.Context) -> None:
        """ArgumentError for an output that can't be written, and for options of no use."""
        require_writable(self.output, force=self.force)
        refuse_json_if_quiet(context, quiet=self.quiet)
        if self.chunks is not None:
            refuse(context, ["m"], "has no use with --chunks", "Leave one of them out")
