"""``latecomer.watch`` on torch's own process groups, in ranks that are processes."""

from __future__ import annotations

import json
import logging
import time
from collections import Counter

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as funcol
from torch.distributed.distributed_c10d import _coalescing_manager

import latecomer
from latecomer.runtime.explain import told
from latecomer.runtime.explain.findings import findings
from latecomer.runtime.explain.sources import read_sources
from latecomer.runtime.telemetry.files import DUMPS
from latecomer.runtime.torch_versions import HAS_HOOKS
from tests.runtime.spawning import default_group, on_ranks, python, together

needs_hooks = pytest.mark.skipif(not HAS_HOOKS, reason="hooks are there from torch 2.14 on")
LATE_S = 0.05


class Log(logging.Handler):
    """What this rank has told, as one ``text``."""

    text = ""

    def __enter__(self):
        logging.getLogger("latecomer").addHandler(self)
        return self

    def __exit__(self, *exception):
        logging.getLogger("latecomer").removeHandler(self)

    def emit(self, record):
        self.text += f"{record.getMessage()}\n"


@needs_hooks
@on_ranks(4)
def test_each_collective_of_each_group_is_seen_with_who_came_last(rank, size, store):
    default_group("gloo", rank, size, store)
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    with latecomer.watch() as watched:
        later = [dist.new_group([0, 2]), dist.new_group([1, 3])]
        for _ in range(12):
            if rank == 2:
                time.sleep(LATE_S)
            dist.all_reduce(torch.ones(8))
            dist.broadcast(torch.ones(2), 3, group=pairs[1]) if rank >= 2 else None
            dist.all_reduce(torch.ones(4), group=later[rank % 2])
        if rank == 0:
            dist.send(torch.ones(2), 1)
        elif rank == 1:
            dist.recv(torch.ones(2), 0)

    summary = watched.summary()
    rows = {(row.kind, row.ranks): row for row in summary.collectives}
    of_all = rows["all_reduce", (0, 1, 2, 3)]
    assert (of_all.times, of_all.bytes) == (12, 12 * 8 * 4)
    assert of_all.lines[0].rank == 2
    assert of_all.lines[0].last >= 0.75  # it sleeps; a machine that is busy may hold up another
    assert of_all.lines[0].lateness_p50_s > LATE_S / 2
    assert rows["broadcast", (2, 3)].times == 12
    assert ("broadcast", (0, 1)) not in rows
    assert rows["all_reduce", (0, 2)].times == rows["all_reduce", (1, 3)].times == 12
    assert summary.lines[0].rank == 2
    assert "all_reduce      default_pg           4     12  2: " in str(summary)
    assert json.loads(summary.as_json())["collectives"][0]["kind"] == "all_reduce"

    own = watched.ranks[rank]
    between = [each for each in own.collectives if each.is_between_two]
    assert [(each.kind, each.peer) for each in between] == {
        0: [("send", 1)],
        1: [("recv", 0)],
    }.get(rank, [])
    assert not any(each.failed for each in own.collectives)
    dist.destroy_process_group()


@needs_hooks
@on_ranks(2)
def test_training_with_ddp_is_seen_and_hooks_are_taken_away(rank, size, store):
    default_group("gloo", rank, size, store)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    with latecomer.watch() as watched:
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
    times = {row.kind: row.times for row in watched.summary().collectives}
    assert times["all_reduce"] == 3

    dist.all_reduce(torch.ones(1))  # of which nobody is told any more
    with latecomer.watch() as again:
        dist.barrier()
    (row,) = again.summary().collectives
    assert (row.kind, row.times) == ("barrier", 1)
    dist.destroy_process_group()


@needs_hooks
@on_ranks(3)
def test_a_rank_that_does_not_come_is_told_and_dumps_are_written(rank, size, store, tmp_path):
    default_group("gloo", rank, size, store)
    directory = tmp_path / "watched"
    with Log() as log, latecomer.watch(directory=directory, overdue_s=2.0):
        dist.all_reduce(torch.ones(8))
        if rank != 1:
            work = dist.all_reduce(torch.ones(8), async_op=True)
            while not (directory / DUMPS / f"rank_{rank}.json").exists():
                time.sleep(0.05)
            assert "it has been in all_reduce 1 of group 0" in log.text
            if rank == 0:
                assert "not there yet: rank 1" in log.text
        together(store, rank, size, "has told")
        if rank == 1:
            work = dist.all_reduce(torch.ones(8), async_op=True)
        work.wait()
    if rank == 0:
        dumps = [directory / DUMPS / f"rank_{each}.json" for each in (0, 2)]
        (verdict,) = findings(read_sources(dumps), world_size=size)
        assert verdict.ranks == (1,)
    dist.destroy_process_group()


