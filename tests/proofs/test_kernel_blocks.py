"""The extracted checker decides on programs of thread blocks, and agrees with ``verify``."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from latecomer.synth.export.msccl_xml import encode as export_xml
from latecomer.synth.export.mscclpp import encode as export_plan
from latecomer.verify.asynchronous.kernel_model import encode
from latecomer.verify.asynchronous.msccl import verify_xml
from latecomer.verify.asynchronous.mscclpp import verify_plan
from latecomer.verify.asynchronous.verdict import AsynchronousReport
from latecomer.verify.cli import app
from latecomer.verify.core.verdict import Verdict
from latecomer.verify.errors import FormatError
from latecomer.verify.kernel import judge, opinion_on_programs, programs_differ
from tests.hunt.test_hunt import KEPT
from tests.synth.export.schedules import straggler
from tests.verify.asynchronous.algorithms import (
    Algorithm,
    algorithm,
    block,
    changed,
    pair_allreduce,
    ring_allreduce,
    step,
    xml,
)
from tests.verify.asynchronous.planted import bases, sample
from tests.verify.asynchronous.test_evidence import kept_in_order

SECONDS = 120


def answers(report: AsynchronousReport) -> list[str]:
    texts = [encode(program, sizes) for program, sizes in report.programs]
    return [str(answer["answer"]) for answer in judge(texts, SECONDS)]


def exchange(first: str, second: str, **more: int) -> Algorithm:
    """Two ranks that do the same with each other, on one block each."""
    steps = [step(first, **more), step(second, **more)]
    gpus = [[block(1 - rank, 1 - rank, steps)] for rank in range(2)]
    return algorithm("allreduce", more.get("cnt", 1), gpus)


@pytest.mark.parametrize("name", bases())
def test_what_is_right_is_accepted(kernel: Path, name: str) -> None:
    report = verify_xml(bases()[name])
    assert set(answers(report)) == {"right"}
    assert opinion_on_programs(report, SECONDS).verdict is Verdict.PROVED


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
def test_exports_are_accepted(kernel: Path, ranks: int) -> None:
    assert set(answers(verify_xml(export_xml(straggler(ranks))))) == {"right"}
    assert answers(verify_plan(export_plan(straggler(ranks)))) == ["right"]


def test_what_hangs_is_said_to(kernel: Path) -> None:
    report = verify_xml(xml(exchange("rrc", "s")))
    assert answers(report) == ["hangs"]
    assert opinion_on_programs(report, SECONDS).verdict is Verdict.REFUTED


def test_a_hang_at_some_size_is_found(kernel: Path) -> None:
    """Eight chunks at once are more messages than there are slots, from a size on."""
    eight = xml(exchange("s", "rrc", cnt=8))
    assert answers(verify_xml(eight)) == ["hangs"]
    assert answers(verify_xml(eight, max_bytes=4 * 2**20)) == ["right"]


def test_a_wrong_sum_is_said_to_be(kernel: Path) -> None:

    def copy_for_a_reduction(ring: Algorithm) -> None:
        ring["gpus"][1][0]["steps"][1].update(type="rcs", srcoff=0)

    report = verify_xml(xml(changed(ring_allreduce(3), copy_for_a_reduction)))
    assert answers(report) == ["wrong"]
    assert opinion_on_programs(report, SECONDS).verdict is Verdict.REFUTED


def test_a_race_is_not_accepted(kernel: Path) -> None:
    def no_wait(pairs: Algorithm) -> None:
        pairs["gpus"][0][2]["steps"][0].update(depid=-1, deps=-1)

    report = verify_xml(xml(changed(pair_allreduce(), no_wait)))
    assert report.results["race_free"].verdict is Verdict.REFUTED
    assert answers(report) == ["unknown"]
    assert opinion_on_programs(report, SECONDS).verdict is Verdict.UNKNOWN


@pytest.mark.parametrize("protocol", ["LL", "Simple"])
def test_values_are_those_that_the_slots_permit(kernel: Path, protocol: str) -> None:
    """Where only slots put a write before a read, the run has to have slots as well."""

    def set_protocol(program: Algorithm) -> None:
        program["head"].update(proto=protocol)

    report = verify_xml(xml(changed(kept_in_order(True), set_protocol)))
    assert "right" not in answers(report)


@pytest.mark.parametrize("part", range(4))
def test_it_agrees_about_planted_faults(kernel: Path, part: int) -> None:
    agreed = 0
    for fault in sample(80)[part::4]:
        try:
            report = verify_xml(fault.data)
        except FormatError:
            continue
        opinion = opinion_on_programs(report, SECONDS)
        assert "disagree" not in opinion.note, f"{fault.kind}, {fault.location}: {opinion.note}"
        agreed += opinion.verdict is report.verdict
    assert agreed > 8


@pytest.mark.parametrize("path", sorted(KEPT.iterdir()), ids=lambda path: path.name)
def test_what_was_found_once_is_not_accepted(kernel: Path, path: Path) -> None:
    """Nor does it contradict a verdict that rests on more than the program."""
    read = {".xml": verify_xml, ".json": verify_plan}[path.suffix]
    try:
        report = read(path.read_bytes())
    except FormatError:
        return
    opinion = opinion_on_programs(report, SECONDS)
    assert "disagree" not in opinion.note
    if path.name.startswith("not-proved"):
        assert opinion.verdict is not Verdict.PROVED
    if opinion.verdict is Verdict.REFUTED:
        assert report.verdict is Verdict.REFUTED


def test_a_difference_is_noticed(kernel: Path) -> None:
    right = verify_xml(bases()["ring 4"])
    hanging = verify_xml(xml(exchange("rrc", "s")))
    assert "right there" in programs_differ([{"answer": "right"}], hanging.results)
    assert "hangs there" in programs_differ([{"answer": "hangs"}], right.results)
    assert "wrong there" in programs_differ([{"answer": "wrong"}], right.results)
    assert not programs_differ([{"answer": "right"}], right.results)

    claimed = replace(right, programs=hanging.programs)
    opinion = opinion_on_programs(claimed, SECONDS)
    assert opinion.verdict is Verdict.UNKNOWN
    assert "disagree" in opinion.note


def test_the_command_asks_it(kernel: Path, tmp_path: Path) -> None:
    path = tmp_path / "ring.xml"
    path.write_bytes(bases()["ring 4"])
    done = CliRunner().invoke(app, ["--kernel", "coq", "--json", str(path)])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["properties"]["coq_kernel"] == "proved"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"ranks": 0}, "ranks"),
        ({"sizes": [0]}, "a size"),
        ({"blocks": [[[1, [0], [], -1, -1, [[0, 0]], []]]]}, "a wait"),
        ({"blocks": [[[1, [0], [], -1, -1, []]]]}, "a step"),
        ({"inputs": [[0, -1, 0]]}, "a rank"),
        ({"more": 1}, "unknown field"),
    ],
)
def test_another_text_is_refused(kernel: Path, change: dict[str, object], words: str) -> None:
    ((program, sizes),) = verify_xml(bases()["ring 4"]).programs
    document = json.loads(encode(program, sizes))
    (answer,) = judge([json.dumps(document | change).encode()], SECONDS)
    assert words in answer["malformed"]
