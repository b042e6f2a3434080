"""The file format: what is written is read back, and bad input is refused by name and place."""

import gzip
import json
import os
import string
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from latecomer.verify import (
    Incast,
    Phase,
    Schedule,
    Transfer,
    Verdict,
    check,
    decode,
    encode,
    read,
    write,
)
from latecomer.verify.arrays import ArrayRounds, phase
from latecomer.verify.core.format import MAX_BYTES, MAX_CHUNKS, MAX_PHASES, MAX_RANKS, MAX_TOKENS
from latecomer.verify.errors import ArgumentError, FormatError, InputError
from latecomer.verify.output import write_atomically
from latecomer.verify.pipeline.format import decode as decode_pipeline
from latecomer.verify.renaming import renamed
from proofs.trusted_lines import ROOT
from tests.verify.builders import Document, all_right, optimal_four, report_of, schedule_of
from tests.verify.pipeline import documents

NAMES = st.text(string.printable[:95] + "äλ→", max_size=12)
NUMBERS = st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.none() | st.booleans() | NUMBERS | NAMES


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """Any schedule the format can hold, sensible or not."""
    n = draw(st.integers(2, 9))
    k = draw(st.integers(1, 9))
    ranks = st.lists(st.integers(0, n - 1), unique=True, max_size=n).map(tuple)
    index = st.integers(-3, 12) | st.integers(-(2**80), 2**80)
    transfer = st.builds(Transfer, index, index, index, st.sampled_from(["copy", "reduce"]))
    rounds = st.lists(st.lists(transfer, max_size=4).map(tuple), max_size=4).map(tuple)
    return Schedule(
        ranks=n,
        chunks=k,
        late=draw(ranks),
        ports=draw(st.sampled_from(["duplex", "matching"]) | st.builds(Incast, st.integers(1, 9))),
        phases=draw(st.lists(st.builds(Phase, NAMES, ranks, rounds), max_size=3).map(tuple)),
        meta=draw(st.dictionaries(NAMES, SCALARS, max_size=4)),
    )


MAGIC = {"s": b"{", "s.json.gz": b"\x1f\x8b", "s.zst": b"\x28\xb5\x2f\xfd"}


@settings(deadline=None)
@given(schedules())
def test_what_is_written_is_read(tmp_path_factory, schedule: Schedule) -> None:
    text = encode(schedule)
    folder = tmp_path_factory.mktemp("f")
    assert encode(decode(text)) == text
    for name, magic in MAGIC.items():
        write(schedule, folder / name)
        assert (folder / name).read_bytes().startswith(magic)
        assert read(folder / name) == read(str(folder / name)) == schedule
    assert json.loads(text)["ranks"] == schedule.ranks  # plain JSON
    check(schedule)  # and no schedule makes it crash


@pytest.mark.parametrize("doc", all_right().values(), ids=all_right())
def test_documents_are_read_as_they_stand(doc: Document) -> None:
    assert json.loads(encode(schedule_of(doc))) == doc


def test_defaults_and_a_renamed_copy() -> None:
    text = b'{"format":"latecomer/1","kind":"allreduce","ranks":2,"chunks":1,"phases":[]}'
    schedule = decode(text)
    assert (schedule.late, schedule.ports, schedule.meta) == ((), "duplex", {})
    four = schedule_of(optimal_four())
    assert four.table.src[0] == 0
    swapped = renamed(four, {0: 3, 3: 0})
    assert swapped.late == (0,)
    assert swapped.table.src[0] == 3  # not the table of the original
    assert renamed(swapped, {0: 3, 3: 0}) == four
    assert renamed(schedule, {0: 1, 1: 0}) == schedule
    mixed = Schedule(ranks=4, chunks=3, phases=(phase("-", (), ArrayRounds(())), *four.phases))
    assert len(renamed(mixed, {}).table) == len(four.table)


def _changed(**fields: Any) -> bytes:
    doc = {**optimal_four(), **fields}
    return json.dumps({name: value for name, value in doc.items() if value is not ...}).encode()


