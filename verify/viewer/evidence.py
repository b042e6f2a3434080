"""What every family's page says at its top: the verdict, properties, bound and counterexamples."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from latecomer.verify.core.verdict import Counterexample, Result, Verdict

MEANINGS = {
    "well_formed": "ranks and chunks exist, no rank sends to itself",
    "ports": "no round asks more of a rank than its ports allow",
    "absence": "an absent rank neither sends nor receives",
    "exactly_once": "every contribution reaches every rank once, or every action runs once",
    "same_bits": "all ranks end with the same expression tree",
    "hazards": "one writer per place and round",
    "deadlock_free": "all programs run to their ends, whatever the timing",
    "claims": "what the file claims was recomputed and agrees",
    "symbolic_sum": "the second proof, by Z3",
    "coq_kernel": "the opinion of the checker extracted from the proofs",
    "dependencies": "nothing runs before what it needs",
    "loss_order": "backward passes begin as the loss comes",
    "communication": "every message has a sender and a receiver",
    "message_order": "both ends of a link agree on the order of messages",
    "reduce_grad": "gradients are reduced after the last backward pass",
    "waits": "every send and reduction is waited for once, or none is",
    "sharding": "sharded weights are there when they are used",
    "memory": "no rank holds more activations than it may",
    "synchronized": "threads of a block are together where they must be",
    "connections_match": "senders and receivers of each connection agree",
    "signals_match": "every wait has its signal",
    "bounds": "no step leaves its buffer",
    "race_free": "no two blocks meet at a chunk in an order left open",
    "right_values": "every output chunk holds what the collective says",
    "nothing_too_early": "nothing is sent on before it is there",
    "delivered": "every demand is met",
}
"""What a property's proof means, in a line (docs/reference/verify.md, msccl.md)."""


def head(
    name: str, family: str, verdict: Verdict, headline: str, results: dict[str, Result]
) -> dict[str, Any]:
    """The part of a model that all families have."""
    return {
        "title": name,
        "family": family,
        "verdict": verdict.value,
        "headline": headline,
        "properties": [
            {
                "name": key,
                "verdict": result.verdict.value,
                "note": result.note,
                "meaning": MEANINGS.get(key, ""),
            }
            for key, result in results.items()
        ],
        "facts": [],
        "faults": [],
        "cut": "",
    }


def fault(counterexample: Counterexample, **more: object) -> dict[str, Any]:
    """A counterexample in words, with ``more`` for its family's view."""
    location = [
        f"{field} {getattr(counterexample, field)}"
        for field in ("phase", "round", "rank", "chunk", "position", "action")
        if getattr(counterexample, field) is not None
    ]
    return {
        "property": counterexample.property,
        "place": ", ".join(location),
        "expected": counterexample.expected,
        "found": counterexample.found,
        "lines": [str(line) for line in (*counterexample.transfers, *counterexample.actions)],
        **more,
    }


def counterexamples(results: Iterable[Result]) -> list[Counterexample]:
    """Those of the refuted properties, in order."""
    return [result.counterexample for result in results if result.counterexample is not None]
