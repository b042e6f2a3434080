"""TE-CCL's solutions: flows of chunks over links, epoch by epoch, checked as they stand.

A solution of microsoft/TE-CCL says which chunk of which rank travels over which link in which
epoch; switches are inside of a link. An all-gather copies: who has had a chunk since an earlier
epoch can send it on, as often as it likes. An all-to-all (its flows have volumes, parts of a chunk)
moves: who sends parts on must have received as much in earlier epochs. How many epochs a link takes
is not in the file, so one is the least that is asked.

Who takes part are all ranks that a flow names, as its owner or as an end of its link, and those of
the demands that the file says were met. Volumes are exact numbers here. In the file they are
differences of numbers rounded to six digits, so each may be off by a unit of the sixth (and by the
last bits of a float). So much per flow of a chunk may be missing from it, but never more than
``MOST_LOST`` in all: what is lost on its way, and what is sent on without having come.
"""

from __future__ import annotations

import re
from collections import Counter
from fractions import Fraction
from itertools import groupby
from typing import Any

import msgspec

from latecomer.verify.core.format import bounded_text
from latecomer.verify.core.verdict import (
    PROVED,
    BaseReport,
    Counterexample,
    Result,
    Verdict,
    refuted,
    unknown,
)
from latecomer.verify.errors import FormatError
from latecomer.verify.report.render import evidence, listed

ROUNDED = Fraction(1, 10**6)
"""What the volume of one flow may be off by."""

LAST_BITS = Fraction(1, 10**12)
"""What sums of floats may be off by, before they were printed."""

MOST_LOST = Fraction(1, 10**5)
"""The most of a chunk that rounding is taken to explain; where it could explain more: unknown."""

EVIDENCE = ("property", "rank", "expected", "found")
_FLOW = re.compile(
    r"Chunk (\d{1,9}) from (\d{1,9}) traveled over (\d{1,9})->(\d{1,9})"
    r"(?: with volume (\d{1,20}(?:\.\d{1,40})?(?:e-?\d{1,2})?))? in epoch (\d{1,9})"
    r"(?: via switches [\d >-]+)?"
)
_DEMAND = re.compile(r"Demand at (\d{1,9}) for chunk (\d{1,9}) from (\d{1,9}) met by epoch .*")


class Flow(msgspec.Struct, frozen=True):
    """So much of a chunk, from ``src`` to ``dst``, sent in an epoch."""

    epoch: int
    owner: int
    chunk: int
    src: int
    dst: int
    volume: Fraction

    def __str__(self) -> str:
        part = "" if self.volume == 1 else f"{float(self.volume):g} of "
        return f"{part}chunk {self.chunk} of {self.owner}, {self.src} -> {self.dst}"


class FlowReport(BaseReport, msgspec.Struct, frozen=True):
    """What is said of one solution; ``epochs`` are those in which something is sent."""

    collective: str
    ranks: int
    flows: int
    epochs: int
    results: dict[str, Result]

    def text(self, name: str) -> str:
        """The report on the file ``name`` as lines of text."""
        flows = f"{self.flows} flows in {self.epochs} epochs"
        lines = [
            f"{name}: {self.verdict.value.upper()}",
            f"  {self.collective} of {self.ranks} ranks, {flows}",
        ]
        lines += listed(self.results)
        for result in self.results.values():
            if result.counterexample is not None:
                lines += evidence(result.counterexample)
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """The object that ``verify --json`` prints."""
        counterexample = self.counterexample
        evidence = None
        if counterexample is not None:
            evidence = {name: getattr(counterexample, name) for name in EVIDENCE}
        return {
            "verdict": self.verdict.value,
            "kind": self.collective,
            "format": "te-ccl",
            "ranks": self.ranks,
            "flows": self.flows,
            "epochs": self.epochs,
            "properties": {name: r.verdict.value for name, r in self.results.items()},
            "counterexample": evidence,
        }


class _Document(msgspec.Struct, frozen=True):
    """The fields that are read; two versions of TE-CCL number them differently."""

    late: tuple[str, ...] = msgspec.field(name="7-Flows", default=())
    early: tuple[str, ...] = msgspec.field(name="6-Flows", default=())
    epochs: int = msgspec.field(name="3-Epochs_Required", default=0)
    late_paths: dict[str, msgspec.Raw] = msgspec.field(name="8-Chunk paths", default={})
    early_paths: dict[str, msgspec.Raw] = msgspec.field(name="7-chunk paths", default={})


