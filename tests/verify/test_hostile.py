"""Hostile files: whatever a file claims or hides, memory and time stay bounded.

Every file is verified by a process of its own that may not have more than ``MEMORY`` of address
space, and that must end with a verdict or as malformed, never with a crash.
"""

import gzip
import json
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard

from tests.verify.builders import Document, document

MEMORY = 3 * 2**30
REFUTED, MALFORMED = 1, 2


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


def _filled(doc: Document, field: str, filling: str) -> str:
    """The text of the document with ``filling`` in the empty list ``field``."""
    head, tail = json.dumps(doc).split(f'"{field}": []')
    return f'{head}"{field}": [{filling}]{tail}'


def _tiny(rounds: int) -> str:
    """A small file of huge numbers."""
    phases = [("wait", [8191], [[]] * rounds), ("go", [], [])]
    return json.dumps(document(8192, 2**20, phases, late=[8191], ports={"incast": 8192}))


def _one_round(ranks: int, moves: list[list[Any]], ports: Any) -> str:
    return json.dumps(document(ranks, 1, [("p", [], [moves])], ports=ports))


def _many_rounds(ports: str) -> str:
    doc = document(8192, 2**20, [("p", [], [])], ports=ports)
    return _filled(doc, "rounds", ",".join(["[]"] * 4_000_000))


def _many_moves() -> str:
    moves = ",".join(f'[{i % 99},99,{i % 7},"reduce"]' for i in range(1_000_000))
    return _filled(document(100, 7, [("p", [], [])]), "rounds", f"[{moves}]")


PAIRS = [[i, i ^ 1, 0, "reduce"] for i in range(8192)]
INTO_ONE = [[i % 8191 + 1, 0, 0, "reduce"] for i in range(50_000)]
REFUTED_TEXTS: dict[str, Callable[[], str]] = {
    "huge numbers, no round": lambda: _tiny(0),
    "huge numbers, a round": lambda: _tiny(1),
    "huge numbers, rounds": lambda: _tiny(1000),
    "many ranks, duplex": lambda: _one_round(8192, PAIRS, "duplex"),
    "many ranks, matching": lambda: _one_round(8192, PAIRS, "matching"),
    "many rounds, duplex": lambda: _many_rounds("duplex"),
    "many rounds, matching": lambda: _many_rounds("matching"),
    "all write one buffer": lambda: _one_round(8192, INTO_ONE, {"incast": 8191}),
    "a million transfers in one round": _many_moves,
}


@pytest.mark.parametrize("name", REFUTED_TEXTS)
def test_refuted(path: Path, name: str) -> None:
    path.write_text(REFUTED_TEXTS[name]())
    ended = _verify(path)
    assert ended.returncode == REFUTED, ended.stderr
    assert ended.stderr == ""
    assert ended.stdout.startswith(f"{path}: REFUTED\n")
    assert len(ended.stdout) < 5000


EMPTY = json.dumps(document(2, 1, []))
NAMED = json.dumps(document(2, 1, [("NAME", [], [])]))
MALFORMED_TEXTS: dict[str, tuple[Callable[[], str], str]] = {
    "deep": (lambda: "[" * 2**28, "JSON tokens"),
    "millions of late ranks": (
        lambda: _filled(document(8192, 1, []), "late", ",".join(["8000"] * 4_000_000)),
        "late",
    ),
    "a long name": (lambda: NAMED.replace("NAME", "x" * 2**27), "phases[0].name"),
    "a long text": (lambda: EMPTY[:-3] + '{"a": "' + "y" * 2**27 + '"}}', "meta is larger"),
    "a long number": (lambda: EMPTY[:-3] + '{"a": ' + "9" * 2**27 + "}}", "meta is larger"),
    "long ranks": (lambda: '{"ranks": ' + "9" * 2**26 + "}", "ranks"),
}


@pytest.mark.parametrize("name", MALFORMED_TEXTS)
def test_malformed(path: Path, name: str) -> None:
    text, named = MALFORMED_TEXTS[name]
    path.write_text(text())
    _assert_malformed(path, named)
