"""Pipeline files: what is read, what is refused with which words, and that nothing is lost."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.verify.pipeline.documents import (
    Document,
    all_right,
    in_a_random_situation,
)
from verify.core.format import kind_of
from verify.core.verdict import Verdict
from verify.errors import FormatError
from verify.pipeline import (
    Action,
    Link,
    PipelineSchedule,
    check,
    decode,
    encode,
    parse_action,
    read,
    uniform,
    write,
)


def _changed(path: str, value: Any) -> Document:
    """1F1B with messages, one field changed; ``path`` as ``situation.memory``."""
    doc = copy.deepcopy(all_right()["1f1b-messages"])
    *outer, last = path.split(".")
    place: Any = doc
    for name in outer:
        place = place[int(name) if name.isdigit() else name]
    place[int(last) if last.isdigit() else last] = value
    return doc


REFUSED = {
    "another kind": (_changed("kind", "pipelines"), "$.kind"),
    "another family": (_changed("kind", "allreduce"), "kind allreduce, where one of kind pipeline"),
    "an unknown field": (_changed("colour", "red"), "colour"),
    "an unknown field of the situation": (_changed("situation.speed", 1), "speed"),
    "no stages": (_changed("stages", 0), "stages is 0"),
    "no microbatches": (_changed("microbatches", 0), "microbatches is 0"),
    "too many": (_changed("microbatches", 10**6), "microbatches is 1000000"),
    "a durations list too short": (_changed("situation.forward", [1]), "forward has 1 durations"),
    "a negative duration": (_changed("situation.weight.2", -1), "situation.weight[2] is -1"),
    "a huge duration": (_changed("situation.weight.2", 1e30), "situation.weight[2] is 1e+30"),
    "too many decimals": (_changed("situation.weight.2", 1e-10), "at most 9 decimals"),
    "a duration as text": (_changed("situation.weight.2", "5"), "$.situation.weight[2]"),
    "a link that is not there": (
        _changed("situation.links", [{"between": [3, 4]}]),
        "situation.links[0].between is [3, 4]",
    ),
    "a link to itself": (_changed("situation.links", [{"between": [1, 1]}]), "must be two ranks"),
    "a link twice": (
        _changed("situation.links", [{"between": [0, 1]}, {"between": [1, 0]}]),
        "links[1] is a second link between 0 and 1",
    ),
    "a negative latency": (
        _changed("situation.links", [{"between": [0, 1], "latency": -3}]),
        "links[0].latency is -3",
    ),
    "limits for others": (_changed("situation.memory", [8]), "memory has 1 limits for 4 ranks"),
    "a third of an activation": (_changed("situation.memory", [8, 8, 8, 0.3]), "multiple of 0.5"),
    "no action": (_changed("programs.1.3", "1X0"), "programs[1][3]: '1X0' is no action"),
    "an action without microbatch": (_changed("programs.1.3", "1F"), "programs[1][3]"),
    "more ranks than stages": (_changed("stages", 3), "the number of programs is 4"),
    "meta that is nested": (_changed("meta", {"a": [1]}), "$[...]"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    doc, problem = REFUSED[name]
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
        schedule = decode(json.dumps(in_a_random_situation(doc, rng)).encode())
        write(schedule, tmp_path / f"p{suffix}")
        assert read(tmp_path / f"p{suffix}") == schedule
    assert decode(encode(schedule)) == schedule


def test_numbers_are_taken_as_they_are_typed() -> None:
    """0.1 is a tenth: three of it end at 0.3 exactly, which no float sum does."""
    doc = copy.deepcopy(all_right()["single"])
    doc["situation"] = {name: [0.1] for name in ("forward", "backward", "weight")}
    report = check(decode(json.dumps(doc).encode()))
    assert report.measures is not None
    assert report.measures.makespan == 0.9 == report.measures.lower_bound


@pytest.mark.parametrize(
    "text", ["0F0", "12SEND_B3", "3W11", "0RECV_F1", "7REDUCE_GRAD", "1UNSHARD", "2RESHARD"]
)
def test_actions_are_written_as_they_are_read(text: str) -> None:
    assert str(parse_action(text)) == text


def test_a_schedule_made_in_memory_is_judged_not_trusted() -> None:
    good = PipelineSchedule(
        stages=1,
        microbatches=1,
        situation=uniform(1),
        programs=((Action(0, "F", 0), Action(0, "B", 0)),),
    )
    assert check(good).verdict is Verdict.PROVED
    bad: list[dict[str, Any]] = [
        {"stages": 0},
        {"microbatches": -1},
        {"programs": ()},
        {"programs": ((),)},
        {"situation": uniform(2)},
        {"situation": uniform(1, forward=float("nan"))},
        {"situation": uniform(1, forward=-1)},
        {"programs": ((Action(0, "F", 5),),)},
        {"programs": ((Action(-1, "F", 0),),)},
    ]
    for change in bad:
        fields = {name: getattr(good, name) for name in good.__struct_fields__}
        report = check(PipelineSchedule(**{**fields, **change}))
        assert report.results["well_formed"].verdict is Verdict.REFUTED, change
        assert report.measures is None
    linked = uniform(1)
    assert Link((0, 1)) not in linked.links
