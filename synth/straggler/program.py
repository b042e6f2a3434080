"""One rank's own part of the closed form, without the schedule of all ranks: O(k log n) steps.

A file has about 2 n k transfers, so thousands of ranks make it large; a rank needs its own 2 k of
them. What all ranks make this way together is the schedule that ``synth generate --owners free``
writes (a test compares them). It is right by ``ClosedForm.own_program`` in proofs/coq, for
every n and k; ``verify`` proves files.
"""

from __future__ import annotations

from dataclasses import dataclass

from synth.standard import require_ranks
from synth.straggler.closed_form import ClosedForm
from synth.straggler.instance import Instance
from verify.core.schedule import Op, Round
from verify.errors import ArgumentError

MOST_RANKS = 2**24
MOST_CHUNKS = 2**16
"""A program of so many chunks has about as many rounds."""


@dataclass(frozen=True)
class Step:
    """A transfer as one of its ends sees it: the other end, the chunk, what is done with it."""

    peer: int
    chunk: int
    op: Op


@dataclass(frozen=True)
class OwnRound:
    """What a rank does in one round; None where it does not send, or not receive."""

    send: Step | None
    receive: Step | None


@dataclass(frozen=True)
class Program:
    """What one rank does: before the late rank comes, and from its arrival on."""

    ranks: int
    chunks: int
    late: int
    rank: int
    waiting: tuple[OwnRound, ...]
    completion: tuple[OwnRound, ...]


def program(n: int, rank: int, *, chunks: int, late: int | None = None) -> Program:
    """The program of ``rank`` among ``n``, of which ``late`` (default: the last) is late.

    Raises:
        ArgumentError: an argument is out of its range.
    """
    late = n - 1 if late is None else late
    require_ranks(n, MOST_RANKS)
    for option, value in (("--rank", rank), ("--late", late)):
        if not 0 <= value < n:
            raise ArgumentError(option, value, f"must be a rank, 0..{n - 1} for n = {n}")
    if not 1 <= chunks <= MOST_CHUNKS:
        raise ArgumentError("--chunks", chunks, f"must be in 1..{MOST_CHUNKS}")
    own = n - 1 if rank == late else rank - (rank > late)
    form = ClosedForm(Instance(n, chunks), own)

    def seen(rounds: tuple[Round, ...]) -> tuple[OwnRound, ...]:
        return tuple(_own(transfers, own, late, n) for transfers in rounds)

    return Program(n, chunks, late, rank, seen(form.waiting()), seen(form.completion()))


def _own(transfers: Round, own: int, late: int, n: int) -> OwnRound:
    """The one transfer that ``own`` sends and the one that it receives, with real names."""

    def real(name: int) -> int:
        return late if name == n - 1 else name + (name >= late)

    send = receive = None
    for src, dst, chunk, op in ((t.src, t.dst, t.chunk, t.op) for t in transfers):
        if src == own:
            send = Step(real(dst), chunk, op)
        else:
            receive = Step(real(src), chunk, op)
    return OwnRound(send, receive)
