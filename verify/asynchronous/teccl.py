"""TE-CCL's solutions: flows of chunks over links, epoch by epoch, checked as they stand.

A solution of microsoft/TE-CCL says which chunk of which rank travels over which link in which
epoch; switches are inside of a link. An all-gather copies: who has had a chunk since an earlier
epoch can send it on, as often as it likes. An all-to-all (its flows have volumes, parts of a chunk)
moves: who sends parts on must have received as much in earlier epochs. How many epochs a link takes
is not in the file, so one is the least that is asked. Volumes are rounded to six digits there,
hence a tolerance.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import groupby
from typing import Any

import msgspec

from verify.core.format import bounded_text
from verify.core.verdict import PROVED, Counterexample, Result, refuted
from verify.errors import FormatError
from verify.report.render import evidence, listed
from verify.report.results import OfResults

TOLERANCE = 1e-4
EVIDENCE = ("property", "rank", "expected", "found")
_FLOW = re.compile(
    r"Chunk (\d{1,9}) from (\d{1,9}) traveled over (\d{1,9})->(\d{1,9})"
    r"(?: with volume (\d+(?:\.\d+)?(?:e-?\d+)?))? in epoch (\d{1,9})(?: via switches [\d >-]+)?"
)


class Flow(msgspec.Struct, frozen=True):
    """So much of a chunk, from ``src`` to ``dst``, sent in an epoch."""

    epoch: int
    owner: int
    chunk: int
    src: int
    dst: int
    volume: float

    def __str__(self) -> str:
        part = "" if self.volume == 1 else f"{self.volume:g} of "
        return f"{part}chunk {self.chunk} of {self.owner}, {self.src} -> {self.dst}"


class FlowReport(OfResults, msgspec.Struct, frozen=True):
    """What is said of one solution; ``epochs`` are those in which something is sent."""

    collective: str
    ranks: int
    flows: int
    epochs: int
    results: dict[str, Result]

    def text(self, name: str) -> str:
        """The report on the file ``name`` as lines of text."""
        lines = [f"{name}: {self.verdict.value.upper()}"]
        lines.append(
            f"  {self.collective} of {self.ranks} ranks, {self.flows} flows in {self.epochs} epochs"
        )
        lines += listed(self.results)
        for result in self.results.values():
            if result.counterexample is not None:
                lines += evidence(result.counterexample)
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """The object that ``verify --json`` prints."""
        wrong = self.counterexample
        return {
            "verdict": self.verdict.value,
            "kind": self.collective,
            "format": "te-ccl",
            "ranks": self.ranks,
            "flows": self.flows,
            "epochs": self.epochs,
            "properties": {name: r.verdict.value for name, r in self.results.items()},
            "counterexample": wrong and {name: getattr(wrong, name) for name in EVIDENCE},
        }


class _Solution(msgspec.Struct, frozen=True):
    late: tuple[str, ...] = msgspec.field(name="7-Flows", default=())
    early: tuple[str, ...] = msgspec.field(name="6-Flows", default=())
    epochs: int = msgspec.field(name="3-Epochs_Required", default=0)


def is_solution(data: bytes) -> bool:
    """Whether a JSON text looks like one of TE-CCL's solutions."""
    return b'-Flows":' in data and data.lstrip()[:1] == b"{" and b'"latecomer/1"' not in data


def decode_flows(data: bytes, name: str = "<bytes>") -> tuple[str, list[Flow], int]:
    """The collective, its flows by epoch, and the epochs that the file says are required.

    Raises:
        FormatError: not a solution of TE-CCL's.
    """
    bounded_text(data, name)
    try:
        solution = msgspec.json.decode(data, type=_Solution)
    except (msgspec.DecodeError, RecursionError) as error:
        raise FormatError(name, str(error)) from None
    lines = solution.late or solution.early
    if not lines:
        raise FormatError(name, "has no flows (7-Flows or 6-Flows)")
    flows, volumes = [], set()
    for number, line in enumerate(lines):
        found = _FLOW.fullmatch(line)
        if found is None:
            raise FormatError(name, f"flow {number} is not understood: {line[:80]!r}")
        chunk, owner, src, dst, volume, epoch = found.groups()
        volumes.add(volume is None)
        part = 1.0 if volume is None else float(volume)
        flows.append(Flow(int(epoch), int(owner), int(chunk), int(src), int(dst), part))
    if len(volumes) > 1:
        raise FormatError(name, "some flows have a volume and some have none")
    collective = "allgather" if volumes == {True} else "alltoall"
    return collective, sorted(flows, key=lambda flow: flow.epoch), solution.epochs


