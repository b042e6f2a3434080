"""``latecomer explain``: what it prints, its exit codes, and dumps of a job on Gloo."""

from __future__ import annotations

import json
import pickle
import sys
import time

import pytest
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d

from tests.runtime.explain.jobs import Model, Step
from tests.runtime.spawning import default_group, execute, on_ranks, together

GROUPS = {"world": (0, 1, 2)}


def explain(*arguments, cwd):
    return execute(sys.executable, "-m", "latecomer", "explain", *arguments, cwd=cwd)


def write(folder, programs, *, without=()):
    for rank, dump in Model(GROUPS, programs).run().dumps().items():
        if rank not in without:
            (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(dump, protocol=2))


@pytest.fixture
def hanging(tmp_path):
    """Rank 2 has not come to the third all-reduce."""
    programs = {rank: [Step("world")] * (2 if rank == 2 else 3) for rank in range(3)}
    write(tmp_path, programs)
    return tmp_path


def test_who_holds_up_a_job_and_how_that_follows(hanging):
    result = explain(".", cwd=hanging)
    assert (result.returncode, result.stderr) == (1, "")
    assert result.stdout.splitlines() == [
        "absent: rank 2 never entered what others wait in",
        "  in all_reduce, operation 3 of group 0 (world)",
        "  2 other(s) wait for that",
        "    rank 0 waits in all_reduce, operation 3 of group 0 (world), for rank 2, "
        "which has not entered it",
        "    rank 2 has nothing open; its last, all_reduce, operation 2 of group 0 (world), "
        "has ended",
    ]


def test_the_same_for_machines(hanging):
    result = explain(
        "nccl_trace_rank_0", "nccl_trace_rank_1", "--world-size", "3", "--json", cwd=hanging
    )
    assert result.returncode == 1
    (verdict,) = json.loads(result.stdout)["verdicts"]
    assert (verdict["kind"], verdict["ranks"]) == ("nodump", [2])
    assert verdict["waiting"] == 2


def test_a_job_that_goes_on_and_what_cannot_be_read(tmp_path):
    write(tmp_path, {rank: [Step("world")] * 3 for rank in range(3)})
    result = explain(".", cwd=tmp_path)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.startswith("ok: ")

    (tmp_path / "nccl_trace_rank_1").write_bytes(b"")
    result = explain(".", cwd=tmp_path)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "error: nccl_trace_rank_1: is neither JSON nor a pickle\n"

    (tmp_path / "empty").mkdir()
    result = explain("empty", cwd=tmp_path)
    assert result.returncode == 2
    assert "has no file whose name has a rank's number" in result.stderr


def _ended():
    entries = json.loads(_distributed_c10d._dump_fr_trace_json())["entries"]
    return sum(entry["retired"] for entry in entries)


@pytest.mark.parametrize("kind", ["pickle", "json"])
@on_ranks(3, timeout_s=60)
def test_a_rank_of_a_job_on_gloo_that_does_not_come(rank, size, store, tmp_path, kind):
    """Rank 1 does not enter the third all-reduce before all have written their dumps."""
    default_group("gloo", rank, size, store)
    for _ in range(2):
        dist.all_reduce(torch.ones(8))
    work = dist.all_reduce(torch.ones(8), async_op=True) if rank != 1 else None
    together(store, rank, size, "entered")
    while _ended() < 2:  # an operation ends before the recorder knows
        time.sleep(0.01)
    if kind == "json":
        data, name = _distributed_c10d._dump_fr_trace_json(), f"rank_{rank}.json"
    else:
        data, name = _distributed_c10d._dump_fr_trace(True, True, False), f"_dump_{rank}"
    (tmp_path / name).write_bytes(data)
    together(store, rank, size, "dumped")

    if rank == 0:
        result = explain(".", "--json", cwd=tmp_path)
        (verdict,) = json.loads(result.stdout)["verdicts"]
        assert (verdict["kind"], verdict["ranks"]) == ("absent", [1])
        assert verdict["waiting"] == 2
    together(store, rank, size, "explained")
    if work is None:
        dist.all_reduce(torch.ones(8))
    else:
        work.wait()
