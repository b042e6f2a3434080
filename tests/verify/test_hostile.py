"""Hostile files: whatever a file claims or hides, memory and time stay bounded.

Every file is verified by a process of its own that may not have more than ``MEMORY`` of address
space, and that must end with a verdict or as malformed, never with a crash.
"""

import gzip
import json
import resource
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import zstandard

from tests.verify.builders import Document, document

MEMORY = 3 * 2**30
PAIRS = [[i, i ^ 1, 0, "reduce"] for i in range(16384)]
INTO_ONE = [[i % 8191 + 1, 0, 0, "reduce"] for i in range(50_000)]
LARGE = document(16384, 2**20, [("p", [], [])], ports="duplex")
PAIRED = document(16384, 2**20, [("p", [], [])], ports="matching")
META = json.dumps(document(2, 1, []))[:-3]
NAME = json.dumps(document(2, 1, [("NAME", [], [])])).split("NAME")


def _tiny(rounds: int) -> str:
    """A small file of huge numbers."""
    phases = [("wait", [8191], [[]] * rounds), ("go", [], [])]
    return json.dumps(document(16384, 2**20, phases, late=[16383], ports={"incast": 16384}))


def _one_round(moves: list[list[Any]], ports: Any) -> str:
    return json.dumps(document(16384, 1, [("p", [], [moves])], ports=ports))


def _filled(doc: Document, field: str, item: str, times: int = 4_000_000) -> str:
    """The text of the document with so many equal items in the empty list ``field``."""
    return json.dumps(doc).replace(f'"{field}": []', f'"{field}": [{",".join([item] * times)}]')


def _many_moves() -> str:
    moves = ",".join(f'[{i % 99},99,{i % 7},"reduce"]' for i in range(1_000_000))
    return _filled(document(100, 7, [("p", [], [])]), "rounds", f"[{moves}]", 1)


def _long(head: str, filling: str, tail: str = "", length: int = 2**27) -> str:
    return f"{head}{filling * length}{tail}"


def _packed(compress: Callable[[bytes], bytes]) -> bytes:
    """A gigabyte in a small file: members (frames) of one file follow each other."""
    return compress(b"[" * 2**24) * 64


HOSTILE: dict[str, tuple[Callable[[], str | bytes], str]] = {
    "huge numbers, no round": (partial(_tiny, 0), "REFUTED"),
    "huge numbers, a round": (partial(_tiny, 1), "REFUTED"),
    "huge numbers, rounds": (partial(_tiny, 1000), "REFUTED"),
    "many ranks, duplex": (partial(_one_round, PAIRS, "duplex"), "REFUTED"),
    "many ranks, matching": (partial(_one_round, PAIRS, "matching"), "REFUTED"),
    "many rounds, duplex": (partial(_filled, LARGE, "rounds", "[]"), "REFUTED"),
    "many rounds, matching": (partial(_filled, PAIRED, "rounds", "[]"), "REFUTED"),
    "all write one buffer": (partial(_one_round, INTO_ONE, {"incast": 16383}), "REFUTED"),
    "a million transfers in one round": (_many_moves, "REFUTED"),
    "a gigabyte": (partial(bytes, 2**30), "larger than"),
    "small members.gz": (partial(_packed, gzip.compress), "larger than"),
    "small frames.zst": (partial(_packed, zstandard.compress), "larger than"),
    "one small frame.zst": (lambda: zstandard.compress(bytes(2**30)), "larger than"),
    "deep": (partial(_long, "", "[", "", 2**28), "JSON tokens"),
    "millions of late ranks": (partial(_filled, document(16384, 1, []), "late", "8000"), "late"),
    "a long name": (partial(_long, NAME[0], "x", NAME[1]), "phases[0].name"),
    "a long text": (partial(_long, META + '{"a": "', "y", '"}}'), "meta is larger"),
    "a long number": (partial(_long, META + '{"a": ', "9", "}}"), "meta is larger"),
    "long ranks": (partial(_long, '{"ranks": ', "9", "}", 2**26), "ranks"),
}


LONG = {
    "a gigabyte",
    "a long name",
    "a long number",
    "a million transfers in one round",
    "deep",
    "many rounds, matching",
    "small members.gz",
}
NAMES = [pytest.param(name, marks=pytest.mark.long if name in LONG else ()) for name in HOSTILE]


@pytest.mark.parametrize("name", NAMES)
def test_hostile(tmp_path: Path, name: str) -> None:
    content, answer = HOSTILE[name]
    data = content()
    path = tmp_path / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    ended = subprocess.run(
        [sys.executable, "-m", "latecomer.verify", name],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY)),
    )
    path.unlink()  # however large
    if answer == "REFUTED":
        assert (ended.returncode, ended.stderr) == (1, "")
        text = ended.stdout
        assert text.startswith(f"{name}: REFUTED\n")
    else:
        assert (ended.returncode, ended.stdout) == (2, ""), ended.stderr
        text = ended.stderr
        assert text.startswith(f"{name}: MALFORMED\n")
    assert answer in text
    assert "Traceback" not in text
    assert len(text) < 5000
