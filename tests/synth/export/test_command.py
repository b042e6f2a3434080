"""``synth export`` on the command line."""

import json

import pytest

from latecomer.verify import write
from tests.synth.export.schedules import straggler


@pytest.fixture
def schedule(tmp_path):
    write(straggler(4), tmp_path / "schedule.json")
    return tmp_path


@pytest.mark.parametrize(
    ("options", "files"),
    [
        ("--to msccl-xml -o a.xml", ["a.xml"]),
        ("--to msccl-xml --protocol LL --chunks 8 -o a.xml", ["a.xml"]),
        ("--to mscclpp -o plan.json", ["plan.json"]),
        ("--to chakra --bytes 1MiB -o trace", [f"trace.{rank}.et" for rank in range(4)]),
    ],
)
def test_it_writes_what_it_says(synth, schedule, options, files):
    code, out, _ = synth(*f"export schedule.json {options} --json".split())
    assert code == 0
    facts = json.loads(out)
    assert facts["files"] == files
    assert facts["chunks"] == (8 if "--chunks" in options else 3)
    assert all((schedule / file).stat().st_size for file in files)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ("--to mscclpp -o a.xml", "must end in .json"),
        ("--to mscclpp --protocol LL -o a.json", "is used only with --to msccl-xml"),
        ("--to msccl-xml --bytes 1MiB -o a.xml", "is used only with --to chakra"),
        ("--to msccl-xml --chunks 2 -o a.xml", "must be in 3..1024"),
    ],
)
def test_it_refuses_what_it_can_not_do(synth, schedule, options, problem):
    code, _, err = synth(*f"export schedule.json {options}".split())
    assert code == 2
    assert problem in err
    assert [file.name for file in schedule.iterdir()] == ["schedule.json"]


def test_a_schedule_that_is_not_proved_is_refused(synth, schedule):
    document = json.loads((schedule / "schedule.json").read_text())
    document["phases"][-1]["rounds"][-1].pop()
    (schedule / "schedule.json").write_text(json.dumps(document))

    code, _, err = synth("export", "schedule.json", "--to", "msccl-xml", "-o", "a.xml")
    assert code == 2
    assert "is not proved" in err
