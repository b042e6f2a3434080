"""What the self-test found, as text for people and as JSON to attach to an issue.

A bandwidth stands only beside a time that was measured on GPUs of which each has one rank, and
whose every element was right.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from latecomer.runtime.device.predict import Range
from latecomer.runtime.selftest.device.environment import Environment

OURS = "kernel", "stages", "transfers"
KIB = 1024
COLUMNS = (  # heading, unit, characters
    ("size", "", 9),
    ("dtype", "", 9),
    ("way", "", 10),
    ("late", "", 5),
    ("chunks", "", 6),
    ("time", "(us)", 11),
    ("predicted", "(us)", 13),
    ("by host", "(us)", 9),
    ("algbw", "(GB/s)", 8),
    ("busbw", "(GB/s)", 8),
    ("#wrong", "", 8),
)


class CheckedMethod(msgspec.Struct, frozen=True):
    """A method's cases on one schedule: how many there were, and what was wrong first."""

    way: str
    schedule: str
    cases: int
    wrong: int = 0
    first: str = ""


class TimedRow(msgspec.Struct, frozen=True):
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
        cells = [
            size_text(self.nbytes),
            self.dtype,
            self.way,
            "none" if self.late is None else f"{self.late}",
            "-" if self.chunks is None else f"{self.chunks}",
            f"{self.time_s * 1e6:.1f}",
            "-" if self.predicted is None else str(self.predicted),
            "-" if self.host_s is None else f"{self.host_s * 1e6:.1f}",
            _gigabytes_per_s(self.algbw),
            _gigabytes_per_s(self.busbw),
            f"{self.wrong}",
        ]
        return _table_line(cells)


class GpuReport(msgspec.Struct):
    """All of it; what ``--json`` writes."""

    device: str
    ranks: int
    environment: Environment | None = None
    not_tried: dict[str, str] = {}
    checked: list[CheckedMethod] = []
    rows: list[TimedRow] = []
    error: str = ""

    @property
    def passed(self) -> bool:
        """Whether something was checked, and nothing of ours was wrong."""
        wrong = sum(checked.wrong for checked in self.checked)
        wrong += sum(row.wrong for row in self.rows if row.way in OURS)
        return bool(self.checked) and not wrong and not self.error

    def to_json(self) -> bytes:
        """For ``--json``: the bandwidths and the verdict are written out, too."""
        fields = msgspec.to_builtins(self)
        for row, row_fields in zip(self.rows, fields["rows"], strict=True):
            row_fields["algbw"] = row.algbw
            row_fields["busbw"] = row.busbw
        fields["passed"] = self.passed
        return msgspec.json.format(msgspec.json.encode(fields))


def size_text(nbytes: int) -> str:
    """With the greatest unit that divides it."""
    for unit in ("B", "KiB", "MiB"):
        if nbytes % KIB or nbytes < KIB:
            return f"{nbytes}{unit}"
        nbytes //= KIB
    return f"{nbytes}GiB"


def _gigabytes_per_s(bytes_per_s: float | None) -> str:
    return "-" if bytes_per_s is None else f"{bytes_per_s * 1e-9:.2f}"


def _table_line(cells: Sequence[str]) -> str:
    """One cell for each of the columns, right-aligned."""
    return " ".join(cell.rjust(width) for cell, (_, _, width) in zip(cells, COLUMNS, strict=True))


def table_head(shared: bool) -> list[str]:
    """The lines above the table."""
    notes = [
        "time: from the last arrival to the end on all ranks; predicted: docs/measurements/gpu.md",
        "by host: until a host that waits for ours with a time limit goes on; jobs' streams wait",
    ]
    if shared:
        notes.append("no GPU for each rank: times say nothing of a job, so no bandwidths")
    return [
        *(f"# {note}" for note in notes),
        _table_line([heading for heading, _, _ in COLUMNS]),
        _table_line([unit for _, unit, _ in COLUMNS]),
    ]
