"""Files: both formats, hostile pickles of which nothing runs, and one clear line for all others."""

from __future__ import annotations

import json
import os
import pickle

import pytest

from latecomer.runtime.explain import dumps
from latecomer.runtime.explain.dumps import read_dump
from latecomer.verify.errors import FormatError
from tests.runtime.explain.jobs import Model, Step

GROUPS = {"world": (0, 1)}


def plain(steps=3):
    """The dump of rank 0 of two that have all-reduced."""
    programs = {rank: [Step("world")] * steps for rank in range(2)}
    return Model(GROUPS, programs).run().dumps()[0]


def as_json(dump):
    """As torch writes it: counters are texts, and there is no key for an empty list."""
    dump = json.loads(json.dumps(dump))
    for entry in dump["entries"]:
        for counter in ("record_id", "collective_seq_id", "p2p_seq_id", "op_id", "pg_id"):
            entry[counter] = str(entry[counter])
    if not dump["entries"]:
        del dump["entries"]
    return json.dumps(dump).encode()


@pytest.mark.parametrize("steps", [0, 3])
def test_both_formats_say_the_same(steps, tmp_path):
    dump = plain(steps)
    (tmp_path / "rank_0.json").write_bytes(as_json(dump))
    (tmp_path / "_dump_0").write_bytes(pickle.dumps(dump, protocol=2))
    first, second = read_dump(tmp_path / "rank_0.json"), read_dump(tmp_path / "_dump_0")
    for entry in (*first.entries, *second.entries):
        entry.pg_id = str(entry.pg_id)
    assert first == second
    assert len(first.entries) == steps


class Runs:
    """Creates a file where it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_nothing_of_a_pickle_is_run(tmp_path):
    hostile = plain() | {"pg_status": Runs(tmp_path / "was_run")}
    (tmp_path / "_dump_0").write_bytes(pickle.dumps(hostile))
    with pytest.raises(FormatError, match="mkdir, and dumps hold plain values"):
        read_dump(tmp_path / "_dump_0")
    assert not (tmp_path / "was_run").exists()
    pickle.loads(pickle.dumps(hostile))  # otherwise it does
    assert (tmp_path / "was_run").exists()


GOOD = pickle.dumps(plain(), protocol=2)
FOREIGN = {
    "empty": b"",
    "text": b"rank 0 hangs\n",
    "another JSON": b'{"phases": []}',
    "a list": b"[1, 2]",
    "another pickle": pickle.dumps({"version": 1}),
    "cut off": GOOD[: len(GOOD) // 2],
    "cut off JSON": as_json(plain())[:-40],
    "entries of another kind": pickle.dumps(plain() | {"entries": [{"record_id": "x"}]}),
    "groups of another kind": pickle.dumps(plain() | {"pg_config": [1]}),
    "opcodes": b"\x80\x02" + b"(" * 10_000 + b"t" * 9_999 + b".",
}


@pytest.mark.parametrize("name", FOREIGN)
def test_what_is_no_dump_gets_one_line(name, tmp_path):
    path = tmp_path / "_dump_0"
    path.write_bytes(FOREIGN[name])
    with pytest.raises(FormatError) as refused:
        read_dump(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert "\n" not in str(refused.value)


def test_a_file_that_is_too_large_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(dumps, "MOST_BYTES", 2**20)
    path = tmp_path / "_dump_0"
    path.write_bytes(GOOD + bytes(2**20))
    with pytest.raises(FormatError, match="larger than 1 MiB"):
        read_dump(path)
    with pytest.raises(FormatError, match="cannot be read: No such file"):
        read_dump(tmp_path / "_dump_1")


def test_the_line_of_the_program_is_found_in_its_stack(tmp_path):
    dump = plain()
    library = {"filename": "/venv/lib/site-packages/torch/distributed/x.py", "line": 7, "name": "f"}
    own = {"filename": "/job/train.py", "line": 12, "name": "step"}
    dump["entries"][0]["frames"] = [library, own, {**own, "line": 99}]
    dump["entries"][1]["frames"] = [library]
    path = tmp_path / "_dump_0"
    path.write_bytes(pickle.dumps(dump, protocol=2))
    assert [entry.where for entry in read_dump(path).entries][:2] == ["train.py:12 step", ""]
