"""The families of schedules: which one a file is of, what is read from it, and what checks it.

``read`` and ``parse`` give what is in a file, ``check`` says what is right or wrong about it.

Examples:
    >>> from latecomer import synth, verify
    >>> from latecomer.verify import families
    >>> verify.write(synth.ring(4), "ring.json")
    >>> parsed = families.read("ring.json")  # a Parsed
    >>> parsed.family.name, parsed.decoded.ranks
    ('collective', 4)
    >>> families.check(parsed).verdict
    <Verdict.PROVED: 'proved'>
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from latecomer.verify import kernel
from latecomer.verify.asynchronous.msccl import check_algorithm
from latecomer.verify.asynchronous.msccl_xml import Algorithm, is_xml
from latecomer.verify.asynchronous.msccl_xml import decode as decode_xml
from latecomer.verify.asynchronous.mscclpp import check_plan
from latecomer.verify.asynchronous.mscclpp_plan import Plan, decode_plan, is_plan
from latecomer.verify.asynchronous.teccl import Solution, check_flows, decode_flows, is_solution
from latecomer.verify.asynchronous.verdict import AsynchronousReport
from latecomer.verify.core.check import check as check_collective
from latecomer.verify.core.format import PIPELINE, decode, kind_of, read_bounded
from latecomer.verify.core.schedule import Schedule
from latecomer.verify.core.verdict import BaseReport, Report, Result
from latecomer.verify.options import OF_PROGRAMS, OF_ROUNDS, OF_SIZES, Options
from latecomer.verify.pipeline.check import check as check_pipeline
from latecomer.verify.pipeline.format import decode as decode_pipeline
from latecomer.verify.pipeline.format import encode as encode_pipeline
from latecomer.verify.pipeline.schedule import PipelineSchedule
from latecomer.verify.pipeline.simu_txt import decode_timeline
from latecomer.verify.pipeline.torch_csv import decode_csv
from latecomer.verify.pipeline.verdict import PipelineReport
from latecomer.verify.symbolic import all_sums

Decoded = Schedule | PipelineSchedule | Algorithm | Plan | Solution
"""What a file holds, before anything is known of it."""


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table: one kind of file.

    Attributes:
        name: of the family; kinds of files that hold the same share it.
        plural: what such files are called in messages.
        recognizes: whether a file is of this kind, by its name's ending and its bytes.
        decode: (bytes, file name for messages) -> what is in it; raises FormatError.
        check: what was read -> what is said of it; raises FormatError where a file turns out to be
            malformed only when its program is made.
        opinion: the extracted checker's result on it, within so many seconds; None: it has none.
        options: those that this kind takes, of the ones that not all kinds take.
    """

    name: str
    plural: str
    recognizes: Callable[[str, bytes], bool]
    decode: Callable[[bytes, str], Decoded]
    check: Callable[[Parsed, Options], BaseReport]
    opinion: Callable[[Parsed, BaseReport, float], Result] | None
    options: frozenset[str]


class Parsed(msgspec.Struct, frozen=True, kw_only=True):
    """A file as it was read; whether what it holds is right is not known yet.

    Attributes:
        family: the kind of the file.
        path: where it was; data: its bytes, uncompressed.
        decoded: what is in it.
    """

    family: Family
    path: Path
    data: bytes
    decoded: Decoded


def read(path: str | os.PathLike[str], options: Options | None = None) -> Parsed:
    """Read a file of any family.

    Args:
        path: of the file, whose ending counts for texts that are no JSON.
        options: refused here if they say how to read a file of another family.

    Raises:
        FormatError: the file can't be read, or is malformed.
        ArgumentError: an option that is not for this family.
    """
    return parse(read_bounded(os.fspath(path)), path, options)


def parse(
    data: bytes, path: str | os.PathLike[str] = "<bytes>", options: Options | None = None
) -> Parsed:
    """What ``read`` gives, of bytes that are already there; ``path`` names them in messages.

    Raises:
        FormatError: they are malformed.
        ArgumentError: an option that is not for this family.
    """
    path = Path(path)
    family = family_of(path.suffix, data)
    if options is not None:
        options.require_sizes_fit(family.options, os.fspath(path))
    decoded = family.decode(data, os.fspath(path))
    return Parsed(family=family, path=path, data=data, decoded=decoded)


def family_of(suffix: str, data: bytes) -> Family:
    """The first row of the table that recognizes a file; the last recognizes every file."""
    return next(family for family in FAMILIES if family.recognizes(suffix, data))


