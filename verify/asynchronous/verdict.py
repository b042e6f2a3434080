"""What is said about a program of thread blocks: results, what deadlock depends on, limits."""

from __future__ import annotations

from typing import Any

import msgspec

from latecomer.verify.asynchronous.deadlock import Freedom
from latecomer.verify.asynchronous.model import BlockProgram
from latecomer.verify.asynchronous.sizes import Sizes
from latecomer.verify.core.verdict import BaseReport, Result

EVIDENCE = ("property", "rank", "position", "action", "chunk", "expected", "found", "actions")
"""What is printed of a counterexample in JSON; its other fields are those of other families."""


class AsynchronousReport(BaseReport, msgspec.Struct, frozen=True, kw_only=True):
    """Everything ``verify`` says about one program.

    Attributes:
        format: of the file; ``name``: as it calls itself; ``kind``: the collective.
        placements: ``in place``, ``out of place``: those checked.
        blocks, steps: how many run.
        protocol: of the FIFOs, with ``slots`` messages each; None: no bound.
        sizes: meant by the verdict; None where size makes no difference.
        results: property name -> result, in the order of the checks.
        freedom: what deadlock depends on.
        limits: what the executor would refuse or not use; no part of the verdict.
        programs: what was decided on, for each placement, and the sizes meant: for other checkers.
            None where the verdict rests on more than a program can say.
        shown_program: of two placements the first that is refuted, if any: for pictures.
    """

    format: str
    name: str
    kind: str
    ranks: int
    placements: tuple[str, ...]
    blocks: int
    steps: int
    protocol: str
    slots: int | None
    sizes: Sizes | None
    results: dict[str, Result]
    freedom: Freedom
    limits: tuple[str, ...]
    programs: tuple[tuple[BlockProgram, Sizes | None], ...]
    shown_program: BlockProgram

    @property
    def slack(self) -> int | None:
        """Slots that FIFOs have beyond what the sizes meant need; below 0: that lack."""
        if self.slots is None or self.freedom.slots_needed is None:
            return None
        return self.slots - self.freedom.slots_needed

    def to_json(self) -> dict[str, Any]:
        """The object that ``verify --json`` prints."""
        counterexample = self.counterexample
        evidence = None
        if counterexample is not None:
            evidence = {name: getattr(counterexample, name) for name in EVIDENCE}
        sizes = self.sizes
        return {
            "verdict": self.verdict.value,
            "kind": self.kind,
            "format": self.format,
            "name": self.name,
            "ranks": self.ranks,
            "placements": list(self.placements),
            "blocks": self.blocks,
            "steps": self.steps,
            "protocol": self.protocol,
            "slots": self.slots,
            "chunks": None if sizes is None else sizes.chunks,
            "min_bytes": None if sizes is None else sizes.min_bytes,
            "max_bytes": None if sizes is None else sizes.max_bytes,
            "deadlock_free_up_to": self.freedom.up_to,
            "slots_needed": self.freedom.slots_needed,
            "slack": self.slack,
            "deadlock_free_unlimited": self.freedom.unlimited,
            "deadlock_free_rendezvous": self.freedom.rendezvous,
            "limits": list(self.limits),
            "properties": {name: r.verdict.value for name, r in self.results.items()},
            "notes": {name: r.note for name, r in self.results.items() if r.note},
            "counterexample": evidence,
        }