class Solution(msgspec.Struct, frozen=True):
    """What is read of a file.

    Attributes:
        flows: by epoch.
        epochs: that the file says are required.
        ranks, chunks: that take part, by number; those of demands that are said to be met, too.
    """

    collective: str
    flows: list[Flow]
    epochs: int
    ranks: list[int]
    chunks: set[int]


def is_solution(data: bytes) -> bool:
    """Whether a JSON text looks like one of TE-CCL's solutions."""
    return b'-Flows":' in data and data.lstrip()[:1] == b"{" and b'"latecomer/1"' not in data


def decode_flows(data: bytes, name: str = "<bytes>") -> Solution:
    """Parse the text of a solution.

    Raises:
        FormatError: not a solution of TE-CCL's.
    """
    bounded_text(data, name)
    try:
        document = msgspec.json.decode(data, type=_Document)
    except (msgspec.DecodeError, RecursionError) as error:
        raise FormatError(name, str(error)) from None
    if document.late and document.early:
        raise FormatError(name, "has flows twice (7-Flows and 6-Flows)")
    lines = document.late or document.early
    if not lines:
        raise FormatError(name, "has no flows (7-Flows or 6-Flows)")

    flows = []
    have_volume = set()
    for number, line in enumerate(lines):
        match = _FLOW.fullmatch(line)
        if match is None:
            raise FormatError(name, f"flow {number} is not understood: {line[:80]!r}")
        chunk, owner, src, dst, volume, epoch = match.groups()
        have_volume.add(volume is not None)
        flow = Flow(
            epoch=int(epoch),
            owner=int(owner),
            chunk=int(chunk),
            src=int(src),
            dst=int(dst),
            volume=Fraction(volume or 1),
        )
        if flow.src == flow.dst:
            raise FormatError(name, f"flow {number} goes from a rank to itself")
        flows.append(flow)
    if len(have_volume) > 1:
        raise FormatError(name, "some flows have a volume and some have none")

    ranks: set[int] = set()
    chunks: set[int] = set()
    for flow in flows:
        ranks |= {flow.owner, flow.src, flow.dst}
        chunks.add(flow.chunk)
    for demand in (*document.late_paths, *document.early_paths):
        match = _DEMAND.fullmatch(demand)
        if match is None:
            raise FormatError(name, f"a demand is not understood: {demand[:80]!r}")
        target, chunk, owner = match.groups()
        ranks |= {int(target), int(owner)}
        chunks.add(int(chunk))
    return Solution(
        collective="alltoall" if have_volume == {True} else "allgather",
        flows=sorted(flows, key=lambda flow: flow.epoch),
        epochs=document.epochs,
        ranks=sorted(ranks),
        chunks=chunks,
    )


def verify_flows(data: bytes, name: str = "<bytes>") -> FlowReport:
    """Check a solution: nothing is sent before it is there, and everything arrives.

    Raises:
        FormatError: not a solution of TE-CCL's.

    Examples:
        An all-gather of two ranks, in one epoch:

        >>> from latecomer.verify.asynchronous.teccl import verify_flows
        >>> import json
        >>> pairs = (0, 1), (1, 0)
        >>> flows = [f"Chunk 0 from {a} traveled over {a}->{b} in epoch 0" for a, b in pairs]
        >>> report = verify_flows(json.dumps({"7-Flows": flows}).encode())  # a FlowReport
        >>> report.collective, report.verdict
        ('allgather', <Verdict.PROVED: 'proved'>)
    """
    return check_flows(decode_flows(data, name))


def check_flows(solution: Solution) -> FlowReport:
    """Check what was read of a solution: nothing is sent before it is there, everything arrives."""
    balance = _Balance(solution)
    early: Result = PROVED
    for epoch, group in groupby(solution.flows, lambda flow: flow.epoch):
        flows = list(group)
        # All of them are sent before any is received: a chunk can be sent on in a later epoch only.
        for flow in flows:
            result = balance.send(epoch, flow)
            if early is PROVED:
                early = result
        for flow in flows:
            balance.receive(flow)

    epochs = solution.flows[-1].epoch + 1
    epochs_claimed = max(solution.epochs, 1)
    claims: Result = PROVED
    if epochs > epochs_claimed:
        claims = _refuted("claims", 0, f"at most {epochs_claimed} epochs", f"flows in {epochs}")
    return FlowReport(
        collective=solution.collective,
        ranks=len(solution.ranks),
        flows=len(solution.flows),
        epochs=epochs,
        results={"nothing_too_early": early, "delivered": _delivered(balance), "claims": claims},
    )


