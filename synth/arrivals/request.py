"""What was asked for, checked: which ranks are late, when they arrive, how many chunks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from latecomer.synth.arrivals.instance import Arrivals
from latecomer.synth.arrivals.portfolio import LARGEST
from latecomer.synth.cost import Setting
from latecomer.synth.standard import require_chunks, require_rank, require_ranks
from latecomer.synth.units import parse_seconds
from latecomer.verify.errors import ArgumentError

MOST_RANKS = 128
"""Ranks that schedules are made for: each round looks at every pair of ranks for every chunk."""


def late_ranks(typed: Sequence[str] | None) -> list[int]:
    """The ranks of ``--late 6,7`` or ``--late 6 --late 7``; none where nothing was typed."""
    return [number for text in typed or () for number in _whole_numbers("--late", text.split(","))]


def arrival_rounds(
    n: int,
    late: Sequence[int],
    arrivals: str | None,
    delay: str | None,
    m: int = 1,
    chunks: int | None = None,
    setting: Setting | None = None,
) -> dict[int, int]:
    """The late ranks and their arrival rounds, from what was typed.

    Args:
        n: ranks.
        late: the late ranks, each once (none: the last rank).
        arrivals: as many rounds or times, separated by commas: ``3,9`` or ``1ms,3ms``.
        delay: one round or time, at which all late ranks arrive; instead of ``arrivals``.
        m: chunks per rank that is on time.
        chunks: of the whole buffer, whatever ``m`` is.
        setting: how long a round is, where times are given.

    Raises:
        ArgumentError: the arguments contradict each other.
    """
    ranks = list(late) or [n - 1]
    if len(set(ranks)) < len(ranks):
        raise ArgumentError("--late", ranks, "names a rank twice", "Give each late rank once")
    chunks = (n - len(ranks)) * m if chunks is None else chunks
    if delay is not None:
        if arrivals is not None:
            raise ArgumentError(
                "--delay", delay, f"contradicts --arrivals {arrivals}", "Give one of the two"
            )
        return dict.fromkeys(ranks, _rounds("--delay", [delay], chunks, setting)[0])
    if arrivals is None:
        raise ArgumentError(
            "--late",
            ranks,
            "needs to be told when these ranks arrive",
            f"Add --arrivals {','.join(['3'] * len(ranks))} or --delay 3",
        )
    rounds = _rounds("--arrivals", arrivals.split(","), chunks, setting)
    if len(rounds) != len(ranks):
        raise ArgumentError(
            "--arrivals",
            arrivals,
            f"names {len(rounds)} rounds for {len(ranks)} late ranks {ranks}",
            "Give one round for each late rank",
        )
    return dict(zip(ranks, rounds, strict=True))


def _rounds(name: str, texts: Sequence[str], chunks: int, setting: Setting | None) -> list[int]:
    """Whole rounds as they are; times in rounds, to the nearest."""
    if any(text.strip()[-1:].isalpha() for text in texts):
        if setting is None:
            raise ArgumentError(
                name, ",".join(texts), "needs the length of a round to be in seconds", "Add --bytes"
            )
        if chunks < 1:
            raise ArgumentError("--late", None, "names all ranks, so no rank is there to wait")
        round_s = setting.alpha_s + setting.buffer_bytes / chunks / setting.bandwidth
        return [round(parse_seconds(name, text) / round_s) for text in texts]
    rounds = _whole_numbers(name, texts)
    if min(rounds) < 0:
        raise ArgumentError(name, ",".join(texts), "must be 0 or more")
    return rounds


def _whole_numbers(name: str, texts: Sequence[str]) -> list[int]:
    try:
        return [int(text) for text in texts]
    except ValueError:
        raise ArgumentError(
            name, ",".join(texts), "must be whole numbers, separated by commas", "For example: 3,9"
        ) from None


def instance(n: int, arrivals: Mapping[int, int], m: int, chunks: int | None = None) -> Arrivals:
    """The instance for ``m`` chunks per rank on time, or for ``chunks``; or an ArgumentError."""
    require_ranks(n)
    for rank, arrival in arrivals.items():
        require_rank("--late", rank, n)
        if arrival < 0:
            raise ArgumentError(
                "--arrivals", arrival, f"the round in which rank {rank} arrives must be 0 or more"
            )
    if not arrivals:
        raise ArgumentError("--late", [], "must name a rank", "For ranks on time: synth ring")
    if len(arrivals) == n:
        raise ArgumentError(
            "--late",
            sorted(arrivals),
            "names all ranks, so no rank is there to wait",
            "Count rounds from the first arrival, and leave out who arrives then",
        )
    require_chunks(chunks, m)
    name, given = ("--n, --m", m) if chunks is None else ("--n, --chunks", chunks)
    chunks = (n - len(arrivals)) * m if chunks is None else chunks
    if n > MOST_RANKS or n * chunks > LARGEST:
        raise ArgumentError(
            name,
            (n, given),
            f"n must be at most {MOST_RANKS}, and n times {chunks} chunks at most {LARGEST}",
            "Lower one of them",
        )
    by_rank = tuple(arrivals.get(rank, 0) for rank in range(n))
    return Arrivals(chunks, by_rank, tuple(sorted(arrivals))).without_idle_waits()
