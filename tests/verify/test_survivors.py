"""Faults of the core that once survived all tests (``make mutation``): each is caught here."""

from __future__ import annotations

import json
import os
from itertools import accumulate, count, takewhile
from pathlib import Path

import msgspec
import pytest

from tests.verify.builders import document, optimal_four, ring
from verify import Verdict, check, decode, encode, write
from verify.core import semantics
from verify.core.bounds import spread_bound
from verify.core.format import MAX_PHASES
from verify.core.schedule import Incast, Ports
from verify.errors import FormatError


@pytest.mark.parametrize("ports", ["duplex", "matching", Incast(2), Incast(3)], ids=str)
def test_spread_bound_is_the_fewest_rounds_that_hold_all_receives(ports: Ports) -> None:
    """Summed up round by round, for all small sizes; the closed loop of the bound is another."""
    each = ports.incast if isinstance(ports, Incast) else 1
    for n in range(2, 20):
        most = n - n % 2 if ports == "matching" else n * each
        for k in range(1, 20):
            held = accumulate(min(most, each * (each + 1) ** t + each) for t in count())
            too_few = takewhile(lambda receives, all_of=n * k: receives < all_of, held)
            assert spread_bound(n, k, ports) == 1 + len(list(too_few)), (n, k)


def test_index_beyond_64_bits_is_out_of_range_however_many_ranks_there_are() -> None:
    doc = ring(100)
    doc["phases"][0]["rounds"][0][0][1] = 10**30
    report = check(decode(json.dumps(doc).encode()))
    assert report.counterexample is not None
    assert report.counterexample.found == str(2**63 - 1)
    assert report.staging == report.lower_bound == 0


@pytest.mark.parametrize("missing", range(7))
def test_fault_in_any_block_of_chunks(missing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three ranks, seven chunks, two in a block; a copy comes too early in one chunk."""
    monkeypatch.setattr(semantics, "BLOCK_BYTES", 18)
    rounds = []
    for chunk in range(7):
        tree = [[2, 1, "reduce"], [1, 0, "reduce"], [0, 1, "copy"], [1, 2, "copy"]]
        if chunk == missing:
            tree[1:3] = [tree[2], tree[1]]
        rounds += [[[src, dst, chunk, op]] for src, dst, op in tree]
    text = json.dumps(document(3, 7, [("tree", [], rounds)])).encode()
    found = semantics.exactly_once(decode(text)).counterexample
    assert found is not None
    assert found.chunk == missing


def test_many_phases() -> None:
    doc = optimal_four()
    idle = {"name": "idle", "absent": [], "rounds": []}
    doc["phases"] += [idle] * (MAX_PHASES - len(doc["phases"]))
    assert check(decode(json.dumps(doc).encode())).verdict is Verdict.PROVED
    doc["phases"].append(idle)
    with pytest.raises(FormatError, match="phases"):
        decode(json.dumps(doc).encode())


def test_mode_of_a_written_file(tmp_path: Path) -> None:
    schedule = decode(json.dumps(optimal_four()).encode())
    old = os.umask(0o027)
    try:
        write(schedule, tmp_path / "new.json")
        (tmp_path / "kept.json").touch(mode=0o600)
        write(schedule, tmp_path / "kept.json")
    finally:
        os.umask(old)
    assert (tmp_path / "new.json").read_bytes() == encode(schedule)
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("new.json", "kept.json")] == [
        0o640,
        0o600,
    ]


def test_hazard_shows_the_transfers_into_one_buffer_and_no_others() -> None:
    doc = ring(4)
    first = doc["phases"][0]["rounds"][0]
    src, dst, chunk, op = first[0]
    first.append([(src + 2) % 4, dst, chunk, op])
    found = check(decode(json.dumps(doc).encode())).results["hazards"].counterexample
    assert found is not None
    assert found.found.startswith("2 transfers write it")
    assert {(t.dst, t.chunk) for t in found.transfers} == {(dst, chunk)}


def test_late_rank_that_does_not_exist() -> None:
    schedule = msgspec.structs.replace(decode(json.dumps(ring(5)).encode()), late=(7,))
    found = check(schedule).counterexample
    assert found is not None
    assert (found.expected, found.found) == ("late ranks in 0..4", "late rank 7")
