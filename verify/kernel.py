"""A third opinion: the checker that was extracted from the proofs in Coq (``proofs/``).

``make proofs`` builds ``proofs/build/latecomer-kernel`` from theories in which it is proved that
what this program accepts is right, and what it rejects is wrong. It reads the bytes of the schedule
file itself and shares nothing with ``verify``. What must still be believed: see trust.md.

The two checkers must agree. Where they do not, the verdict is unknown, and says so: one of them has
a fault. Of pipelines it judges those that are compute only, over links without occupancy, which is
what the theorems are about; the verdict on others is unknown.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import msgspec

from latecomer.verify.asynchronous.kernel_model import encode
from latecomer.verify.asynchronous.verdict import AsynchronousReport
from latecomer.verify.core.verdict import (
    PROVED,
    Counterexample,
    Report,
    Result,
    Verdict,
    overall,
    refuted,
    unknown,
)
from latecomer.verify.device.check import DeviceReport
from latecomer.verify.errors import ArgumentError
from latecomer.verify.pipeline.costs import written
from latecomer.verify.pipeline.verdict import PipelineReport

PROGRAM = "latecomer-kernel"
VARIABLE = "LATECOMER_KERNEL"
BUILT = Path(__file__).resolve().parents[1] / "proofs" / "build" / PROGRAM
STACK_BYTES = 2**30
"""Extracted programs recurse over lists; the default stack is too small for the longest."""


def program() -> Path:
    """Where the program is: ``LATECOMER_KERNEL``, the build folder of a checkout, or ``PATH``.

    Raises:
        ArgumentError: it is at none of these places.
    """
    named = os.environ.get(VARIABLE)
    if named:
        if not os.access(named, os.X_OK):
            raise ArgumentError(VARIABLE, named, "must be a program that can be run")
        return Path(named)
    if os.access(BUILT, os.X_OK):
        return BUILT
    found = shutil.which(PROGRAM)
    if found is None:
        raise ArgumentError(
            "--kernel", "coq", f"{PROGRAM} is not built", "Run make proofs in a checkout"
        )
    return Path(found)


def judge(texts: Iterable[bytes], timeout_s: float | None = None) -> Iterator[dict[str, Any]]:
    """What the program says of each (uncompressed) schedule file; lines are joined, JSON has none.

    Raises:
        ArgumentError: the program is not built.
        subprocess.TimeoutExpired: no answer in ``timeout_s`` seconds.
        subprocess.CalledProcessError: it crashed (out of memory or stack).
    """
    lines = b"".join(text.replace(b"\n", b" ").replace(b"\r", b" ") + b"\n" for text in texts)
    done = subprocess.run(
        [program(), "-"],
        input=lines,
        capture_output=True,
        timeout=timeout_s,
        check=False,
        # In the child, so that our own limit stays as it is.
        preexec_fn=_more_stack,
    )
    if done.returncode not in (0, 1, 2):
        raise subprocess.CalledProcessError(done.returncode, PROGRAM, done.stdout, done.stderr)
    for line in done.stdout.splitlines():
        yield msgspec.json.decode(line, type=dict[str, Any])


def opinion(
    data: bytes, report: Report | PipelineReport | DeviceReport, timeout_s: float
) -> Result:
    """The program's verdict on a file of which ``verify`` says ``report``; unknown if they differ.

    Of a pipeline also where the theorems don't cover it.

    Raises:
        ArgumentError: the program is not built.
    """
    answer = _answer(data, timeout_s)
    if isinstance(answer, str):
        return unknown(answer)
    if "outside" in answer:
        return unknown(f"the theorems do not cover {answer['outside']}")
    if isinstance(report, Report):
        difference = differs(answer, report)
    elif isinstance(report, DeviceReport):
        difference = device_differs(answer, report)
    else:
        difference = pipeline_differs(answer, report)
    if difference:
        return unknown(f"verify and the program disagree, one of them is wrong: {difference}")
    if answer["accepted"]:
        return PROVED
    broken = next(name for name, said in answer["properties"].items() if said == "refuted")
    return refuted(
        Counterexample(property="coq_kernel", expected=f"{broken} to hold", found="it does not")
    )


def opinion_on_programs(report: AsynchronousReport, timeout_s: float) -> Result:
    """The checker's verdict on programs of thread blocks, of which ``verify`` says ``report``.

    It decides on the program that was made of the file, for each placement and at every size of
    messages: whether it ends, without races, with the right values. A race refutes nothing there,
    it only keeps the checker from accepting.

    Raises:
        ArgumentError: the checker is not built.
    """
    unread = [
        name
        for name, result in report.results.items()
        if name not in DECIDED_ON_PROGRAMS and result.verdict is not Verdict.PROVED
    ]
    if unread:
        return unknown(f"{unread[0]} does not hold, so the file has no program to decide on")

    if not report.programs:
        return unknown("the verdict rests on more of the file than a program can say")

    texts = [encode(program, sizes) for program, sizes in report.programs]
    answers = _answers(texts, timeout_s)
    if isinstance(answers, str):
        return unknown(answers)
    malformed = [answer["malformed"] for answer in answers if "malformed" in answer]
    if malformed:
        return unknown(f"it can't read the program ({malformed[0]})")

    difference = programs_differ(answers, report.results)
    if difference:
        return unknown(f"verify and the checker disagree, one of them is wrong: {difference}")
    if all(answer["accepted"] for answer in answers):
        return PROVED
    for answer in answers:
        if answer["answer"] in WRONG_ENDS:
            size = answer["size"]
            found = f"{WRONG_ENDS[answer['answer']]}, with {size} chunk{'s' * (size > 1)} a message"
            return refuted(
                Counterexample(
                    property="coq_kernel",
                    expected="every execution to end with the right values",
                    found=found,
                )
            )
    return unknown("the checker can't tell: races are not what it refutes")


DECIDED_ON_PROGRAMS = ("deadlock_free", "race_free", "right_values")
"""What the checker says of a program; other properties are about reading a file."""

WRONG_ENDS = {"hangs": "no execution ends", "wrong": "an execution ends with other values"}


def programs_differ(answers: list[dict[str, Any]], results: Mapping[str, Result]) -> str:
    """Where the checker and ``verify`` contradict each other; empty if they do not.

    Args:
        answers: of the checker, on each program of a file.
        results: of ``verify``, by property.
    """
    here = overall(results[name].verdict for name in DECIDED_ON_PROGRAMS)
    there = [answer["answer"] for answer in answers]
    if here is Verdict.PROVED and set(there) != {"right"}:
        return f"it is {here} here, {', '.join(there)} there"
    if here is not Verdict.PROVED and set(there) == {"right"}:
        return f"it is {here} here, right there"
    hangs = results["deadlock_free"].verdict is Verdict.REFUTED
    if "hangs" in there and not hangs:
        return "it ends here, and hangs there"
    if hangs and "unknown" not in there and "hangs" not in there:
        return f"it hangs here, and there it is {', '.join(there)}"
    return ""


def differs(answer: Mapping[str, Any], report: Report) -> str:
    """Where the program and ``verify`` contradict each other; empty if they do not."""
    if "malformed" in answer:
        return f"it can't read the file ({answer['malformed']})"
    for name, said in answer["properties"].items():
        own = report.results[name].verdict
        # It does not decide same_bits where a sum is wrong, nor anything without good indices.
        if said not in (Verdict.UNKNOWN, own):
            return f"{name} is {own} here, {said} there"
    if report.results["well_formed"].verdict is Verdict.PROVED:
        for name in ("completion_rounds", "lower_bound"):
            if answer[name] != getattr(report, name):
                return f"{name} is {getattr(report, name)} here, {answer[name]} there"
    if answer["accepted"] and answer["optimal"] != report.optimal:
        return f"optimal is {report.optimal} here, {answer['optimal']} there"
    return ""


def pipeline_differs(answer: Mapping[str, Any], report: PipelineReport) -> str:
    """Where the program and ``verify`` contradict each other; empty if they do not."""
    if "malformed" in answer:
        return f"it can't read the file ({answer['malformed']})"
    own = {name: finding.verdict for name, finding in report.results.items()}
    joined = {  # one property there, several here: all must hold
        "exactly_once": ("well_formed", "exactly_once"),
        "deadlock_free": ("dependencies", "deadlock_free"),
    }
    for name, said in answer["properties"].items():
        here = overall([own[part] for part in joined.get(name, (name,))])
        if Verdict.UNKNOWN not in (said, here) and said != here:
            return f"{name} is {here} here, {said} there"
    if "makespan" not in answer:
        return "" if report.measures is None else "the schedule ends here, and not there"
    if report.measures is None:
        return "the schedule ends there, and not here"
    unit = 10 ** answer["decimals"]
    exact = report.measures.exact
    makespan = exact.time(exact.makespan)
    their_makespan = Fraction(answer["makespan"], unit)
    if their_makespan != makespan:
        return f"makespan is {written(makespan)} here, {written(their_makespan)} there"
    if answer["lower_bound"] > answer["makespan"]:
        return "its lower bound is above its makespan"
    peaks = answer["peak_memory_halves"]
    if peaks != list(exact.peak_memory):
        return f"peak memory is {list(exact.peak_memory)} halves here, {peaks} there"
    return ""


def device_differs(answer: Mapping[str, Any], report: DeviceReport) -> str:
    """Where the program and ``verify`` contradict each other; empty if they do not.

    The program judges the schedule, too, of which this report does not speak.
    """
    if "malformed" in answer:
        return f"it can't read the rows ({answer['malformed']})"
    for name, result in report.results.items():
        said = answer["properties"][name]
        if said != result.verdict:
            return f"{name} is {result.verdict} here, {said} there"
    return ""


def _answer(data: bytes, timeout_s: float) -> dict[str, Any] | str:
    """What the program says of one file, or why it says nothing."""
    answers = _answers([data], timeout_s)
    return answers if isinstance(answers, str) else answers[0]


def _answers(texts: list[bytes], timeout_s: float) -> list[dict[str, Any]] | str:
    """What the program says of each text, or why it says nothing."""
    try:
        return list(judge(texts, timeout_s))
    except subprocess.TimeoutExpired:
        return f"no answer in {timeout_s:g} s"
    except subprocess.CalledProcessError as error:
        return f"{PROGRAM} crashed: {error.stderr.decode(errors='replace').strip()}"


def _more_stack() -> None:
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_STACK)
    limit = STACK_BYTES if hard == resource.RLIM_INFINITY else min(STACK_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_STACK, (limit, hard))
