"""The options of the command ``verify``: what each has to be, and which families take which.

Whatever can't be met is refused here, as an ``ArgumentError`` with the option's name, its value,
what it has to be and, where there is one, the remedy. What is wrong with the options alone is
refused before any file is read.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path

import msgspec

from latecomer.verify import kernel
from latecomer.verify.certify import require_target
from latecomer.verify.device.program import require_power_of_two
from latecomer.verify.errors import ArgumentError
from latecomer.verify.loss.examine import require_few
from latecomer.verify.replacing import COQ_PROOF, DRAWING, PAGE, SMT2, require_replaceable
from latecomer.verify.viewer.part import parse_part

# Z3 is told it in milliseconds, as a number of 32 bits.
MAX_TIMEOUT_S = 1e6

# What is proved is sets + 1 operations in a row (latecomer.verify.device.order), each with all
# rows.
MOST_SETS = 16
MOST_SLOTS = 2**16
UNITS = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}

OF_PROGRAMS = frozenset({"--kernel"})
"""Options for whatever has a program for each rank: all but flows."""

OF_ROUNDS = frozenset({"--z3", "--smt2", "--loss", "--certify", "--device"})
"""Options for schedules of rounds, which are collectives."""

OF_SIZES = frozenset({"--max-bytes", "--slots"})
"""Options that say for which sizes of messages and FIFOs a program is checked."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What was typed, besides the files; ``None`` where an option was not given.

    Attributes:
        json, quiet: what is printed.
        z3: whether Z3 proves the sums once more.
        timeout_s: for Z3, for the search for losses and for the extracted checker.
        smt2: where Z3's question goes; ``-`` is stdout.
        loss: the most transfers that are lost; ``draw``: where the picture of it goes.
        kernel: whether the extracted checker is asked, too.
        certify: where the file for Coq goes.
        html: where the page goes; ``html_part``: what it shows, as ``16-31``.
        max_bytes: the largest buffers that are meant, as ``64MiB``.
        slots: messages that a FIFO holds.
        force: whether files are replaced that this command has not written.
        device: staging sets of the one kernel per rank that is checked, too.
        nodes: of the machine, each of which has kernels of its own; transfers go between them.
    """

    json: bool = False
    quiet: bool = False
    z3: bool = False
    timeout_s: float = 60.0
    smt2: Path | None = None
    loss: int | None = None
    draw: Path | None = None
    kernel: bool = False
    certify: Path | None = None
    html: Path | None = None
    html_part: str | None = None
    max_bytes: str | None = None
    slots: int | None = None
    device: int | None = None
    nodes: int | None = None
    force: bool = False

    @property
    def question_on_stdout(self) -> bool:
        """Whether stdout is for Z3's question, so that the report goes to stderr."""
        return str(self.smt2) == "-"

    @property
    def largest_size(self) -> int | None:
        """``max_bytes`` as a number.

        Raises:
            ArgumentError: it is no size.
        """
        return None if self.max_bytes is None else _size_in_bytes(self.max_bytes)

    def require_usable(self, files: Sequence[Path]) -> None:
        """Refuse what can't be met, before any of ``files`` is read.

        Raises:
            ArgumentError: a value out of its range, options that exclude each other, or a target
                whose replacement would lose something.
        """
        file_count = len(files)
        self._require_time()
        self._require_one_file(file_count)
        self._require_targets(file_count)
        self._require_losses(file_count)
        self._require_sets()
        self._require_sizes()
        self._require_replaceable(files)
        if self.kernel:
            kernel.program()

    def require_sizes_fit(self, taken: AbstractSet[str], name: str) -> None:
        """Refuse sizes of messages for a file of a family that has none.

        Args:
            taken: the options that the family takes; ``name``: of the file.

        Raises:
            ArgumentError: such an option was given.
        """
        for option, value in (("--max-bytes", self.largest_size), ("--slots", self.slots)):
            if value is not None and option not in taken:
                raise ArgumentError(option, value, f"is for programs of thread blocks, not {name}")

    def require_fit(self, taken: AbstractSet[str], path: Path, family: str) -> None:
        """Refuse options that are for another family.

        Args:
            taken: the options that the family takes.
            path: of the file; ``family``: what files of its family are called.

        Raises:
            ArgumentError: such an option was given.
        """
        given = {
            "--z3": self.z3,
            "--smt2": self.smt2 is not None,
            "--loss": self.loss is not None,
            "--certify": self.certify is not None,
            "--device": self.device is not None,
            "--kernel": self.kernel,
        }
        for option, is_given in given.items():
            if is_given and option not in taken:
                raise ArgumentError(option, str(path), f"is not for {family}")

    def _require_time(self) -> None:
        if not 0 < self.timeout_s <= MAX_TIMEOUT_S:  # false for nan, too
            raise ArgumentError(
                "--timeout", self.timeout_s, f"must be above 0, at most {MAX_TIMEOUT_S:g} s"
            )

    def _require_one_file(self, file_count: int) -> None:
        """A question and a certificate are of one schedule."""
        _require_single("--smt2", self.smt2, file_count)
        _require_single("--certify", self.certify, file_count)
        if self.question_on_stdout and self.json:
            raise ArgumentError(
                "--smt2", "-", "can't share stdout with --json", "Name a file for the question."
            )

    def _require_targets(self, file_count: int) -> None:
        """A certificate that Coq can compile, and a page of one file."""
        if self.certify is not None:
            require_target(self.certify)

        _require_single("--html", self.html, file_count)
        if self.html_part is not None:
            parse_part(self.html_part)
            if self.html is None:
                raise ArgumentError("--html-part", self.html_part, "is for --html")

    def _require_losses(self, file_count: int) -> None:
        if self.loss is not None:
            require_few(self.loss)
        if self.draw is None:
            return

        if self.loss is None:
            raise ArgumentError(
                "--draw", str(self.draw), "is used only with --loss", "Add --loss 1"
            )
        _require_single("--draw", self.draw, file_count)
        if self.draw.suffix != ".svg":
            raise ArgumentError("--draw", str(self.draw), "must end in .svg")

    def _require_replaceable(self, files: Sequence[Path]) -> None:
        targets = (
            ("--html", self.html, PAGE),
            ("--draw", self.draw, DRAWING),
            ("--certify", self.certify, COQ_PROOF),
            ("--smt2", None if self.question_on_stdout else self.smt2, SMT2),
        )
        for option, target, kind in targets:
            if target is not None:
                require_replaceable(option, target, kind, inputs=files, force=self.force)

    def _require_sets(self) -> None:
        if self.nodes is not None and self.device is None:
            remedy = "Add --device 2"
            raise ArgumentError("--nodes", self.nodes, "is used only with --device", remedy)
        if self.nodes is not None and self.kernel:
            remedy = "Leave one of them out"
            raise ArgumentError("--nodes", self.nodes, "can't be asked of --kernel", remedy)
        if self.device is None:
            return
        if not 1 <= self.device <= MOST_SETS:
            raise ArgumentError(
                "--device", self.device, f"must be 1 to {MOST_SETS} sets", "The runtime has 2"
            )
        require_power_of_two(self.device, "--device")

    def _require_sizes(self) -> None:
        if self.slots is not None and not 1 <= self.slots <= MOST_SLOTS:
            raise ArgumentError("--slots", self.slots, f"must be in 1 .. {MOST_SLOTS}")
        if self.max_bytes is not None:
            _size_in_bytes(self.max_bytes)


def _require_single(option: str, target: Path | None, file_count: int) -> None:
    if target is not None and file_count != 1:
        raise ArgumentError(option, str(target), "needs exactly one schedule file")


def _size_in_bytes(text: str) -> int:
    """The number of bytes that ``4096`` or ``64MiB`` means; ArgumentError for anything else."""
    size = 0
    parts = re.fullmatch(r"(\d{1,18})\s*([KMGT]iB)?", text)
    if parts is not None:
        size = int(parts[1]) * UNITS[parts[2] or ""]
    if not 0 < size < 2**63:
        raise ArgumentError("--max-bytes", text, "must be a size such as 4096 or 64MiB")
    return size