def check(parsed: Parsed, options: Options | None = None) -> BaseReport:
    """What is right and wrong about a file that was read.

    Args:
        parsed: the file.
        options: ``z3`` and ``kernel`` add to the results, sizes narrow what is looked at; those
            that are for another family are refused.

    Raises:
        FormatError: the file turns out to be malformed only now.
        ArgumentError: an option that is not for this family.
    """
    if options is None:
        options = Options()
    family = parsed.family
    report = family.check(parsed, options)

    # Not before the check: a file that the check finds malformed is called that first of all.
    options.require_fit(family.options, parsed.path, family.plural)
    if options.kernel and family.opinion is not None:
        report.results["coq_kernel"] = family.opinion(parsed, report, options.timeout_s)
    return report


def _check_collective(parsed: Parsed, options: Options) -> BaseReport:
    assert isinstance(parsed.decoded, Schedule)
    further_checks = {}
    if options.z3:
        further_checks["symbolic_sum"] = partial(all_sums, timeout_s=options.timeout_s)
    return check_collective(parsed.decoded, further_checks)


def _check_pipeline(parsed: Parsed, options: Options) -> BaseReport:
    assert isinstance(parsed.decoded, PipelineSchedule)
    return check_pipeline(parsed.decoded)


def _check_algorithm(parsed: Parsed, options: Options) -> BaseReport:
    assert isinstance(parsed.decoded, Algorithm)
    name = os.fspath(parsed.path)
    return check_algorithm(parsed.decoded, name, options.largest_size, options.slots)


def _check_plan(parsed: Parsed, options: Options) -> BaseReport:
    assert isinstance(parsed.decoded, Plan)
    return check_plan(parsed.decoded, os.fspath(parsed.path))


def _check_flows(parsed: Parsed, options: Options) -> BaseReport:
    assert isinstance(parsed.decoded, Solution)
    return check_flows(parsed.decoded)


def _opinion_on_file(parsed: Parsed, report: BaseReport, timeout_s: float) -> Result:
    """The extracted checker reads the schedule file itself."""
    assert isinstance(report, Report | PipelineReport)
    return kernel.opinion(parsed.data, report, timeout_s)


def _opinion_on_text(parsed: Parsed, report: BaseReport, timeout_s: float) -> Result:
    """It reads JSON only, so a pipeline from elsewhere is written out as JSON for it."""
    assert isinstance(parsed.decoded, PipelineSchedule)
    assert isinstance(report, PipelineReport)
    return kernel.opinion(encode_pipeline(parsed.decoded), report, timeout_s)


def _opinion_on_programs(parsed: Parsed, report: BaseReport, timeout_s: float) -> Result:
    assert isinstance(report, AsynchronousReport)
    return kernel.opinion_on_programs(report, timeout_s)


FAMILIES = (
    Family(
        name="msccl",
        plural="MSCCL algorithms",
        recognizes=lambda suffix, data: is_xml(data),
        decode=decode_xml,
        check=_check_algorithm,
        opinion=_opinion_on_programs,
        options=OF_PROGRAMS | OF_SIZES,
    ),
    Family(
        name="pipeline",
        plural="pipeline schedules",
        recognizes=lambda suffix, data: suffix == ".csv",
        decode=decode_csv,
        check=_check_pipeline,
        opinion=_opinion_on_text,
        options=OF_PROGRAMS,
    ),
    Family(
        name="pipeline",
        plural="pipeline schedules",
        recognizes=lambda suffix, data: suffix == ".txt",
        decode=decode_timeline,
        check=_check_pipeline,
        opinion=_opinion_on_text,
        options=OF_PROGRAMS,
    ),
    Family(
        name="msccl++",
        plural="MSCCL algorithms",
        recognizes=lambda suffix, data: is_plan(data),
        decode=decode_plan,
        check=_check_plan,
        opinion=_opinion_on_programs,
        options=OF_PROGRAMS,
    ),
    Family(
        name="te-ccl",
        plural="flows of TE-CCL",
        recognizes=lambda suffix, data: is_solution(data),
        decode=decode_flows,
        check=_check_flows,
        opinion=None,
        options=frozenset(),
    ),
    Family(
        name="pipeline",
        plural="pipeline schedules",
        recognizes=lambda suffix, data: kind_of(data) == PIPELINE,
        decode=decode_pipeline,
        check=_check_pipeline,
        opinion=_opinion_on_file,
        options=OF_PROGRAMS,
    ),
    Family(
        name="collective",
        plural="schedules of collectives",
        recognizes=lambda suffix, data: True,
        decode=decode,
        check=_check_collective,
        opinion=_opinion_on_file,
        options=OF_PROGRAMS | OF_ROUNDS,
    ),
)
"""In the order in which they are asked: XML before names, names before what JSON says it is.

PyTorch's CSV of a pipeline and timelines of PipeMorph are known by their names only.
"""