def verify_flows(data: bytes, name: str = "<bytes>") -> FlowReport:
    """Check a solution: nothing is sent before it is there, and everything arrives.

    Raises:
        FormatError: not a solution of TE-CCL's.

    Examples:
        An all-gather of two ranks, in one epoch:

        >>> from verify.asynchronous.teccl import verify_flows
        >>> import json
        >>> pairs = (0, 1), (1, 0)
        >>> flows = [f"Chunk 0 from {a} traveled over {a}->{b} in epoch 0" for a, b in pairs]
        >>> report = verify_flows(json.dumps({"7-Flows": flows}).encode())  # a FlowReport
        >>> report.collective, report.verdict
        ('allgather', <Verdict.PROVED: 'proved'>)
    """
    collective, flows, claimed = decode_flows(data, name)
    ranks = sorted({flow.owner for flow in flows})
    at: dict[tuple[int, int, int], float] = {}
    moves = collective == "alltoall"
    early: Result = PROVED
    for epoch, group in groupby(flows, lambda flow: flow.epoch):
        of_epoch = list(group)
        if early is PROVED:
            early = _sent_too_early(epoch, of_epoch, at, moves)
        for sign, end in ((-1, "src"), (1, "dst")):
            for flow in of_epoch:
                if sign > 0 or moves:
                    key = flow.owner, flow.chunk, getattr(flow, end)
                    start = float(flow.owner == key[2])
                    at[key] = at.get(key, start) + sign * flow.volume
    epochs = flows[-1].epoch + 1
    return FlowReport(
        collective,
        len(ranks),
        len(flows),
        epochs,
        {
            "nothing_too_early": early,
            "delivered": _delivered(collective, ranks, flows, at),
            "claims": PROVED
            if epochs <= max(claimed, 1)
            else _refuted("claims", 0, f"at most {claimed} epochs", f"flows in {epochs}"),
        },
    )


def _sent_too_early(
    epoch: int, flows: list[Flow], at: dict[tuple[int, int, int], float], moves: bool
) -> Result:
    """The first flow of an epoch whose chunk was not there before the epoch."""
    left: dict[tuple[int, int, int], float] = {}
    for flow in flows:
        key = flow.owner, flow.chunk, flow.src
        have = left.setdefault(key, at.get(key, float(flow.owner == flow.src)))
        if have < flow.volume - TOLERANCE:
            found = f"epoch {epoch}: {flow}, of which {max(have, 0):g} is there"
            expected = "a chunk to be sent on in a later epoch than it was sent there"
            return _refuted("nothing_too_early", flow.src, expected, found)
        if moves:
            left[key] = have - flow.volume
    return PROVED


def _delivered(
    collective: str, ranks: list[int], flows: Iterable[Flow], at: dict[tuple[int, int, int], float]
) -> Result:
    """Whether every demand is met: of an all-to-all, chunk c goes to the c-th rank."""
    chunks = sorted({flow.chunk for flow in flows})
    for owner in ranks:
        for chunk in chunks:
            if collective == "alltoall" and chunk >= len(ranks):
                return _refuted("delivered", owner, "a chunk for each rank", f"chunk {chunk}")
            targets = [ranks[chunk]] if collective == "alltoall" else ranks
            for target in targets:
                have = at.get((owner, chunk, target), float(owner == target))
                if have < 1 - TOLERANCE:
                    found = f"{have:g} of chunk {chunk} of {owner}"
                    return _refuted("delivered", target, "all of every chunk that is for it", found)
    return PROVED


def _refuted(broken: str, rank: int, expected: str, found: str) -> Result:
    return refuted(Counterexample(property=broken, rank=rank, expected=expected, found=found))
