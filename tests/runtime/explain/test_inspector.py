"""``explain`` on what NCCL's Inspector wrote, in the form of its README."""

from __future__ import annotations

import json
import random

import pytest

from latecomer.runtime.explain.findings import findings
from latecomer.runtime.explain.sources import read_sources
from latecomer.verify.errors import FormatError


def line(communicator, rank, ranks, number, took_us, at_us, process):
    return json.dumps(
        {
            "header": {"id": communicator, "rank": rank, "n_ranks": ranks, "nnodes": 1},
            "metadata": {
                "inspector_output_format_version": "v4.0",
                "git_rev": "9019a1912-dirty",
                "rec_mechanism": "nccl_profiler_interface",
                "dump_timestamp_us": at_us,
                "hostname": "node7",
                "pid": process,
            },
            "coll_perf": {
                "coll": "AllReduce",
                "coll_sn": number,
                "coll_msg_size_bytes": 2360832,
                "coll_exec_time_us": took_us,
                "coll_timing_source": "kernel_gpu",
                "coll_algobw_gbs": 0.4,
                "coll_busbw_gbs": 0.5,
            },
        }
    )


def write(directory, slow, *, ranks=4, steps=60, seed=1):
    """A file per rank, in which steps take 100 ms and ``slow`` comes 30 ms after the others."""
    drawn = random.Random(seed)
    late_us = {
        (rank, step): drawn.randrange(2000) + 30_000 * (rank == slow)
        for rank in range(ranks)
        for step in range(steps)
    }
    for rank in range(ranks):
        lines = []
        for step in range(steps):
            last_us = max(late_us[other, step] for other in range(ranks))
            took_us = last_us - late_us[rank, step] + 500
            at_us = 1_772_585_717_000_000 + 100_000 * step + drawn.randrange(300)
            lines.append(line("0xad56", rank, ranks, step, took_us, at_us, 100 + rank))
        lines.append('{"header": {"id": "0xad56", "ra')  # the job was killed
        (directory / f"node7-pid{100 + rank}.log").write_text("\n".join(lines))


@pytest.mark.parametrize("slow", range(4))
def test_who_comes_last_is_named_by_the_shortest_times(tmp_path, slow):
    write(tmp_path, slow)
    (verdict,) = findings(read_sources([tmp_path]))
    assert (verdict.kind, verdict.ranks) == ("slow", (slow,))


def test_nobody_is_where_all_come_alike(tmp_path):
    write(tmp_path, slow=None)
    (verdict,) = findings(read_sources([tmp_path]))
    assert verdict.kind == "ok"


def test_a_file_without_a_whole_line_is_an_error(tmp_path):
    path = tmp_path / "node7-pid1.log"
    path.write_text('{"header": {"id": "0xad56"}, "coll_perf": 7}\n')
    with pytest.raises(FormatError, match="no completed collective"):
        read_sources([path])
