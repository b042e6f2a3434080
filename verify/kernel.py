"""A third opinion: the checker that was extracted from the proofs in Coq (``proofs/``).

``make proofs`` builds ``proofs/build/latecomer-kernel`` from theories in which it is proved that
what this program accepts is right, and what it rejects is wrong. It reads the bytes of the schedule
file itself and shares nothing with ``verify``. What must still be believed: see docs/trust.md.

The two checkers must agree. Where they do not, the verdict is unknown, and says so: one of them has
a fault.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from verify.errors import ArgumentError
from verify.verdict import PROVED, Counterexample, Report, Result, Verdict, refuted, unknown

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
        preexec_fn=_more_stack,
    )
    if done.returncode not in (0, 1, 2):
        raise subprocess.CalledProcessError(done.returncode, PROGRAM, done.stdout, done.stderr)
    for line in done.stdout.splitlines():
        yield msgspec.json.decode(line, type=dict[str, Any])


def opinion(data: bytes, report: Report, timeout_s: float) -> Result:
    """The program's verdict on a file of which ``verify`` says ``report``; unknown if they differ.

    Raises:
        ArgumentError: the program is not built.
    """
    try:
        (answer,) = judge([data], timeout_s)
    except subprocess.TimeoutExpired:
        return unknown(f"no answer in {timeout_s:g} s")
    except subprocess.CalledProcessError as error:
        return unknown(f"{PROGRAM} crashed: {error.stderr.decode(errors='replace').strip()}")
    difference = differs(answer, report)
    if difference:
        return unknown(f"verify and the program disagree, one of them is wrong: {difference}")
    if answer["accepted"]:
        return PROVED
    broken = next(name for name, said in answer["properties"].items() if said == "refuted")
    return refuted(
        Counterexample(property="coq_kernel", expected=f"{broken} to hold", found="it does not")
    )


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


def _more_stack() -> None:
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_STACK)
    limit = STACK_BYTES if hard == resource.RLIM_INFINITY else min(STACK_BYTES, hard)
    resource.setrlimit(resource.RLIMIT_STACK, (limit, hard))
