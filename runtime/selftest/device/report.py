"""What the self-test found, as text for people and as JSON to attach to an issue.

A bandwidth stands only beside a time that was measured on GPUs of which each has one rank, and
whose every element was right.
"""

from __future__ import annotations

import msgspec

from runtime.device.predict import Range
from runtime.selftest.device.environment import Environment

OURS = "kernel", "transfers"
KIB = 1024
HEAD = (
    "size",
    "dtype",
    "way",
    "late",
    "chunks",
    "time",
    "predicted",
    "by host",
    "algbw",
    "busbw",
    "#wrong",
)
UNITS = ("", "", "", "", "", "(us)", "(us)", "(us)", "(GB/s)", "(GB/s)", "")
WIDTHS = (9, 9, 10, 5, 6, 11, 13, 9, 8, 8, 8)


class Checked(msgspec.Struct, frozen=True):
    """A way's cases on one schedule: how many there were, and what was wrong first."""

    way: str
    schedule: str
    cases: int
    wrong: int = 0
    first: str = ""


class Row(msgspec.Struct, frozen=True):
    """One line of the table.

    Attributes:
        late: the rank that came last, by much more than the wait is worth; none if none.
        time_s: from the last arrival to the end on all ranks, median of ``repetitions``.
        host_s: the same until hosts go on that wait with a time limit; ours only.
        wrong: elements that were not what the oracle says, in all repetitions on all ranks.
        shared: ranks share a GPU, or there is none: no bandwidth means anything.
    """

    nbytes: int
    dtype: str
    way: str
    ranks: int
    late: int | None
    chunks: int | None
    time_s: float
    host_s: float | None
    repetitions: int
    wrong: int
    shared: bool
    predicted: Range | None = None

    @property
    def algbw(self) -> float | None:
        """Bytes per second, by the definition of nccl-tests; none where it would mislead."""
        return None if self.shared or self.wrong else self.nbytes / self.time_s

    @property
    def busbw(self) -> float | None:
        """Likewise, times 2 (n - 1) / n."""
        factor = 2 * (self.ranks - 1) / self.ranks
        return None if self.algbw is None else self.algbw * factor

    def line(self) -> str:
        """The row as text."""

        def rate(value: float | None) -> str:
            return "-" if value is None else f"{value * 1e-9:.2f}"

        late = "none" if self.late is None else f"{self.late}"
        chunks = "-" if self.chunks is None else f"{self.chunks}"
        predicted = "-" if self.predicted is None else str(self.predicted)
        took = f"{self.time_s * 1e6:.1f}"
        where = (size_text(self.nbytes), self.dtype, self.way)
        host = "-" if self.host_s is None else f"{self.host_s * 1e6:.1f}"
        measured = took, predicted, host, rate(self.algbw), rate(self.busbw), f"{self.wrong}"
        return columns((*where, late, chunks, *measured))


class Report(msgspec.Struct):
    """All of it; what ``--json`` writes."""

    device: str
    ranks: int
    environment: Environment | None = None
    not_tried: dict[str, str] = {}
    checked: list[Checked] = []
    rows: list[Row] = []
    error: str = ""

    @property
    def passed(self) -> bool:
        """Whether something was checked, and nothing of ours was wrong."""
        timed = sum(row.wrong for row in self.rows if row.way in OURS)
        wrong = timed + sum(one.wrong for one in self.checked)
        return bool(self.checked) and not wrong and not self.error

    def to_json(self) -> bytes:
        """For ``--json``: the bandwidths and the verdict are written out, too."""
        plain = msgspec.to_builtins(self)
        for row, written in zip(self.rows, plain["rows"], strict=True):
            written |= {"algbw": row.algbw, "busbw": row.busbw}
        return msgspec.json.format(msgspec.json.encode(plain | {"passed": self.passed}))


def size_text(nbytes: int) -> str:
    """With the greatest unit that divides it."""
    for unit in ("B", "KiB", "MiB"):
        if nbytes % KIB or nbytes < KIB:
            return f"{nbytes}{unit}"
        nbytes //= KIB
    return f"{nbytes}GiB"


def columns(cells: tuple[str, ...]) -> str:
    """A line of the table."""
    return " ".join(cell.rjust(width) for cell, width in zip(cells, WIDTHS, strict=True))


def head(shared: bool) -> list[str]:
    """The lines above the table."""
    notes = [
        "time: from the last arrival to the end on all ranks; predicted: docs/measurements/gpu.md",
        "by host: until a host that waits for ours with a time limit goes on; jobs' streams wait",
    ]
    if shared:
        notes.append("no GPU for each rank: times say nothing of a job, so no bandwidths")
    return [*(f"# {note}" for note in notes), columns(HEAD), columns(UNITS)]
