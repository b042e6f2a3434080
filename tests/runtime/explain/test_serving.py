"""``serve_dumps`` and ``latecomer dump``: dumps of a job that hangs, on stock Gloo."""

from __future__ import annotations

import ctypes
import json
import socket
import sys
import threading
import time

import msgspec
import pytest
import torch
import torch.distributed as dist

from latecomer import serve_dumps
from latecomer.runtime.explain.fetching import ask, read_files
from latecomer.runtime.explain.served import RankFile
from latecomer.runtime.telemetry.members import with_members
from latecomer.verify.errors import ArgumentError
from tests.runtime.spawning import default_group, execute, on_ranks, together


def latecomer(*arguments, cwd):
    return execute(sys.executable, "-m", "latecomer", *arguments, cwd=cwd)


def wait_for_groups(server, number):
    """Until the rank's file has as many groups."""
    while len(json.loads(server.path.read_text())["groups"]) < number:
        time.sleep(0.05)


@on_ranks(3)
def test_a_job_that_hangs_tells_who_does_not_come(rank, size, store, tmp_path):
    """Rank 1 does not come to an all-reduce of its pair, and holds the interpreter's lock."""
    default_group("gloo", rank, size, store)
    server = serve_dumps(tmp_path / "servers")
    pair = dist.new_group([0, 1])
    wait_for_groups(server, 2 if rank < 2 else 1)
    dist.all_reduce(torch.ones(8))
    if rank == 0:
        work = dist.all_reduce(torch.ones(8), group=pair, async_op=True)
    together(store, rank, size, "entered")
    if rank == 1:
        holding = threading.Thread(target=ctypes.PyDLL(None).sleep, args=(8,))
        together(store, rank, size, "about to hang")
        holding.start()
        holding.join()
    else:
        together(store, rank, size, "about to hang")
    if rank == 2:
        time.sleep(0.5)
        fetched = latecomer("dump", "servers", "-o", "dumps", cwd=tmp_path)
        assert (fetched.returncode, fetched.stderr) == (0, "")
        assert fetched.stdout.startswith("3 of 3 ranks answered: dumps\n")
        found = latecomer("explain", "dumps", "--world-size", "3", "--json", cwd=tmp_path)
        (verdict,) = json.loads(found.stdout)["verdicts"]
        assert (verdict["kind"], verdict["ranks"]) == ("absent", [1])
        assert verdict["waiting"] == 1
    together(store, rank, size, "explained")
    if rank == 1:
        dist.all_reduce(torch.ones(8), group=pair)
    if rank == 0:
        work.wait()
    server.close()
    assert not server.path.exists()


@on_ranks(2)
def test_a_rank_that_is_gone_is_named(rank, size, store, tmp_path):
    default_group("gloo", rank, size, store)
    server = serve_dumps(tmp_path)
    together(store, rank, size, "served")
    kept = server.path.read_bytes()
    if rank == 1:
        server.close()
        server.path.write_bytes(kept)  # as a rank that was killed leaves it
    together(store, rank, size, "one is gone")
    if rank == 0:
        fetched = latecomer("dump", ".", "-o", "dumps", "--timeout", "5", cwd=tmp_path)
        assert fetched.returncode == 1
        assert fetched.stderr.startswith("rank 1 (process ")
        assert "does not answer at http://127.0.0.1:" in fetched.stderr
        assert (tmp_path / "dumps" / "rank_0.json").exists()
        assert not (tmp_path / "dumps" / "rank_1.json").exists()
        server.path.with_name("rank1.server").unlink()
        fetched = latecomer("dump", ".", "-o", "dumps", cwd=tmp_path)
        assert (fetched.returncode, fetched.stderr) == (1, "rank 1: has no file in .\n")
    together(store, rank, size, "asked")


START_AND_STOP = """
from latecomer.runtime.torch_versions import worker_server
for _ in range(50):
    worker_server("127.0.0.1").shutdown()
print("all have stopped")
"""


def test_a_server_can_be_stopped_as_soon_as_it_is_there(tmp_path):
    """Torch's own waits for ever where it is stopped before it has begun to listen."""
    result = execute(sys.executable, "-c", START_AND_STOP, cwd=tmp_path)
    assert (result.returncode, result.stdout) == (0, "all have stopped\n")


def test_who_does_not_answer_in_time_is_told(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        served = RankFile(rank=0, world_size=1, host="here", process=1, url=url, groups={})
        answer = ask(served, 0.2)
    assert "does not answer" in answer.problem
    assert "timed out" in answer.problem


def test_what_is_no_file_of_a_rank_is_refused(tmp_path):
    with pytest.raises(ArgumentError, match="has no rank's file"):
        list(read_files(tmp_path))
    (tmp_path / "rank0.server").write_text("{}")
    with pytest.raises(ArgumentError, match="is no rank's file"):
        list(read_files(tmp_path))


def test_it_is_for_jobs_that_have_begun(tmp_path):
    with pytest.raises(ArgumentError, match="must be called after init_process_group"):
        serve_dumps(tmp_path)


def test_members_are_added_only_where_they_are_missing():
    groups = {"0": [0, 1], "3": [1]}
    of_gloo = with_members({"pg_config": {"": {"name": "", "desc": "", "ranks": "[]"}}}, groups)
    assert {name: group["ranks"] for name, group in of_gloo["pg_config"].items()} == groups
    newer = with_members({"pg_config": {"": {"name": "", "desc": "", "ranks": "[0, 1]"}}}, groups)
    assert newer == of_gloo
    of_nccl = {"pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}}}
    assert with_members(of_nccl, groups) == of_nccl
    assert msgspec.json.decode(msgspec.json.encode(of_gloo)) == of_gloo