def _phase(**fields: Any) -> bytes:
    phase = {"name": "a", "absent": [], "rounds": [], **fields}
    return _changed(phases=[{k: v for k, v in phase.items() if v is not ...}])


def _move(*move: Any) -> bytes:
    return _phase(rounds=[[], [[0, 1, 0, "copy"], list(move)]])


IDLE = {"name": "idle", "absent": [], "rounds": []}
BAD: dict[str, tuple[bytes, str]] = {
    "unknown field": (_changed(colour=1), "colour"),
    "unknown field of a phase": (_phase(speed=1), "speed"),
    "unknown field of ports": (_changed(ports={"incast": 2, "x": 1}), "x` - at `$.ports"),
    "another format": (_changed(format="latecomer/2"), "is of format latecomer/2"),
    "another kind": (_changed(kind="alltoall"), "$.kind"),
    "another family": (_changed(kind="pipeline"), "of kind pipeline, where one of kind allreduce"),
    "ranks missing": (_changed(ranks=...), "ranks"),
    "format missing": (_changed(format=...), "format"),
    "phases missing": (_changed(phases=...), "phases"),
    "absent missing": (_phase(absent=...), "absent` - at `$.phases[0]"),
    "rounds missing": (_phase(rounds=...), "rounds` - at `$.phases[0]"),
    "name missing": (_phase(name=...), "name` - at `$.phases[0]"),
    "ranks a string": (_changed(ranks="4"), "$.ranks"),
    "ranks true": (_changed(ranks=True), "$.ranks"),
    "ranks 1": (_changed(ranks=1, late=[], phases=[]), "ranks is 1, must be in 2..16384"),
    "ranks too many": (_changed(ranks=MAX_RANKS + 1), "ranks is 16385"),
    "ranks of 60 digits": (_changed(ranks=10**60), "ranks"),
    "ranks of 5000 digits": (b'{"ranks":1' + b"0" * 5000 + b"}", "$.ranks"),
    "no chunks": (_changed(chunks=0), "chunks is 0, must be in 1..1048576"),
    "chunks too many": (_changed(chunks=MAX_CHUNKS + 1), "chunks is"),
    "late out of range": (_changed(late=[0, 4]), "late[1] is 4, must be in 0..3"),
    "late negative": (_changed(late=[-1]), "late[0] is -1"),
    "late twice": (_changed(late=[3, 3]), "late names a rank twice"),
    "late a number": (_changed(late=3), "$.late"),
    "absent out of range": (_phase(absent=[9]), "phases[0].absent[0] is 9"),
    "absent twice": (_phase(absent=[3, 3]), "phases[0].absent names a rank twice"),
    "ports unknown": (_changed(ports="simplex"), "$.ports"),
    "ports empty": (_changed(ports={}), "$.ports"),
    "incast 0": (_changed(ports={"incast": 0}), "ports.incast is 0"),
    "incast a string": (_changed(ports={"incast": "2"}), "$.ports.incast"),
    "a name over two lines": (_phase(name="ok\nPROVED"), "phases[0].name must be printable"),
    "a name with terminal codes": (_phase(name="\x1b[2J"), "phases[0].name"),
    "an endless name": (_phase(name="x" * 201), "phases[0].name"),
    "too many phases": (_changed(phases=[IDLE] * (MAX_PHASES + 1)), "phases is 16385"),
    "phases an object": (_changed(phases={}), "$.phases"),
    "a round a number": (_phase(rounds=[3]), "$.phases[0].rounds[0]"),
    "a transfer an object": (_phase(rounds=[[{"src": 0}]]), "$.phases[0].rounds[0][0]"),
    "a transfer too short": (_move(0, 1, 0), "$.phases[0].rounds[1][1]"),
    "a transfer too long": (_move(0, 1, 0, "copy", 1), "at most length 4"),
    "op unknown": (_move(0, 1, 0, "add"), "'add' - at `$.phases[0].rounds[1][1][3]"),
    "src a float": (_move(0.0, 1, 0, "copy"), "$.phases[0].rounds[1][1][0]"),
    "dst a string": (_move(0, "1", 0, "copy"), "$.phases[0].rounds[1][1][1]"),
    "chunk true": (_move(0, 1, True, "copy"), "$.phases[0].rounds[1][1][2]"),
    "src of 5000 digits": (_move(0, 1, 0, "copy").replace(b"[0,", b"[1" + b"0" * 5000), "$"),
    "meta a list": (_changed(meta=[1]), "meta"),
    "meta nested": (_changed(meta={"a": {"b": 1}}), "in meta"),
    "a meta bomb": (_changed(meta={"a": "x" * 2**17}), "meta is larger than 65536 bytes"),
    "a deep meta": (_changed(meta=[])[:-3] + b"[" * 9999 + b"]" * 9999 + b"}", ""),
    "an infinite meta": (_changed(meta={"a": 0})[:-3] + b"1e999}}", "in meta"),
    "not a number": (_changed(meta={"a": 0})[:-3] + b"NaN}}", ""),
    "empty": (b"", "truncated"),
    "a list": (b"[]", "Expected `object`"),
    "truncated": (_changed()[:-40], "not a complete JSON object"),
    "trailing garbage": (_changed() + b"{}", "trailing"),
    "comments": (b"// a schedule\n" + _changed(), "not a complete JSON object"),
    "not UTF-8": (_changed().replace(b"completion", b"\xff\xfe"), "not UTF-8"),
    "UTF-16": (_changed().decode().encode("utf-16"), "not UTF-8"),
    "half a surrogate": (_phase(name="\ud800"), ""),
    "deep": (b"[" * 10**6, "object"),
    "deep inside": (_phase(rounds=[[]])[:-40] + b"[" * 10**6, ""),
}


