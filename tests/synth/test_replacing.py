"""No command writes over its input, or over what it has not written itself, without --force."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from latecomer.synth.standard import ring
from latecomer.synth.straggler.generate import generate
from latecomer.verify.output import encode, write
from latecomer.verify.replacing import SCHEDULE, is_of_kind, require_replaceable

NOT_OURS = "my notes\n"

WRITES = {
    "synth generate --n 4 -o OUT": "schedule.json",
    "synth straggler --n 4 -o OUT": "schedule.json.gz",
    "synth arrivals --n 4 --delay 1 -o OUT": "schedule.json.zst",
    "synth nodes --nodes 2 --per-node 2 --bytes 1MiB -o OUT": "schedule.json",
    "synth transpose --n 4 -o OUT": "schedule.json",
    "synth ring --n 4 -o OUT": "ring.json",
    "synth pipeline --stages 2 --microbatches 4 -o OUT": "pipeline.json",
    "synth pipeline --stages 2 --microbatches 4 --csv OUT": "order.csv",
    "synth pipeline --stages 2 --microbatches 4 --picture OUT": "timeline.svg",
    "synth pipeline --stages 2 --microbatches 4 --picture OUT -q": "timeline.json",
    "synth export input.json --to msccl-xml -o OUT": "program.xml",
    "synth export input.json --to mscclpp -o OUT": "plan.json",
    "synth compare --n 4 --sizes 1KiB:1MiB --plot OUT": "plot.svg",
    "synth compare --n 4 --sizes 1KiB:1MiB --plot OUT --json": "plot.png",
    "verify input.json --html OUT": "page.html",
    "verify input.json --loss 1 --draw OUT": "loss.svg",
    "verify input.json --certify OUT": "proof.v",
    "verify input.json --smt2 OUT": "question.smt2",
}
"""Commands, each with the name of a file that it writes in place of OUT."""


@pytest.fixture(autouse=True)
def _input(typed):
    """A schedule in the folder of the test, which is the current one."""
    write(generate(3), "input.json")


@pytest.mark.parametrize(("line", "name"), WRITES.items())
def test_only_what_the_command_has_written_is_replaced_without_force(typed, line, name):
    target = Path(name)
    line = line.replace("OUT", name)
    target.write_text(NOT_OURS)

    code, printed, error = typed(line)
    assert code == 2
    assert f"= {name!r}: is there already, and is no " in error
    assert "--force" in error
    assert printed == ""
    assert target.read_text() == NOT_OURS

    assert typed(f"{line} --force")[0] == 0
    first = target.read_bytes()
    assert first != NOT_OURS.encode()
    assert typed(line)[0] == 0  # its own
    if target.suffix != ".png":
        target.write_bytes(b"")  # as a shell's redirection leaves it
        assert typed(line)[0] == 0
        assert target.read_bytes()


@pytest.mark.parametrize(
    "line",
    [
        "verify input.json --html input.json",
        "verify input.json --smt2 input.json",
        "verify input.json --html link.json",
        "synth export input.json --to mscclpp -o input.json",
    ],
)
def test_the_input_is_never_replaced_without_force(typed, line):
    os.symlink("input.json", "link.json")
    before = Path("input.json").read_bytes()

    code, _, error = typed(line)

    assert code == 2
    assert "is the file that is read. Name another file, or replace it with --force" in error
    assert Path("input.json").read_bytes() == before


def test_it_is_said_what_was_replaced(typed):
    assert typed("synth generate --n 4")[0] == 0
    _, printed, _ = typed("synth generate --n 4")
    assert "replaced" not in printed  # by the same

    _, printed, _ = typed("synth generate --n 5")
    assert printed.endswith("  replaced    allreduce of 4 ranks in 3 chunks, late rank 3\n")
    _, printed, _ = typed("synth ring --n 4 --json")
    assert '"replaced":"allreduce of 5 ranks in 4 chunks, late rank 4"' in printed


def test_chakra_traces_are_looked_at_one_by_one(typed):
    pytest.importorskip("google.protobuf")
    Path("trace.1.et").write_text(NOT_OURS)
    code, _, error = typed("synth export input.json --to chakra -o trace")
    assert code == 2
    assert "'trace.1.et': is there already" in error
    assert not Path("trace.0.et").exists()


def test_a_schedule_laid_out_by_hand_is_somebodys(tmp_path):
    by_hand = tmp_path / "by_hand.json"
    by_hand.write_bytes(encode(ring(3)).replace(b'":', b'": '))
    assert not is_of_kind(by_hand, SCHEDULE)
    require_replaceable("-o", tmp_path / "not there", SCHEDULE, force=False)
    require_replaceable("-o", Path("/dev/stdout"), SCHEDULE, force=False)


def test_a_damaged_file_is_not_replaced(tmp_path):
    damaged = tmp_path / "schedule.json.gz"
    damaged.write_bytes(b"\x1f\x8bnot really")
    assert not is_of_kind(damaged, SCHEDULE)
