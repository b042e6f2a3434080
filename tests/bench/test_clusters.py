"""The files of examples/clusters start jobs on hosts that only admit the ports that are opened."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from bench.lab import Ports
from tests.bench import clusters

pytestmark = pytest.mark.lab

JOB_S = 240.0  # against hangs; no claim on speed
SLURM_PAGE = clusters.ROOT / "docs/howto/slurm.md"
CLOSED = "28000-28063"
WITHOUT_UDP = "29700-29763"
TRAIN = """
import os, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from latecomer import ddp
from latecomer.synth import generate

dist.init_process_group("gloo")
rank = dist.get_rank()
ranks = dist.get_world_size()
how = {"mode": os.environ["MODE"]} if "MODE" in os.environ else {"schedule": generate(ranks)}


def tell(text):  # as one write, for all ranks share the output
    sys.stdout.write(f"rank {rank} of {ranks} {text}\\n")
    sys.stdout.flush()


def train(ports, timeout_s):
    os.environ["LATECOMER_PORTS"] = ports
    model = DistributedDataParallel(torch.nn.Linear(300, 300))
    began_s = time.monotonic()
    try:
        attachment = ddp.attach(model, timeout_s=timeout_s, **how)
    except Exception as error:
        tell(f"failed after {time.monotonic() - began_s:.1f} s: {error}")
        return
    for _ in range(3):
        model(torch.full((2, 300), rank + 1.0)).square().mean().backward()
    dist.barrier()
    silent = attachment.executor.find_silent("asked")  # all ranks, over UDP
    tell(f"trained at ports {ports}, silent over UDP: {silent or 'nobody'}")
    dist.barrier()
    attachment.close()


opened = os.environ["LATECOMER_PORTS"]
if "CLOSED" in os.environ:
    train(os.environ["CLOSED"], 8.0)
    dist.barrier()
    train(os.environ["WITHOUT_UDP"], 8.0)
    dist.barrier()
train(opened, 60.0)
dist.barrier()
os._exit(0)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where jobs run, with a script to train; a PATH with torchrun, as an image has."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (tmp_path / "train.py").write_text(TRAIN)
    path = [str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]
    monkeypatch.setenv("PATH", os.pathsep.join(path))
    return tmp_path


def trained(result):
    """The ranks that trained at the ports of the file, and reached all others over UDP."""
    assert set(result.codes) == {0}, result.output
    pattern = r"^rank (\d) of 4 trained at ports 29600-29663, silent over UDP: nobody$"
    return sorted(map(int, re.findall(pattern, result.output, re.MULTILINE)))


def network_policy():
    """The ports that it opens between the pods."""
    return clusters.admitted(clusters.documents("network-policy.yaml")["NetworkPolicy"])


def test_the_network_policy_opens_what_the_pods_use():
    assert network_policy() == [
        Ports("tcp", 29500, 29500),
        Ports("tcp", 29600, 29663),
        Ports("udp", 29600, 29663),
        Ports("tcp", 29700, 30699),
    ]


def test_a_pytorch_job_trains_through_the_network_policy(lab, folder):
    with lab(hosts=2, rate_mbit=1000) as up:
        up.admit(network_policy())
        result = clusters.run(up, clusters.pytorch_job(up), folder, JOB_S)
    assert trained(result) == [0, 1, 2, 3]


def test_a_batch_script_trains_through_the_ports_of_the_page(lab, folder):
    opened = re.findall(r"^(TCP|UDP) (\d+)-(\d+)", SLURM_PAGE.read_text(), re.MULTILINE)
    ports = [Ports(name.lower(), int(first), int(last)) for name, first, last in opened]
    assert ports
    with lab(hosts=2, rate_mbit=1000) as up:
        up.admit(ports)
        cluster = clusters.batch_script(up, folder / "programs").with_variables(MODE="auto")
        result = clusters.run(up, cluster, folder, JOB_S)
    assert trained(result) == [0, 1, 2, 3]


def test_an_indexed_job_trains_through_the_network_policy_and_closed_ports_are_noticed(lab, folder):
    """Before, at ports where neither TCP nor UDP passes, and where only TCP does, as for Gloo."""
    with lab(hosts=2, rate_mbit=1000) as up:
        up.admit(network_policy())
        cluster = clusters.indexed_job(up).with_variables(CLOSED=CLOSED, WITHOUT_UDP=WITHOUT_UDP)
        result = clusters.run(up, cluster, folder, JOB_S)
    assert trained(result) == [0, 1, 2, 3]

    failed = re.findall(r"^rank (\d) of 4 failed after (\S+) s: ", result.output, re.MULTILINE)
    assert sorted(rank for rank, _ in failed) == ["0", "1", "2", "3"]
    assert all(float(seconds) < 60.0 for _, seconds in failed)  # of 8 s, on a busy machine
    for line in (
        r"rank\(s\) 2, 3: no connection within \S+ s: is a firewall between\?$",
        r"rank\(s\) 0, 1: no connection within \S+ s: is a firewall between\?$",
        r"^  rank 0 does not answer on TCP at 10\.77\.0\.1:280[0-6]\d$",
        r"^  rank 2 has not called rank 0 on TCP at 10\.77\.0\.1:280[0-6]\d$",
        rf"^rank \d of 4 trained at ports {WITHOUT_UDP}, silent over UDP: ranks (2, 3|0, 1): .*"
        r"; UDP from rank\(s\) (2, 3|0, 1) has not arrived once: is a firewall between\?",
    ):
        assert re.search(line, result.output, re.MULTILINE), (line, result.output)
