"""The files that are given to ``explain``: what each is, and of which rank.

A rank's number is in the name of its dump: behind the word ``rank``, or else at the end. Where no
dump has one, they are numbered in the order of their names.
"""

from __future__ import annotations

import multiprocessing
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from latecomer.runtime.explain import ras
from latecomer.runtime.explain.dumps import is_dump, read_bytes
from latecomer.runtime.explain.inspector import (
    Completed,
    is_inspected,
    read_inspected,
    together,
)
from latecomer.runtime.explain.records import Record, read_record
from latecomer.runtime.explain.slow import Together
from latecomer.runtime.explain.watched import read_watched
from latecomer.runtime.telemetry.files import DUMPS, files_in
from latecomer.verify.errors import ArgumentError, FormatError

RANK = re.compile(r"rank[-_. ]?(\d+)", re.IGNORECASE)
AT_END = re.compile(r"(\d+)(?:\.json|\.pkl|\.pickle|\.bin)?$")
ALONE = 32  # so many files are read faster here than by processes that have to be started
LOOKED_AT = 4096  # bytes at the beginning of a file, by which it is known


@dataclass
class Sources:
    """What there is of a job.

    Attributes:
        records: by rank, what its Flight Recorder has kept, or a watch.
        stands: whether they are of a job that stands still.
        reports: of NCCL's RAS, the oldest first, each of another moment.
        together: operations of which it is known when each rank came to them.
        notices: what to tell about the files.
    """

    records: dict[int, Record] = field(default_factory=dict)
    stands: bool = False
    reports: list[ras.Report] = field(default_factory=list)
    together: list[Together] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)


def read_sources(paths: Iterable[Path], processes: int = 1) -> Sources:
    """Read files, and those in directories that are of a kind that is known.

    Args:
        processes: how many read many files. More than one only where the main module of the
            program may be imported again, as for :mod:`multiprocessing`.

    Raises:
        FormatError: a file is none of these, or two are of one rank.
        ArgumentError: there is none.
    """
    sources = Sources()
    dumps: list[Path] = []
    inspected: list[Completed] = []
    watched: dict[int, Record] = {}
    watched_stands = False
    has_watch = False
    for path in _files(paths, sources.notices):
        if path.is_dir():
            has_watch = True
            watch = read_watched(path)
            watched |= watch.records
            watched_stands |= watch.stands
            sources.together += watch.together
            sources.notices += watch.notices
            if watch.needs_dumps:  # those of an earlier trouble tell nothing of this one
                written = sorted((path / DUMPS).glob("rank_*"))
                dumps += [each for each in written if each.stat().st_mtime > watch.newest_unix_s]
            continue
        start = beginning(path)
        if ras.is_report(start):
            _take_report(ras.parse(read_bytes(path), str(path)), path, sources)
        elif is_inspected(start):
            inspected += read_inspected(path)
        else:
            dumps.append(path)
    sources.reports.sort(key=lambda report: report.taken)
    sources.together += together(inspected)
    by_rank = _by_rank(dumps, sources.notices)
    records = _read_records(list(by_rank.values()), processes)
    sources.records = dict(zip(by_rank, records, strict=True)) or watched
    sources.stands = bool(records) or watched_stands
    if not (sources.records or sources.reports or inspected or has_watch):
        raise ArgumentError("FILE", "none", "must be what the ranks of a job have left")
    return sources


def rank_in(path: Path) -> int | None:
    """The rank whose number is in the name of a file; nothing if there is none."""
    found = RANK.search(path.name) or AT_END.search(path.name)
    return int(found[1]) if found else None


def _files(paths: Iterable[Path], notices: list[str]) -> Iterator[Path]:
    """The files themselves; of directories, those that have a rank's number or look like ours.

    A directory of ``latecomer.watch`` is one for itself.
    """
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        if files_in(path):
            yield path
            continue
        inside = [each for each in sorted(path.iterdir()) if each.is_file()]
        known = [each for each in inside if rank_in(each) is not None or _is_known(each)]
        if not known:
            requirement = "has no file whose name has a rank's number, nor one that is known"
            raise ArgumentError("DIR", str(path), requirement)
        if skipped := [each.name for each in inside if each not in known]:
            notices.append(f"{path}: not read: {', '.join(skipped)}")
        yield from known


def _take_report(report: ras.Report, path: Path, sources: Sources) -> None:
    """Add a report, unless it was given before: a copy shows no second moment.

    Two texts that agree may be of two moments, for they do not tell when they were taken. They
    count as one, too: that nothing has moved between them is not known.
    """
    if report in sources.reports:
        sources.notices.append(f"{path}: says the same as a report before it: one moment, not two")
    else:
        sources.reports.append(report)


def _is_known(path: Path) -> bool:
    """Whether a file begins as a dump or a report does."""
    start = beginning(path)
    return is_dump(start) or ras.is_report(start) or is_inspected(start)


def beginning(path: Path) -> bytes:
    """The first bytes of a file, by which its kind is known; FormatError if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(LOOKED_AT)
    except OSError as error:
        raise FormatError(str(path), f"cannot be read: {error.strerror}") from None


def _by_rank(dumps: list[Path], notices: list[str]) -> dict[int, Path]:
    ranks = [rank_in(path) for path in dumps]
    if dumps and all(rank is None for rank in ranks):
        notices.append("no name has a rank's number: they are numbered in the order of names")
        ranks = list(range(len(dumps)))
    by_rank: dict[int, Path] = {}
    for rank, path in zip(ranks, dumps, strict=True):
        if rank is None:
            raise FormatError(str(path), "has no rank's number in its name, as others have")
        if rank in by_rank:
            raise FormatError(str(path), f"is a second dump of rank {rank}")
        by_rank[rank] = path
    return by_rank


def _read_records(paths: list[Path], processes: int) -> list[Record]:
    if processes == 1 or len(paths) <= ALONE:
        return [read_record(path) for path in paths]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        return list(pool.map(read_record, paths, chunksize=4))
