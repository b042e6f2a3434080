"""A report of NCCL's RAS: of each communicator who is there, and who has launched how much.

Sources: ``src/ras/client_support.cc`` of NCCL (2.24 to 2.30), which writes both forms, and the
chapter on RAS of NCCL's user guide. JSON (``ncclras -f json``, from 2.28.7 on) has every rank; 2.28
leaves out a comma in it. The text lists ranks only where few differ from the others, who are then
all the rest.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import msgspec

from latecomer.verify.errors import FormatError

Lost = Literal["", "missing", "unresponsive", "dead"]
IN_PROGRESS = 7  # ncclInProgress: no error
REMOTE = 6  # ncclRemoteError: another rank's

COMMA_LEFT_OUT = re.compile(rb'("nvml_dev": -?\d+)(\s*"status")')
TEXT = re.compile(r"^\w*CCL version ", re.MULTILINE)  # RCCL's is the same
COMMUNICATOR = re.compile(r"#(\d+)-\d+ \(([0-9a-f]+)\) ([A-Z]+)")
RANK = re.compile(r"\s+Rank (\d+)(.*?) -- (?:GPU (\S+) managed by process (\d+) on node (\S+)|\[)")
SEVERAL = re.compile(r"\s+\d+ ranks? (.*)")
COUNTS = re.compile(r"\s+Communicator ranks have different (\w+) operation counts")
LAUNCHED = re.compile(r"ha(?:s|ve) (?:launched up to operation (\d+)|not launched any)")
PROCESS = re.compile(r"\s+Process (\d+) on node (\S+) managing")
ROW = re.compile(r"\s*(\d+)\s+\d+\s+\d+\s+\S+\s+(\d+)\s+\d+\s+[A-Z,]+\s+[A-Z,]+$", re.MULTILINE)


class Place(NamedTuple):
    """Where a rank runs, by which it is known in all communicators."""

    host: str
    process: int
    gpu: str


@dataclass
class Member:
    """A rank of a communicator."""

    rank: int
    place: Place | None = None
    launched: dict[str, int] | None = None  # collectives by kind; None: not known
    lost: Lost = ""
    error: str = ""
    is_own_error: bool = False  # not only that of another rank


@dataclass
class Communicator:
    """Of a communicator, its members by rank, as far as the report tells."""

    name: str  # its hash, as NCCL's logs have it
    size: int
    members: dict[int, Member] = field(default_factory=dict)
    is_partial: bool = False  # the counts differ, and the report does not tell whose

    def member(self, rank: int) -> Member:
        """The member of this rank, known before or not."""
        return self.members.setdefault(rank, Member(rank))


@dataclass
class Report:
    """All communicators of a job at one moment."""

    taken: str = ""  # as NCCL writes it; the text does not have it
    communicators: dict[str, Communicator] = field(default_factory=dict)


class _Status(msgspec.Struct):
    init_state: int = 0
    async_error: int = 0
    unresponsive: bool = False
    considered_dead: bool = False


class _Rank(msgspec.Struct):
    rank: int
    host: str = ""
    pid: int = 0
    cuda_dev: int = 0
    status: _Status = msgspec.field(default_factory=_Status)
    collective_counts: dict[str, int] = {}


class _Communicator(msgspec.Struct):
    hash: str = ""
    secondary_hash: str = ""
    size: int = 0
    ranks: list[_Rank] = []
    missing_ranks: list[_Rank] = []


class _Report(msgspec.Struct):
    communicators: list[_Communicator]
    timestamp: str = ""


def is_report(data: bytes) -> bool:
    """Whether a file holds a report, by its first bytes."""
    start = data[:4096].decode("utf-8", "replace")
    return '"communicators"' in start or TEXT.search(start) is not None


def parse(data: bytes, name: str) -> Report:
    """The report in ``data``, which is called ``name``; FormatError if it is none."""
    if data.lstrip().startswith(b"{"):
        return _from_json(data, name)
    return _from_text(data.decode("utf-8", "replace"), name)


def _from_json(data: bytes, name: str) -> Report:
    whole = COMMA_LEFT_OUT.sub(rb"\1,\2", data)
    try:
        raw = msgspec.json.decode(whole, type=_Report)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FormatError(name, f"is no report of NCCL's RAS: {error}") from None
    report = Report(raw.timestamp)
    for each in raw.communicators:
        key = each.hash.removeprefix("0x").rjust(16, "0")
        if key in report.communicators:
            key = f"{key}:{each.secondary_hash}"
        size = each.size or len(each.ranks) + len(each.missing_ranks)
        communicator = report.communicators[key] = Communicator(key, size)
        for rank in each.ranks:
            member = communicator.member(rank.rank)
            member.place = _place(rank)
            member.launched = rank.collective_counts
            member.error = _error(rank.status)
            member.is_own_error = rank.status.async_error != REMOTE
        for rank in each.missing_ranks:
            member = communicator.member(rank.rank)
            member.place = _place(rank)
            member.lost = _lost(rank.status)
    return report


def _place(rank: _Rank) -> Place | None:
    return Place(rank.host, rank.pid, str(rank.cuda_dev)) if rank.host else None


def _lost(status: _Status) -> Lost:
    if status.considered_dead:
        return "dead"
    return "unresponsive" if status.unresponsive else "missing"


def _error(status: _Status) -> str:
    if status.async_error not in (0, IN_PROGRESS):
        where = "of another rank" if status.async_error == REMOTE else "of its own"
        return f"an error {where}, number {status.async_error}"
    if status.init_state not in (0, IN_PROGRESS):
        return f"an error of its own while it was initialized, number {status.init_state}"
    return ""


def _from_text(text: str, name: str) -> Report:
    if "Communicators..." not in text:
        raise FormatError(name, "is no report of NCCL's RAS: it has no communicators")
    sizes = {int(row[1]): int(row[2]) for row in ROW.finditer(text)}
    report = Report()
    dead: set[tuple[str, int]] = set()  # host and process
    section = ""
    lines: list[str] = []
    communicator: Communicator | None = None
    for line in [*text.splitlines(), "#"]:
        if line[:1].strip():  # every section begins in the first column
            if communicator is not None:
                _read_section(communicator, section, lines)
            elif section == "DEAD":
                found = filter(None, map(PROCESS.match, lines))
                dead |= {(process[2], int(process[1])) for process in found}
            lines = []
            communicator = None
            section = line.strip()
            if begins := COMMUNICATOR.match(line):
                key = begins[2].rjust(16, "0")
                section = begins[3]
                made = Communicator(key, sizes.get(int(begins[1]), 0))
                communicator = report.communicators.setdefault(key, made)
        else:
            lines.append(line)
    for each in report.communicators.values():
        for member in each.members.values():
            if member.lost and member.place is not None and member.place[:2] in dead:
                member.lost = "dead"
    return report


def _read_section(communicator: Communicator, section: str, lines: list[str]) -> None:
    """Take what a section says of a communicator's ranks."""
    said = ""  # of the ranks that follow
    kind = ""  # of the collectives whose counts follow
    counts: dict[str, dict[int, int]] = defaultdict(dict)  # by kind and rank
    mentioned: dict[str, set[int]] = defaultdict(set)  # by kind, the counts that occur
    for line in lines:
        if begins := COUNTS.match(line):
            kind = begins[1]
            said = ""
        elif "different status" in line:
            kind = ""
        elif several := SEVERAL.match(line):
            said = several[1]
            if kind and (launched := LAUNCHED.search(said)):
                mentioned[kind].add(int(launched[1] or 0))
        elif found := RANK.match(line):
            member = communicator.member(int(found[1]))
            if found[3]:
                member.place = Place(host=found[5], process=int(found[4]), gpu=found[3])
            what = found[2].strip() or said
            if section == "INCOMPLETE":
                member.lost = "missing"
            elif section == "ERROR" and what.startswith("reported"):
                member.is_own_error = "remote" not in what
                where = "of its own" if member.is_own_error else "of another rank"
                member.error = f"an error {where}, {what.removeprefix('reported ')}"
            elif kind and (launched := LAUNCHED.search(what)):
                counts[kind][member.rank] = int(launched[1] or 0)
                mentioned[kind].add(int(launched[1] or 0))
    _count_the_others(communicator, counts, mentioned)


def _count_the_others(
    communicator: Communicator,
    counts: dict[str, dict[int, int]],
    mentioned: dict[str, set[int]],
) -> None:
    """Ranks that are not listed have the one count of which no rank is."""
    for kind, all_counts in mentioned.items():
        by_rank = counts[kind]
        others = all_counts - set(by_rank.values())
        if len(others) > 1 or not communicator.size:
            communicator.is_partial = True
            continue
        for rank in range(communicator.size):
            member = communicator.member(rank)
            launched = by_rank.get(rank, min(others, default=None))
            if launched is not None and not member.lost:
                member.launched = {**(member.launched or {}), kind: launched}
