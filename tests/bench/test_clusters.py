"""The files of examples/clusters start jobs on hosts that only admit the ports that are opened."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from bench.lab import Ports
from tests.bench import clusters

JOB_S = 60.0  # against hangs; no claim on speed
SLURM_PAGE = clusters.ROOT / "docs/howto/slurm.md"
CLOSED = "28000-28063"
WITHOUT_UDP = "29700-29763"
TRAIN = """
import os, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from latecomer import ddp
from latecomer.runtime.network.clock import UNKNOWN_S

dist.init_process_group("gloo")
rank = dist.get_rank()


def tell(text):  # as one write, for all ranks share the output
    sys.stdout.write(f"rank {rank} {text}\\n")
    sys.stdout.flush()


def train(timeout_s):
    model = DistributedDataParallel(torch.nn.Linear(300, 300))
    began_s = time.monotonic()
    try:
        attachment = ddp.attach(model, mode="auto", timeout_s=timeout_s)
        for _ in range(3):
            model(torch.full((2, 300), rank + 1.0)).square().mean().backward()
    except Exception as error:
        tell(f"failed after {time.monotonic() - began_s:.1f} s: {error}")
        return
    uncertainty_s = attachment.reducer.control_plane.alignment().uncertainty_s
    udp = "arrives" if uncertainty_s < UNKNOWN_S else "does not arrive"
    tell(f"of {dist.get_world_size()} trained at ports {os.environ['LATECOMER_PORTS']}, UDP {udp}")
    attachment.close()


opened = os.environ["LATECOMER_PORTS"]
for ports in os.environ.get("CLOSED_PORTS", "").split():
    os.environ["LATECOMER_PORTS"] = ports
    train(timeout_s=4.0)
    dist.barrier()
os.environ["LATECOMER_PORTS"] = opened
train(timeout_s=60.0)
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
    """The ranks that trained with UDP."""
    assert set(result.codes) == {0}, result.output
    pattern = r"^rank (\d) of 4 trained at ports 29600-29663, UDP arrives$"
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


@pytest.mark.slow_first
def test_a_pytorch_job_trains_through_the_network_policy(lab, folder):
    with lab(hosts=2, rate_mbit=1000) as up:
        up.admit(network_policy())
        result = clusters.run(up, clusters.pytorch_job(up), folder, JOB_S)
    assert trained(result) == [0, 1, 2, 3]


@pytest.mark.slow_first
def test_a_batch_script_trains_through_the_ports_of_the_page(lab, folder):
    opened = re.findall(r"^(TCP|UDP) (\d+)-(\d+)", SLURM_PAGE.read_text(), re.MULTILINE)
    ports = [Ports(name.lower(), int(first), int(last)) for name, first, last in opened]
    assert ports
    with lab(hosts=2, rate_mbit=1000) as up:
        up.admit(ports)
        cluster = clusters.batch_script(up, folder / "programs")
        result = clusters.run(up, cluster, folder, JOB_S)
    assert trained(result) == [0, 1, 2, 3]


@pytest.mark.slow_first
def test_an_indexed_job_trains_through_the_network_policy_and_closed_ports_are_noticed(lab, folder):
    """Before, at ports where neither TCP nor UDP passes, and where only TCP does, as for Gloo."""
    with lab(hosts=2, rate_mbit=1000) as up:
        up.admit(network_policy())
        cluster = clusters.indexed_job(up).with_variables(CLOSED_PORTS=f"{CLOSED} {WITHOUT_UDP}")
        result = clusters.run(up, cluster, folder, JOB_S)
    assert trained(result) == [0, 1, 2, 3]

    failed = re.findall(r"^rank (\d) failed after (\S+) s: ", result.output, re.MULTILINE)
    assert {rank for rank, _ in failed} == {"0", "1", "2", "3"}
    assert all(float(seconds) < 30.0 for _, seconds in failed)  # a busy machine; 300 by default
    for line in (
        r"rank\(s\) 2, 3: no connection within 2\.\d+ s: is a firewall between\?$",
        r"rank\(s\) 0, 1: no connection within 2\.\d+ s: is a firewall between\?$",
        r"^  rank 0 does not answer on TCP at 10\.77\.0\.1:280[0-6]\d$",
        r"^  rank 2 has not called rank 0 on TCP at 10\.77\.0\.1:280[0-6]\d$",
        r"^rank 2: UDP from rank 0 does not arrive: is a firewall between\?",
        # whether it can go on depends on what is to be decided
        rf"^rank 2 of 4 trained at ports {WITHOUT_UDP}, UDP does not arrive$"
        r"|^rank 2 failed after .*UDP from rank\(s\) .* has not arrived once",
    ):
        assert re.search(line, result.output, re.MULTILINE), (line, result.output)
