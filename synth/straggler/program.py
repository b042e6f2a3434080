"""One rank's own part of the closed form, without the schedule of all ranks: O(k log n) steps.

A file has about 2 n k transfers, so thousands of ranks make it large; a rank needs its own 2 k of
them. What all ranks make this way together is the schedule that ``synth generate --owners free``
writes (a test compares them). It is right by ``ClosedForm.own_program`` in proofs/coq, for
every n and k; ``verify`` proves files.
"""

from __future__ import annotations

from dataclasses import dataclass

from latecomer.synth.standard import require_rank, require_ranks
from latecomer.synth.straggler.closed_form import ClosedForm
from latecomer.synth.straggler.instance import Instance, real_names
from latecomer.verify.arrays import ArrayRounds
from latecomer.verify.core.schedule import Op
from latecomer.verify.errors import ArgumentError

MOST_RANKS = 2**24
"""A program grows with its chunks; of the ranks only the logarithm counts."""
MOST_CHUNKS = 2**16
"""A program of so many chunks has about as many rounds."""


@dataclass(frozen=True)
class OwnTransfer:
    """A transfer as one of its ends sees it: the other end, the chunk, what is done with it."""

    peer: int
    chunk: int
    op: Op


@dataclass(frozen=True)
class OwnRound:
    """What a rank does in one round; None where it does not send, or not receive."""

    send: OwnTransfer | None
    receive: OwnTransfer | None


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
    """What one rank does in the closed form, without the schedule of all ranks: O(k log n) steps.

    Args:
        n: ranks, 2 .. 2^24.
        rank: whose program.
        chunks: k, into which the buffer is cut; 1 .. 2^16.
        late: the late rank; the last one by default.

    Raises:
        ArgumentError: an argument is out of its range.

    Examples:
        >>> from latecomer.synth.straggler.program import program
        >>> mine = program(1_000_000, rank=5, chunks=4)  # a Program
        >>> len(mine.waiting), len(mine.completion)
        (41, 23)
        >>> next(own.send for own in mine.completion if own.send)
        OwnTransfer(peer=13, chunk=1, op='copy')
    """
    late = n - 1 if late is None else late
    require_ranks(n, MOST_RANKS)
    for option, value in (("--rank", rank), ("--late", late)):
        require_rank(option, value, n)
    if not 1 <= chunks <= MOST_CHUNKS:
        raise ArgumentError("--chunks", chunks, f"must be in 1..{MOST_CHUNKS}")
    # The names of latecomer.synth.straggler.instance: the late rank is the last.
    own = n - 1 if rank == late else rank - (rank > late)
    form = ClosedForm(Instance(n, chunks), own)

    def seen(rounds: ArrayRounds) -> tuple[OwnRound, ...]:
        real = rounds.renamed(lambda names: real_names(names, n, late))
        return tuple(_own(list(real.rows(t)), rank) for t in range(len(real)))

    return Program(n, chunks, late, rank, seen(form.waiting()), seen(form.completion()))


def _own(transfers: list[tuple[int, int, int, Op]], rank: int) -> OwnRound:
    """The one transfer that ``rank`` sends and the one that it receives."""
    send = receive = None
    for src, dst, chunk, op in transfers:
        if src == rank:
            send = OwnTransfer(dst, chunk, op)
        else:
            receive = OwnTransfer(src, chunk, op)
    return OwnRound(send, receive)