class _Balance:
    """How much of each chunk every rank has.

    Attributes:
        is_alltoall: whether flows take with them what they send; an all-gather copies.
        lacking: per chunk (owner, number), how much was sent on without having come.
    """

    def __init__(self, solution: Solution) -> None:
        self.solution = solution
        self.is_alltoall = solution.collective == "alltoall"
        self.lacking: dict[tuple[int, int], Fraction] = {}
        self._held: dict[tuple[int, int, int], Fraction] = {}  # by owner, chunk and rank
        self._flows = Counter((flow.owner, flow.chunk) for flow in solution.flows)

    def held(self, owner: int, chunk: int, rank: int) -> Fraction:
        """How much of a chunk is at a rank; the owner has all of it at first."""
        return self._held.get((owner, chunk, rank), Fraction(owner == rank))

    def explained(self, owner: int, chunk: int) -> Fraction:
        """How much of a chunk its flows' rounding may hide; an all-gather has none."""
        if not self.is_alltoall:
            return Fraction(0)
        return self._flows[owner, chunk] * ROUNDED + LAST_BITS

    def judge(self, owner: int, chunk: int, lost: Fraction) -> Verdict:
        """What a loss, in all, says of a chunk."""
        if lost > self.explained(owner, chunk):
            return Verdict.REFUTED
        return Verdict.PROVED if lost <= MOST_LOST else Verdict.UNKNOWN

    def send(self, epoch: int, flow: Flow) -> Result:
        """Take a flow from where it is sent; whether as much was there before the epoch."""
        held = self.held(flow.owner, flow.chunk, flow.src)
        if self.is_alltoall:
            remaining = max(held - flow.volume, Fraction(0))
            self._held[flow.owner, flow.chunk, flow.src] = remaining
        if held >= flow.volume:
            return PROVED

        chunk = (flow.owner, flow.chunk)
        self.lacking[chunk] = self.lacking.get(chunk, Fraction(0)) + flow.volume - held
        verdict = self.judge(*chunk, self.lacking[chunk])
        found = f"epoch {epoch}: {flow}, of which {float(held):g} is there"
        if verdict is Verdict.UNKNOWN:
            return unknown(f"{found}; rounding may hide the rest")
        if verdict is Verdict.REFUTED:
            expected = "a chunk to be sent on in a later epoch than it was sent there"
            return _refuted("nothing_too_early", flow.src, expected, found)
        return PROVED

    def receive(self, flow: Flow) -> None:
        """Add a flow to what is where it goes."""
        held = self.held(flow.owner, flow.chunk, flow.dst)
        self._held[flow.owner, flow.chunk, flow.dst] = held + flow.volume


def _delivered(balance: _Balance) -> Result:
    """Whether every demand is met: of an all-to-all, chunk c goes to the c-th rank."""
    solution = balance.solution
    ranks = solution.ranks
    chunks = range(max(solution.chunks) + 1)
    if balance.is_alltoall:
        chunks = range(len(ranks))
        chunks_for_nobody = solution.chunks - set(chunks)
        if chunks_for_nobody:
            found = f"chunk {min(chunks_for_nobody)}"
            return _refuted("delivered", ranks[0], "a chunk for each rank", found)

    result: Result = PROVED
    for owner in ranks:
        for chunk in chunks:
            targets = [ranks[chunk]] if balance.is_alltoall else ranks
            for target in targets:
                held = balance.held(owner, chunk, target)
                missing = max(1 - held, Fraction(0))
                lost = missing + balance.lacking.get((owner, chunk), 0)
                verdict = balance.judge(owner, chunk, lost)
                found = f"{float(held):g} of chunk {chunk} of {owner}"
                if verdict is Verdict.REFUTED:
                    expected = "all of every chunk that is for it"
                    return _refuted("delivered", target, expected, found)
                if verdict is Verdict.UNKNOWN:
                    result = unknown(f"rank {target} has {found}; rounding may hide the rest")
    return result


def _refuted(broken: str, rank: int, expected: str, found: str) -> Result:
    return refuted(Counterexample(property=broken, rank=rank, expected=expected, found=found))
