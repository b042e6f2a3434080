"""From options to a written schedule and what is printed about it."""

import json
from pathlib import Path

import pytest

from synth.twolevel.command import Options, generate, shown
from synth.twolevel.search import Record
from verify import Verdict, check, read
from verify.errors import ArgumentError

NOTHING: dict[str, None] = dict.fromkeys(Options.__dataclass_fields__)


def options(**given) -> Options:
    return Options(**{**NOTHING, **given})


def made(output: Path, given: Options, **more) -> Record:
    arguments = {"n": None, "buffer": "1GiB", "late": None, "m": None, "seed": 0}
    arguments |= {"ports": "duplex", **more}
    return generate(given, output, time_limit_s=20, progress=lambda text: None, **arguments)


def test_written_and_explained(tmp_path) -> None:
    path = tmp_path / "a.json"
    record = made(path, options(nodes=2, per_node=4, network_ports=2), late=1)
    schedule = read(path)
    assert check(schedule).verdict is Verdict.PROVED
    assert (schedule.ranks, schedule.late) == (8, (1,))
    text = shown(record, path, json=False)
    for fact in [
        "a.json: proved; two-level, burst 2, AllReduce of 8 ranks in ",
        " chunks, rank 1 late",
        "2 nodes of 4 ranks, 2 network ports each",
        "inside   alpha = 3 us, 1/beta = 450 GB/s",
        "between  alpha = 10 us, 1/beta = 50 GB/s",
        "  * two-level, burst 2",
        "hierarchical ring",
        "flat",
        "lower bound",
    ]:
        assert fact in text
    assert "optimal" not in text


def test_json_tells_the_same(tmp_path) -> None:
    path = tmp_path / "a.json"
    record = made(path, options(nodes=2, per_node=2, outer_alpha="20us", outer_bandwidth="1GB/s"))
    facts = json.loads(shown(record, path, json=True))
    assert facts["machine"]["outer"] == {"alpha_s": 2e-5, "bandwidth": 1e9}
    assert facts["machine"]["network_ports"] == 2
    assert facts["winner"] == facts["candidates"][0]["name"]
    assert facts["candidates"][0]["seconds"] == record.winner.seconds
    assert facts["bytes_s"] <= facts["bound_s"] <= record.winner.seconds


def test_whether_two_levels_are_asked_for() -> None:
    assert not options(alpha="3us", bandwidth="450GB/s").given()
    assert options(nodes=2, per_node=4).given()


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"nodes": 2}, "--nodes"),
        ({"per_node": 2}, "--per-node"),
        ({"network_ports": 2}, "--network-ports"),
        ({"nodes": 2, "outer_alpha": "1us"}, "--nodes"),
        ({"outer_bandwidth": "1GB/s"}, "--outer-bandwidth"),
    ],
)
def test_half_a_machine(given, name: str) -> None:
    with pytest.raises(ArgumentError) as error:
        options(**given).given()
    assert error.value.name == name


@pytest.mark.parametrize(
    ("given", "more", "name"),
    [
        ({"nodes": 2, "per_node": 4}, {"n": 9}, "--n"),
        ({"nodes": 2, "per_node": 4}, {"buffer": None}, "--bytes"),
        ({"nodes": 2, "per_node": 4}, {"buffer": "1"}, "--bytes"),
        ({"nodes": 2, "per_node": 4}, {"late": 8}, "--late"),
        ({"nodes": 2, "per_node": 4, "network_ports": 5}, {}, "--network-ports"),
        ({"nodes": 2, "per_node": 4, "outer_alpha": "1"}, {}, "--outer-alpha"),
        ({"nodes": 2, "per_node": 4}, {"ports": "matching"}, "--ports"),
        ({"nodes": 0, "per_node": 4}, {}, "--nodes"),
    ],
)
def test_bad_input_writes_nothing(tmp_path, given, more, name: str) -> None:
    with pytest.raises(ArgumentError) as error:
        made(tmp_path / "a.json", options(**given), **more)
    assert error.value.name == name
    assert not list(tmp_path.iterdir())
