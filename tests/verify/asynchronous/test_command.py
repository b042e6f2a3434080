"""``verify algorithm.xml``: read by content, exit codes, text, JSON and the options of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.verify.asynchronous.algorithms import ring_allreduce, xml

FIELDS = (
    "file verdict kind format name ranks placements blocks steps protocol slots chunks min_bytes "
    "max_bytes deadlock_free_up_to slots_needed slack deadlock_free_unlimited "
    "deadlock_free_rendezvous limits properties notes counterexample"
)
PROPERTIES = "connections_match signals_match bounds deadlock_free race_free right_values"


@pytest.fixture(autouse=True)
def files(tmp_path: Path) -> None:
    (tmp_path / "ring.xml").write_bytes(xml(ring_allreduce(3)))
    (tmp_path / "large").write_bytes(b"\n" + xml(ring_allreduce(3, 2)))  # content decides
    (tmp_path / "bad.xml").write_bytes(b"<algo/>")


@pytest.mark.parametrize(
    ("line", "code", "words"),
    [
        ("ring.xml", 0, ["ring.xml: PROVED", "free of deadlock at any size, slack 0 slots"]),
        (
            "large",
            1,
            ["deadlock_free  ", "wait cycle of 3", "is full (messages 0 to 1) until rank"],
        ),
        ("large --max-bytes 6MiB", 0, ["free of deadlock up to 6 MiB"]),
        ("large --slots 3", 0, ["3 messages a FIFO", "slack 0 slots"]),
        ("bad.xml", 2, ["bad.xml: MALFORMED", "has no ngpus"]),
        ("ring.xml --z3", 2, ["--z3", "is not for MSCCL algorithms"]),
        ("ring.xml --slots 0", 2, ["--slots = 0"]),
        ("ring.xml --max-bytes 6MB", 2, ["--max-bytes = '6MB'"]),
    ],
)
def test_exit_code_and_text(verify, line: str, code: int, words: list[str]) -> None:
    ended, out, err = verify(*line.split())
    assert ended == code
    for expected in words:
        assert expected in out + err


def test_options_for_algorithms_are_refused_elsewhere(verify, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    ended, _, err = verify("other.json", "--slots", "2")
    assert ended == 2
    assert "programs of thread blocks" in err


def test_json(verify) -> None:
    ended, out, _ = verify("--json", "large", "ring.xml")
    assert ended == 1
    wrong, right = map(json.loads, out.splitlines())
    assert list(wrong) == list(right) == FIELDS.split()
    assert list(right["properties"]) == PROPERTIES.split()
    assert right["counterexample"] is None
    assert wrong["counterexample"]["property"] == "deadlock_free"
    assert len(wrong["counterexample"]["actions"]) == 3
    assert wrong["deadlock_free_up_to"] == 6 * 2**20