@needs_hooks
@on_ranks(3)
def test_different_collectives_are_named_while_ranks_are_in_them(rank, size, store, tmp_path):
    default_group("gloo", rank, size, store)
    with Log() as log, latecomer.watch() as watched:
        if rank == 2:
            work = dist.barrier(async_op=True)
        else:
            work = dist.broadcast(torch.ones(4), 0, async_op=True)
        if rank < 2:
            until_s = time.monotonic() + 30
            while "different collectives" not in log.text and time.monotonic() < until_s:
                time.sleep(0.01)
            expected = "ranks 0, 1: broadcast float32 root 0 4 0; rank 2: barrier"
            assert expected in log.text
        together(store, rank, size, "has told")
    assert any("rank 2: barrier" in text for text in watched.summary().disagreements)
    del work
    dist.destroy_process_group()


@needs_hooks
@on_ranks(2)
def test_what_torch_refuses_and_what_is_never_waited_for_stay_open_no_longer(rank, size, store):
    default_group("gloo", rank, size, store)
    with latecomer.watch() as watched:
        with pytest.raises(RuntimeError):
            dist.all_gather_into_tensor(torch.ones(3), torch.ones(2))  # of another size
        begin = dist.isend if rank == 0 else dist.irecv
        works = [begin(torch.ones(1), 1 - rank) for _ in range(1100)]
        for work in works:
            work.wait()
        dist.barrier()
        recorder = watched._recorder
        recorder._hooks.look()
        assert recorder.open_collectives() == ()
    refused = [each for each in watched.ranks[rank].collectives if each.failed]
    assert [each.kind for each in refused] == ["all_gather"]
    sends = [each for each in watched.ranks[rank].collectives if each.is_between_two]
    assert len(sends) == 1100
    dist.destroy_process_group()


@needs_hooks
@on_ranks(2)
def test_what_torch_refuses_is_over_when_its_thread_enters_anything_in_any_group(rank, size, store):
    default_group("gloo", rank, size, store)
    other = dist.new_group([0, 1])
    with latecomer.watch() as watched:
        with pytest.raises(RuntimeError):
            dist.all_gather_into_tensor(torch.ones(3), torch.ones(2), group=other)
        recorder = watched._recorder
        assert [each.kind for each in recorder.open_collectives()] == ["all_gather"]
        dist.barrier()
        recorder._hooks.look()
        assert recorder.open_collectives() == ()
    assert [each.kind for each in watched.ranks[rank].collectives if each.failed] == ["all_gather"]
    dist.destroy_process_group()


@needs_hooks
@on_ranks(2)
def test_every_form_of_a_collective_is_seen(rank, size, store):
    """Of tensors and lists of them, coalesced, and as FSDP and compiled code call them."""
    default_group("gloo", rank, size, store)
    one = torch.ones(2)
    both = torch.ones(4)
    with latecomer.watch() as watched:
        dist.all_reduce(one)
        funcol.all_reduce(one, "sum", dist.group.WORLD).wait()
        with _coalescing_manager():
            dist.all_reduce(one)
            dist.all_reduce(both)
        dist.all_gather([one, one.clone()], one)
        dist.all_gather_into_tensor(both, one)
        funcol.all_gather_tensor(one, 0, dist.group.WORLD).wait()
        with _coalescing_manager():
            dist.all_gather_into_tensor(both, one)
        dist.reduce_scatter(one, [one, one.clone()])
        dist.reduce_scatter_tensor(one, both)
        funcol.reduce_scatter_tensor(both, "sum", 0, dist.group.WORLD).wait()
        dist.all_to_all([one, one.clone()], [one, one.clone()])
        dist.all_to_all_single(both, both.clone())
        dist.barrier()
    kinds = Counter(each.kind for each in watched.ranks[rank].collectives)
    assert kinds == {
        "all_reduce": 3,
        "all_gather": 4,
        "reduce_scatter": 3,
        "all_to_all": 2,
        "barrier": 1,
    }
    dist.destroy_process_group()


@needs_hooks
@on_ranks(2)
def test_a_reduce_scatter_whose_end_is_never_told_is_neither_open_nor_kept(rank, size, store):
    default_group("gloo", rank, size, store)
    with latecomer.watch() as watched:
        for _ in range(3):
            dist.reduce_scatter(torch.empty(2), [torch.ones(2), torch.ones(2)])
        recorder = watched._recorder
        assert recorder.open_collectives() == ()
        assert not recorder._hooks._unended  # which would hold its tensors
    own = watched.ranks[rank].collectives
    assert [(each.kind, each.number) for each in own] == [("reduce_scatter", n) for n in range(3)]
    (row,) = watched.summary().collectives
    assert (row.kind, row.times) == ("reduce_scatter", 3)
    dist.destroy_process_group()


