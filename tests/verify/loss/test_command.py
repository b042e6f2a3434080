"""``verify --loss F [--draw FILE.svg]``: what it prints, what it writes, how it exits."""

import json
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.verify.builders import broken, direct, optimal_four, recursive_doubling, ring, straggler
from tests.verify.loss.test_harm import RELAY

RIGHT = {"ring": ring(5), "direct": direct(4, 3), "four": optimal_four(), "relay": RELAY}
DOCUMENTS: dict[str, Any] = {
    **RIGHT,
    "doubling": recursive_doubling(8),
    "wrong": broken(straggler(5)),
    "malformed": {"format": "latecomer/1"},
}


@pytest.fixture(autouse=True)
def files(tmp_path: Path) -> None:
    for name, doc in DOCUMENTS.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(doc))


def test_text(verify) -> None:
    code, out, err = verify("ring.json", "--loss", "1")
    assert (code, err) == (0, "")
    assert out.startswith("ring.json: PROVED")
    for fact in [
        "loss of any of 40 transfers (125 entries in all)",
        "reduce_scatter reduce         20  5 .. 20, mean 12.5         5              4",
        "all_gather copy               20   1 .. 16, mean 7.5         4              4      0",
        "worst: 20 of 125 entries missing, nothing is worse (proved)",
        "lost: reduce_scatter round 3: 3 -> 4  chunk 0  reduce",
        "chunk 0: ranks 0-4 miss what ranks 0-3 contributed",
        "counted twice: never (every copy brings at least what it overwrites)",
        "different sums: possible, after the loss of all_gather round 0",
    ]:
        assert fact in out


def test_twice_is_told(verify) -> None:
    out = verify("relay.json", "--loss", "1")[1]
    assert "counted twice: possible, after the loss of all round 1: 2 -> 0  chunk 0  copy" in out
    assert "loss" not in verify("relay.json")[1]  # without the option nothing is added
    assert "loss" not in json.loads(verify("relay.json", "--json")[1])


def test_json(verify) -> None:
    code, out, _ = verify("direct.json", "relay.json", "--loss", "2", "--json")
    assert code == 0
    plain, relay = map(json.loads, out.splitlines())
    losses = plain["loss"]
    assert (losses["verdict"], losses["at_most"], losses["entries"]) == ("proved", 2, 64)
    assert [kind["most"] for kind in losses["kinds"]] == [4, 3]
    assert losses["worst"]["entries"] == losses["worst"]["bound"] == 8
    assert losses["worst"]["exact"] is True
    assert len(losses["each"]) == losses["transfers"] == 24
    lost = losses["each"][0]["lost"]
    (missing,) = losses["each"][0]["missing"]
    assert (missing["chunk"], missing["ranks"]) == (lost["chunk"], [0, 1, 2, 3])
    assert missing["contributions"] == [lost["src"]]
    assert losses["twice"]["possible"] is False
    assert losses["differ"]["possible"] is True
    assert relay["loss"]["twice"]["possible"] is True
    assert relay["loss"]["twice"]["lost"][0]["round"] == 1


def test_time_out_is_unknown(verify) -> None:
    code, out, _ = verify("doubling.json", "--loss", "3", "--timeout", "1e-9")
    assert code == 3
    assert "worst found: 4 of 64 entries missing; proved: at most 12; between, unknown" in out
    code, out, _ = verify("doubling.json", "--loss", "3", "--timeout", "1e-9", "--json")
    assert code == 3
    facts = json.loads(out)
    assert (facts["verdict"], facts["loss"]["verdict"]) == ("proved", "unknown")
    assert verify("doubling.json", "--loss", "3", "-q") == (0, "", "")


def test_wrong_schedules(verify) -> None:
    code, out, _ = verify("wrong.json", "--loss", "1")
    assert code == 1
    assert "losses not examined: the schedule is wrong without any" in out
    assert json.loads(verify("wrong.json", "--loss", "1", "--json")[1])["loss"] is None
    assert verify("malformed.json", "ring.json", "--loss", "1")[0] == 2


@pytest.mark.parametrize("name", RIGHT)
def test_picture(verify, tmp_path: Path, name: str) -> None:
    assert verify(f"{name}.json", "--loss", "1", "--draw", "it.svg", "-q") == (0, "", "")
    facts = json.loads(verify(f"{name}.json", "--loss", "1", "--json")[1])["loss"]
    root = ElementTree.parse(tmp_path / "it.svg").getroot()
    squares = [rect for rect in root.iterfind(".//{*}rect") if rect.find("{*}title") is not None]
    assert len(squares) == facts["transfers"]
    assert len({(square.get("x"), square.get("y")) for square in squares}) == len(squares)
    for square, single in zip(squares, facts["each"], strict=True):
        assert f"{single['entries']} entries missing" in square.findtext("{*}title", "")
        assert (square.get("fill") == "#e9eef2") == (single["entries"] == 0)
    n = DOCUMENTS[name]["ranks"]
    grids = Counter(rect.get("fill") for rect in root.iterfind(".//{*}rect"))
    grids -= Counter(square.get("fill") for square in squares)
    assert grids["#8c1414"] == facts["worst"]["entries"] + 1  # that of the legend
    assert n * n == grids["#8c1414"] + grids["#e9eef2"] - 2
    rings = [circle.get("fill") == "none" for circle in root.iterfind(".//{*}circle")]
    assert rings.count(False) == 1 + sum(single["differ"] for single in facts["each"])
    assert rings.count(True) == 1 + sum(bool(single["twice"]) for single in facts["each"])


def test_picture_of_too_much(verify, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("latecomer.verify.loss.examine.MOST_LISTED", 10)
    code, _, err = verify("ring.json", "--loss", "1", "--draw", "it.svg")
    assert (code, "--draw" in err) == (2, True)
    assert not (tmp_path / "it.svg").exists()
