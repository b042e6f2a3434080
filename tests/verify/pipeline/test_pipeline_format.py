"""Pipeline files: what is read, what is refused with which words, and that nothing is lost."""

import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.verify.pipeline.documents import (
    all_right,
    in_a_random_instance,
    report_of,
    schedule_of,
)
from verify.core.format import kind_of
from verify.core.verdict import Verdict
from verify.errors import FormatError
from verify.pipeline import (
    Action,
    PipelineSchedule,
    check,
    decode,
    encode,
    read,
    uniform,
    write,
)

REFUSED: list[tuple[str, Any, str]] = [  # what is changed, into what, what is said
    ("kind", "pipelines", "$.kind"),
    ("kind", "allreduce", "kind allreduce, where one of kind pipeline"),
    ("colour", "red", "colour"),
    ("situation.speed", 1, "speed"),
    ("stages", 0, "stages is 0"),
    ("microbatches", 0, "microbatches is 0"),
    ("microbatches", 10**6, "microbatches is 1000000"),
    ("situation.forward", [1], "forward has 1 durations"),
    ("situation.weight.2", -1, "situation.weight[2] is -1"),
    ("situation.weight.2", 1e30, "situation.weight[2] is 1e+30"),
    ("situation.weight.2", 1e-10, "at most 9 decimals"),
    ("situation.weight.2", "5", "$.situation.weight[2]"),
    ("situation.links", [{"between": [3, 4]}], "situation.links[0].between is [3, 4]"),
    ("situation.links", [{"between": [1, 1]}], "must be two ranks"),
    ("situation.links", [{"between": [0, 1]}, {"between": [1, 0]}], "links[1] is a second link"),
    ("situation.links", [{"between": [0, 1], "latency": -3}], "links[0].latency is -3"),
    ("situation.memory", [8], "memory has 1 limits for 4 ranks"),
    ("situation.memory", [8, 8, 8, 0.3], "multiple of 0.5"),
    ("programs.1.3", "1X0", "programs[1][3]: '1X0' is no action"),
    ("programs.1.3", "1F", "programs[1][3]"),
    ("stages", 3, "the number of programs is 4"),
    ("meta", {"a": [1]}, "$[...]"),
]


@pytest.mark.parametrize(("path", "value", "problem"), REFUSED)
def test_refused(path: str, value: Any, problem: str) -> None:
    """1F1B with messages, one field changed."""
    doc = all_right()["1f1b-messages"]
    *outer, last = [int(name) if name.isdigit() else name for name in path.split(".")]
    place: Any = doc
    for name in outer:
        place = place[name]
    place[last] = value
    with pytest.raises(FormatError) as error:
        decode(json.dumps(doc).encode(), "p.json")
    assert str(error.value).startswith("p.json: ")
    assert problem in str(error.value)


@pytest.mark.parametrize(
    "text", [b"", b"[", b"nonsense", b"\xff", b'{"kind":"pipeline"}', b"[" * 9999]
)
def test_no_schedule_at_all(text: bytes) -> None:
    with pytest.raises(FormatError):
        decode(text)
    assert kind_of(text) in ("", "pipeline")


@pytest.mark.parametrize("suffix", [".json", ".json.gz", ".json.zst"])
def test_round_trip(suffix: str, tmp_path: Path) -> None:
    rng = random.Random(1)
    for doc in all_right().values():
        doc["programs"][0] += ["0UNSHARD", "0RESHARD"]
        schedule = schedule_of(in_a_random_instance(doc, rng))
        write(schedule, tmp_path / f"p{suffix}")
        assert read(tmp_path / f"p{suffix}") == schedule
    assert decode(encode(schedule)) == schedule


def test_numbers_are_taken_as_they_are_typed() -> None:
    """0.1 is a tenth: three of it end at 0.3 exactly, which no float sum does."""
    doc = all_right()["single"]
    doc["situation"] = {name: [0.1] for name in ("forward", "backward", "weight")}
    report = report_of(doc)
    assert report.measures is not None
    assert report.measures.makespan == 0.9 == report.measures.lower_bound


ONE = ((Action(0, "F", 0), Action(0, "B", 0)),)
GOOD = PipelineSchedule(stages=1, microbatches=1, instance=uniform(1), programs=ONE)


@pytest.mark.parametrize(
    "change",
    [
        *[{"stages": 0}, {"microbatches": -1}, {"programs": ()}, {"programs": ((),)}],
        *[{"instance": uniform(2)}, {"instance": uniform(1, forward=-1)}],
        {"instance": uniform(1, forward=float("nan"))},
        {"programs": ((Action(0, "F", 5),),)},
        {"programs": ((Action(-1, "F", 0),),)},
    ],
)
def test_a_schedule_made_in_memory_is_judged_not_trusted(change: dict[str, Any]) -> None:
    assert check(GOOD).verdict is Verdict.PROVED
    report = check(msgspec.structs.replace(GOOD, **change))
    assert report.results["well_formed"].verdict is Verdict.REFUTED
    assert report.measures is None