@needs_hooks
@on_ranks(3)
def test_what_is_entered_first_in_a_new_group_may_be_unseen(rank, size, store):
    """Rank 2 does not enter it; the others know of it by the group's count, until they go on."""
    default_group("gloo", rank, size, store)
    with latecomer.watch() as watched:
        dist.barrier()
        recorder = watched._recorder
        recorder._periodic.close()  # which might see the group at once; here it is asked to look
        new = dist.new_group([0, 1, 2])
        if rank < 2:
            work = new.allreduce([torch.ones(2)])
            recorder._hooks.look()
            (unseen,) = recorder.open_collectives()
            assert (unseen.group, unseen.number, unseen.kind) == (new.group_name, 0, "unseen")
        together(store, rank, size, "is seen")
        if rank == 2:
            work = new.allreduce([torch.ones(2)])
        work.wait()
        dist.barrier()
        recorder._hooks.look()
        assert recorder.open_collectives() == ()
    kinds = [each.kind for each in watched.ranks[rank].collectives]
    assert "unseen" not in kinds
    assert kinds.count("barrier") == 2
    dist.destroy_process_group()


@needs_hooks
@on_ranks(3, timeout_s=60)
def test_who_does_not_enter_a_reduce_scatter_is_named_from_the_files(rank, size, store, tmp_path):
    told.STANDS_S = 2.0  # of this process, which ends with the test
    directory = tmp_path / "watched"
    default_group("gloo", rank, size, store)
    with latecomer.watch(directory=directory):
        dist.reduce_scatter(torch.empty(2), [torch.ones(2)] * size)
        together(store, rank, size, "all have entered the first")
        if rank != 1:
            work = dist.reduce_scatter(torch.empty(2), [torch.ones(2)] * size, async_op=True)
        if rank == 0:
            until_s = time.monotonic() + 30
            found = []
            while not any(each.ranks for each in found) and time.monotonic() < until_s:
                time.sleep(0.2)
                if len(list(directory.glob("rank*.jsonl"))) == size:
                    found = findings(read_sources([directory]))
            assert [(each.kind, each.ranks) for each in found] == [("absent", (1,))]
        together(store, rank, size, "is named")
        if rank == 1:
            work = dist.reduce_scatter(torch.empty(2), [torch.ones(2)] * size, async_op=True)
        work.wait()
    dist.destroy_process_group()


UNTIL_EXIT = """
import sys
import torch
import torch.distributed as dist
import latecomer

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
how = sys.argv[1]
if how == "bare":
    latecomer.watch(directory="watched")
else:
    watched = latecomer.watch(directory="watched").start()
dist.all_reduce(torch.ones(1))
if how == "stops":
    watched.stop()
    print(watched.summary())
if how == "destroys":
    dist.destroy_process_group()
if how == "raises":
    raise ValueError("bad batch")
"""


@needs_hooks
@pytest.mark.parametrize("how", ["falls off its end", "destroys", "raises", "stops", "bare"])
def test_without_a_block_it_watches_until_the_program_ends(how, tmp_path):
    program = python("-c", UNTIL_EXIT, how, cwd=tmp_path)
    assert program.returncode == int(how == "raises"), program.stderr
    files = list(tmp_path.glob("watched/rank0-*.jsonl"))
    if how == "bare":
        assert not files
        assert "<string>, line 10 has watched nothing" in program.stderr
        return
    assert "has watched nothing" not in program.stderr
    lines = [json.loads(line) for line in files[0].read_text().splitlines()]
    assert [line["collective"]["kind"] for line in lines if "collective" in line] == ["all_reduce"]
    state = lines[-1]["state"]
    assert state["over"]
    assert state["error"] == ("ValueError: bad batch" if how == "raises" else "")
    assert ("all_reduce" in program.stdout) == (how == "stops")


@on_ranks(1)
def test_without_a_group_or_hooks_it_says_what_it_needs(rank, size, store):
    if not HAS_HOOKS:
        default_group("gloo", rank, size, store)
    with Log() as log, latecomer.watch() as watched:
        pass
    assert "torch's own groups are watched after init_process_group(), with torch 2.14" in (
        log.text
    )
    assert torch.__version__ in log.text
    assert str(watched.summary()) == "nothing was watched"
