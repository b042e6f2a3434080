"""Hostile files: whatever a file claims or hides, memory and time stay bounded.

Every file is verified by a process of its own that may not have more than ``MEMORY`` of address
space, and that must end with a verdict or as malformed, never with a crash.
"""

from __future__ import annotations

import gzip
import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard

from tests.verify.builders import Document, document

MEMORY = 3 * 2**30
REFUTED, MALFORMED, UNKNOWN = 1, 2, 3


def _verify(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "verify", str(path)],
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)),
    )


def _assert_malformed(path: Path, named: str) -> None:
    ended = _verify(path)
    assert ended.returncode == MALFORMED, ended.stderr
    assert ended.stderr.startswith(f"{path}: MALFORMED\n")
    assert named in ended.stderr
    assert "Traceback" not in ended.stderr


def _assert_refuted(path: Path) -> None:
    ended = _verify(path)
    assert ended.returncode == REFUTED, ended.stderr
    assert ended.stderr == ""
    assert ended.stdout.startswith(f"{path}: REFUTED\n")
    assert len(ended.stdout) < 5000


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """A file that does not outlive its test, however large."""
    file = tmp_path / "hostile.json"
    yield file
    file.unlink(missing_ok=True)


def test_gigabytes(path: Path) -> None:
    with path.open("wb") as stream:
        stream.write(b"[" * 4096)
        stream.truncate(2**30)
    _assert_malformed(path, "larger than")
    with path.open("wb") as stream:
        for _ in range(2**6):
            stream.write(b"[" * 2**24)
    _assert_malformed(path, "larger than")
    path.write_bytes(b"[" * 2**28)
    _assert_malformed(path, "JSON tokens")


@pytest.mark.parametrize("filling", [b"\0", b"[", b" ", b"[],"])
@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_gigabyte_in_a_small_file(tmp_path: Path, filling: bytes, suffix: str) -> None:
    compress = {".gz": gzip.compress, ".zst": zstandard.compress}[suffix]
    part = compress(filling * (2**24 // len(filling)))
    path = tmp_path / f"bomb.json{suffix}"
    path.write_bytes(part * 64)  # members (frames) of one file follow each other
    assert path.stat().st_size < 2**21
    _assert_malformed(path, "larger than")


def test_one_huge_frame(tmp_path: Path) -> None:
    path = tmp_path / "bomb.json.zst"
    with path.open("wb") as raw, zstandard.ZstdCompressor().stream_writer(raw) as stream:
        for _ in range(64):
            stream.write(b"{" * 2**24)
    _assert_malformed(path, "larger than")


@pytest.mark.parametrize("rounds", [0, 1, 1000])
def test_a_tiny_file_of_huge_numbers(path: Path, rounds: int) -> None:
    doc = document(8192, 2**20, [("wait", [8191], [[]] * rounds), ("go", [], [])], late=[8191])
    doc["ports"] = {"incast": 8192}
    path.write_text(json.dumps(doc))
    _assert_refuted(path)


def _filled(doc: Document, field: str, filling: str) -> str:
    """The text of the document with ``filling`` in the empty list ``field``."""
    head, tail = json.dumps(doc).split(f'"{field}": []')
    return f'{head}"{field}": [{filling}]{tail}'


@pytest.mark.parametrize("ports", ["duplex", "matching"])
def test_many_ranks_and_one_round(path: Path, ports: str) -> None:
    moves = [[i, i ^ 1, 0, "reduce"] for i in range(8192)]
    path.write_text(json.dumps(document(8192, 1, [("p", [], [moves])], ports=ports)))
    _assert_refuted(path)
    doc = document(8192, 2**20, [("p", [], [])], ports=ports)
    path.write_text(_filled(doc, "rounds", ",".join(["[]"] * 4_000_000)))
    _assert_refuted(path)


def test_many_ranks_that_all_write_one_buffer(path: Path) -> None:
    moves = [[i % 8191 + 1, 0, 0, "reduce"] for i in range(50_000)]
    path.write_text(json.dumps(document(8192, 1, [("p", [], [moves])], ports={"incast": 8191})))
    _assert_refuted(path)


def test_millions_of_late_ranks(path: Path) -> None:
    path.write_text(_filled(document(8192, 1, []), "late", ",".join(["8000"] * 4_000_000)))
    _assert_malformed(path, "late")


def test_a_million_transfers_in_one_round(path: Path) -> None:
    moves = ",".join(f'[{i % 99},99,{i % 7},"reduce"]' for i in range(1_000_000))
    path.write_text(_filled(document(100, 7, [("p", [], [])]), "rounds", f"[{moves}]"))
    _assert_refuted(path)


def test_long_strings(path: Path) -> None:
    head, tail = json.dumps(document(2, 1, [("NAME", [], [])])).split("NAME")
    path.write_text(head + "x" * 2**27 + tail)
    _assert_malformed(path, "phases[0].name")
    path.write_text(json.dumps(document(2, 1, []))[:-3] + '{"a": "' + "y" * 2**27 + '"}}')
    _assert_malformed(path, "meta is larger")


def test_numbers_of_many_digits(path: Path) -> None:
    path.write_text(json.dumps(document(2, 1, []))[:-3] + '{"a": ' + "9" * 2**27 + "}}")
    _assert_malformed(path, "meta is larger")
    path.write_text('{"ranks": ' + "9" * 2**26 + "}")
    _assert_malformed(path, "ranks")
