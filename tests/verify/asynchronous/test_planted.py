"""Planted faults are refuted, unless an independent executor finds nothing wrong with them.

And the other way round: what is refuted for anything but a race really goes wrong when executed.
"""

from collections import Counter

import pytest

from bench.corpus.confirm import Seen, counterexample
from bench.corpus.parse import parse
from latecomer.verify.asynchronous.msccl import verify_xml
from latecomer.verify.core.verdict import Verdict
from latecomer.verify.errors import FormatError
from tests.verify.asynchronous.planted import Fault, bases, sample

KINDS = {
    "dropped dep",
    "weakened dep",
    "unpublished flag",
    "dropped step",
    "swapped offset",
    "doubled reduce",
    "crossed waits",
}


def executed(fault: Fault, folder, hints=(), seeds=40) -> Seen | None:
    path = folder / "fault.xml"
    path.write_bytes(fault.data)
    return counterexample(parse(path), hints, seeds)


def judged(fault: Fault, folder) -> str:
    """``caught``, or ``harmless`` where execution agrees; fails where the two do not fit."""
    try:
        report = verify_xml(fault.data)
    except FormatError:
        return "caught"
    name = f"{fault.kind}: {fault.location}"
    if report.verdict is Verdict.PROVED:
        wrong_run = executed(fault, folder)
        assert wrong_run is None, f"{name}: proved, but {wrong_run}"
        return "harmless"
    assert report.verdict is Verdict.REFUTED, name
    wrong = report.counterexample
    assert wrong is not None
    if wrong.property != "race_free":
        assert executed(fault, folder, wrong.actions) is not None, f"{name}: {wrong}"
    return "caught"


def test_the_files_are_right_without_faults(tmp_path):
    for name, data in bases().items():
        assert verify_xml(data).verdict is Verdict.PROVED, name
        assert executed(Fault("", name, data), tmp_path, seeds=3) is None


def test_faults_are_caught_or_harmless(tmp_path):
    faults = sample(28)
    assert {fault.kind for fault in faults} == KINDS
    assert Counter(judged(fault, tmp_path) for fault in faults)["caught"] > 18


@pytest.mark.long
def test_every_fault_is_caught_or_harmless(tmp_path):
    faults = sample(10**6)
    assert len(faults) > 300
    assert Counter(judged(fault, tmp_path) for fault in faults)["caught"] > len(faults) * 0.7