PACK: dict[str, Any] = {"": bytes, ".gz": gzip.compress, ".zst": zstandard.compress}


@pytest.mark.parametrize(("text", "named"), BAD.values(), ids=BAD)
@pytest.mark.parametrize("suffix", PACK)
def test_bad_input_is_named(tmp_path: Path, text: bytes, named: str, suffix: str) -> None:
    path = tmp_path / f"bad.json{suffix}"
    path.write_bytes(PACK[suffix](text))
    with pytest.raises(FormatError) as caught:
        read(path)
    assert caught.value.path == str(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert named in caught.value.problem
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, InputError)


def test_no_file_a_directory_no_permission(tmp_path: Path) -> None:
    for path, problem in [(tmp_path / "none", "No such file"), (tmp_path, "Is a directory")]:
        with pytest.raises(FormatError, match=problem):
            read(path)
    with pytest.raises(FormatError, match="File name too long"):
        read("x" * 5000)


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize("damage", ["plain", "cut", "flipped", "empty", "tail"])
def test_damaged_compression(tmp_path: Path, suffix: str, damage: str) -> None:
    path = tmp_path / f"s.json{suffix}"
    write(decode(_changed()), path)
    data = path.read_bytes()
    damaged = {
        "plain": _changed(),
        "cut": data[: len(data) // 2],
        "flipped": data[:30] + bytes([data[30] ^ 0xFF]) + data[31:],
        "empty": b"",
        "tail": data + b"garbage",
    }
    path.write_bytes(damaged[damage])
    with pytest.raises(FormatError):
        read(path)


PIPELINE = json.dumps(documents.document(documents.gpipe(2, 2), 2)).encode()
TWICE = {
    "the same again": (_changed(), b'"ranks": 4', b'"ranks": 4, "ranks": 4'),
    "another value": (_changed(), b'"chunks": 3', b'"chunks":7,"late":[], "chunks" : 3'),
    "spelled otherwise": (_changed(), b'"ranks": 4', b'"r\\u0061nks": 3, "ranks": 4'),
    "in a phase": (_changed(), b'"absent": [3]', b'"absent": [], "absent": [3]'),
    "rounds": (_changed(), b'"rounds": [[', b'"rounds": [[[0, 1, 0, "copy"]]], "rounds": [['),
    "in meta": (_changed(meta={"copy": 1}), b'"copy": 1', b'"copy": "\\"]", "copy": 1'),
    "in ports": (_changed(ports={"incast": 2}), b'"incast": 2', b'"incast": 1, "incast": 2'),
    "of a pipeline": (PIPELINE, b'"stages": 2', b'"stages": 3, "stages": 2'),
    "of a pipeline's situation": (PIPELINE, b'"forward":', b'"forward": [9, 9], "forward":'),
}


@pytest.mark.parametrize("name", TWICE)
def test_a_field_given_twice_is_refused(name: str) -> None:
    """Readers take the first or the last, as they like: another reader could see another one."""
    right, once, twice = TWICE[name]
    reader = decode_pipeline if right is PIPELINE else decode
    reader(right, "right.json")
    assert once in right
    with pytest.raises(FormatError, match="is given twice"):
        reader(right.replace(once, twice, 1), "twice.json")


def test_names_that_look_like_fields_are_read() -> None:
    odd = {'"a": 1, "a"': "}{", "copy": '"reduce"]', '\\"': '"a":', "a": "\\"}
    text = _changed(meta=odd, phases=[{"name": '{"name":', "absent": [], "rounds": [[]]}])
    assert decode(text).meta == odd


def test_as_much_as_is_allowed_is_read() -> None:
    doc = optimal_four()
    doc["phases"] += [{**IDLE, "name": "x" * 200}] * (MAX_PHASES - len(doc["phases"]))
    doc["meta"] = {"a": "x" * (2**16 - len('{"a": ""}'))}
    assert report_of(doc).verdict is Verdict.PROVED
    schedule_of({**doc, "ranks": MAX_RANKS, "chunks": MAX_CHUNKS, "ports": {"incast": MAX_RANKS}})


@pytest.mark.parametrize("suffix", PACK)
def test_the_last_byte_and_the_last_token(tmp_path: Path, suffix: str, monkeypatch) -> None:
    text = _changed(meta={"a": ",[{"})
    path = tmp_path / f"s.json{suffix}"
    path.write_bytes(PACK[suffix](text))
    page = (ROOT / "docs/reference/format.md").read_text()
    assert f"{MAX_BYTES // 2**20} MiB" in page
    assert f"{MAX_TOKENS // 2**20} Mi JSON tokens" in page
    tokens = sum(map(text.count, b",[{"))
    for name, size, problem in [("BYTES", len(text), "larger"), ("TOKENS", tokens, "JSON tokens")]:
        monkeypatch.setattr(f"latecomer.verify.core.format.MAX_{name}", size - 1)
        with pytest.raises(FormatError, match=problem):
            read(path)
        monkeypatch.setattr(f"latecomer.verify.core.format.MAX_{name}", size)
        assert read(path) == decode(text)


# writing


def test_a_failing_write_leaves_the_old_file(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "s.json"
    write(decode(_changed()), path)
    before = path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ArgumentError, match="No space left"):
        write(decode(_changed(meta={"new": 1})), path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["s.json"]  # and nothing beside it


def test_an_impossible_path(tmp_path: Path) -> None:
    schedule = decode(_changed())
    for path in (tmp_path / "no" / "s.json", tmp_path):
        with pytest.raises(ArgumentError, match="can't be written"):
            write(schedule, path)
    assert os.listdir(tmp_path) == []


def test_mode_and_links_of_the_target_are_kept(tmp_path: Path) -> None:
    target = tmp_path / "s.json"
    link = tmp_path / "link.json"
    target.touch(mode=0o600)
    link.symlink_to(target)
    old = os.umask(0o027)
    try:
        write_atomically(link, b"new")
        write_atomically(tmp_path / "new.json", b"new")
    finally:
        os.umask(old)
    assert target.read_bytes() == b"new"
    assert link.is_symlink()
    assert target.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "new.json").stat().st_mode & 0o777 == 0o640


def test_a_pipe_is_written_in_place(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    write(decode(_changed()), f"/dev/fd/{writer}")
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        assert decode(stream.read()) == decode(_changed())
