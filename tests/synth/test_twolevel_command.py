"""``synth generate --nodes``: from options to a written schedule and what is printed about it."""

import json

import pytest

from synth.straggler import generate
from verify import Verdict, check, read

SIZE = ("--bytes", "1GiB")


def test_written_and_explained(synth, tmp_path) -> None:
    ports = ("--network-ports", "2", "--late", "1", "-o", "a.json")
    code, text, err = synth("generate", "--nodes", "2", "--per-node", "4", *SIZE, *ports)
    assert (code, err) == (0, "")
    schedule = read(tmp_path / "a.json")
    assert check(schedule).verdict is Verdict.PROVED
    assert (schedule.ranks, schedule.late) == (8, (1,))
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
        "Whether anything is faster is unknown",
    ]:
        assert fact in text
    assert "optimal" not in text


def test_json_tells_the_same(synth) -> None:
    links = ("--outer-alpha", "20us", "--outer-bandwidth", "1GB/s", "--json")
    facts = json.loads(synth("generate", "--nodes", "2", "--per-node", "2", *SIZE, *links)[1])
    assert facts["machine"]["outer"] == {"alpha_s": 2e-5, "bandwidth": 1e9}
    assert facts["machine"]["network_ports"] == 2
    assert facts["basis"] == "unknown"
    winner = facts["candidates"][0]
    assert facts["winner"] == winner["name"]
    assert facts["bytes_s"] <= facts["bound_s"] <= winner["seconds"]


@pytest.mark.parametrize("solver", ["cp-sat", "z3"])
def test_the_flat_schedule_is_searched_by_the_solver_that_is_asked_for(
    synth, monkeypatch, solver: str
) -> None:
    asked = []
    original = generate.search

    def search(*args, **options):
        asked.append(options["solver"])
        return original(*args, **options)

    monkeypatch.setattr("synth.twolevel.search.search_flat", search)
    code, _, _ = synth("generate", "--nodes", "2", "--per-node", "2", *SIZE, "--solver", solver)
    assert (code, asked) == (0, [solver])


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["--per-node", "4", *SIZE, "--n", "9"], "--n"),
        (["--per-node", "4"], "--bytes"),
        (["--per-node", "4", "--bytes", "1"], "--bytes"),
        (["--per-node", "4", *SIZE, "--late", "8"], "--late"),
        (["--per-node", "4", *SIZE, "--network-ports", "5"], "--network-ports"),
        (["--per-node", "4", *SIZE, "--outer-alpha", "1"], "--outer-alpha"),
        (["--per-node", "0", *SIZE], "--per-node"),
    ],
)
def test_bad_input_writes_nothing(synth, tmp_path, arguments: list[str], name: str) -> None:
    code, out, err = synth("generate", "--nodes", "2", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {name} = ")
    assert not list(tmp_path.iterdir())
