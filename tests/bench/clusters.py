"""What Slurm, Kubernetes and Kubeflow make of the files in examples/clusters, on hosts of the lab.

Each node, or pod, is a host: it has the name and the kernel settings that it would have there, and
the command gets the variables that the file and the cluster set. Nothing else of a cluster is here.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from bench.lab import Lab, Ports
from bench.lab.sandbox import Process

ROOT = Path(__file__).resolve().parents[2]
CLUSTERS = ROOT / "examples/clusters"
BECOME = 'hostname "$1" && mount --bind "$2/$1.hosts" /etc/hosts && shift 2 && exec "$@"'

SRUN = """#!/bin/sh
# One task on each node: node r is the lab's host r.
while [ "${1#--}" != "$1" ]; do shift; done
node=0
tasks=
while [ $node -lt "$SLURM_JOB_NUM_NODES" ]; do
    SLURM_NODEID=$node SLURM_PROCID=$node nsenter --net=/run/netns/h$node \\
        unshare --uts --mount sh -c '%s' sh node$node "$HOSTS" "$@" &
    tasks="$tasks $!"
    node=$((node + 1))
done
worst=0
for task in $tasks; do wait "$task" || worst=$?; done
exit $worst
"""
SCONTROL = """#!/bin/sh
[ "$*" = "show hostnames node[0-1]" ] && printf 'node0\\nnode1\\n'
"""


@dataclass(frozen=True)
class Node:
    """A pod, or where a batch script runs: its name, what it starts, and settings of its kernel."""

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str]
    sysctls: Mapping[str, str]


@dataclass(frozen=True)
class Cluster:
    """What is started, on host 0 and so on; who has which name, by address.

    Attributes:
        names: what the cluster's DNS knows.
        own_names: what a host calls itself, and knows in its own /etc/hosts only.
    """

    nodes: tuple[Node, ...]
    names: Mapping[str, str]
    own_names: Mapping[str, str]

    def with_variables(self, **variables: str) -> Cluster:
        """The same with other values of variables."""
        nodes = tuple(_with(node, **variables) for node in self.nodes)
        return replace(self, nodes=nodes)


@dataclass(frozen=True)
class Result:
    """How all commands ended (``None``: not in time), and what they printed."""

    codes: tuple[int | None, ...]
    output: str


def documents(name: str) -> dict[str, Any]:
    """The documents of a manifest, by kind."""
    return {one["kind"]: one for one in yaml.safe_load_all((CLUSTERS / name).read_text())}


def admitted(policy: Mapping[str, Any]) -> list[Ports]:
    """What a NetworkPolicy lets pods reach of each other; it is the only kind of rule known."""
    spec = policy["spec"]
    assert spec["policyTypes"] == ["Ingress"]
    (rule,) = spec["ingress"]
    assert rule["from"] == [{"podSelector": spec["podSelector"]}]
    ports = []
    for entry in rule["ports"]:
        last = entry.get("endPort", entry["port"])
        ports.append(Ports(entry["protocol"].lower(), entry["port"], last))
    return ports


def indexed_job(lab: Lab) -> Cluster:
    """The pods of the indexed Job."""
    manifest = documents("job.yaml")
    spec = manifest["Job"]["spec"]
    service = manifest["Service"]
    name = manifest["Job"]["metadata"]["name"]
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"]
    assert service["spec"]["clusterIP"] == "None"
    assert _is_selected(service["spec"]["selector"], spec["template"])

    pods = []
    names = {}
    for index in range(spec["completions"]):
        pod = _pod(lab, index, f"{name}-{index}", spec["template"])
        pods.append(_with(pod, JOB_COMPLETION_INDEX=str(index)))
        if spec["template"]["spec"]["subdomain"] == service["metadata"]["name"]:
            names[f"{pod.name}.{service['metadata']['name']}"] = lab.address(index)
    return _cluster(lab, pods, names)


def pytorch_job(lab: Lab) -> Cluster:
    """The pods of the PyTorchJob; the operator sets variables, and makes a Service for each."""
    manifest = documents("pytorchjob.yaml")["PyTorchJob"]
    name = manifest["metadata"]["name"]
    replicas = manifest["spec"]["pytorchReplicaSpecs"]
    templates = [(f"{name}-master-0", replicas["Master"]["template"])]
    for index in range(replicas["Worker"]["replicas"]):
        templates.append((f"{name}-worker-{index}", replicas["Worker"]["template"]))

    per_node = int(manifest["spec"]["nprocPerNode"])
    (container,) = replicas["Master"]["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert container["name"] == "pytorch"
    master = {"MASTER_ADDR": f"{name}-master-0", "MASTER_PORT": str(ports["pytorchjob-port"])}

    pods = []
    names = {}
    for rank, (pod_name, template) in enumerate(templates):
        pod = _pod(lab, rank, pod_name, template)
        variables = {
            **master,
            **{f"PET_{key}": value for key, value in master.items()},
            "WORLD_SIZE": str(len(templates) * per_node),
            "RANK": str(rank),
            "PET_NNODES": str(len(templates)),
            "PET_NPROC_PER_NODE": str(per_node),
            "PET_NODE_RANK": str(rank),
        }
        pods.append(_with(pod, **variables))
        names[pod_name] = lab.address(rank)
    return _cluster(lab, pods, names)


def batch_script(lab: Lab, programs: Path) -> Cluster:
    """What sbatch starts on the first node; ``programs`` gets Slurm's, to be found on PATH."""
    script = CLUSTERS / "slurm.sbatch"
    options = dict(re.findall(r"^#SBATCH --(\S+?)=(\S+)", script.read_text(), re.MULTILINE))
    assert options["ntasks-per-node"] == "1"
    nodes = int(options["nodes"])
    variables = {
        "SLURM_JOB_ID": "4217",
        "SLURM_JOB_NODELIST": "node[0-1]",
        "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_CPUS_PER_TASK": options["cpus-per-task"],
    }
    for name, text in (("srun", SRUN % BECOME), ("scontrol", SCONTROL)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)

    names = {f"node{rank}": lab.address(rank) for rank in range(nodes)}
    return Cluster((Node("node0", ("bash", str(script)), variables, {}),), names, names)


def run(lab: Lab, cluster: Cluster, folder: Path, timeout_s: float) -> Result:
    """Start each node's command on its host, in ``folder``, and wait for all."""
    known = "".join(f"{address} {name}\n" for name, address in cluster.names.items())
    for name, address in cluster.own_names.items():
        hosts = f"127.0.0.1 localhost\n{address} {name}\n{known}"
        (folder / f"{name}.hosts").write_text(hosts)
    own = {
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "PYTHONUNBUFFERED": "1",
        "HOSTS": str(folder),
    }

    deadline_s = time.monotonic() + timeout_s
    with tempfile.TemporaryFile() as output, ExitStack() as stack:
        running = []
        for host, node in enumerate(cluster.nodes):
            _set_sysctls(lab, host, node.sysctls)
            become = ["unshare", "--uts", "--mount", "sh", "-c", BECOME, "sh", node.name]
            process = lab.start(
                [*become, str(folder), *node.command],
                host,
                env={**own, **node.env},
                cwd=folder,
                stdout=output,
                stderr=output,
            )
            stack.callback(process.kill)
            running.append(process)
        codes = tuple(_wait(process, deadline_s) for process in running)
        output.seek(0)
        return Result(codes, output.read().decode(errors="replace"))


def _wait(process: Process, deadline_s: float) -> int | None:
    try:
        return process.wait(max(0.0, deadline_s - time.monotonic()))
    except TimeoutError:
        return None


def _cluster(lab: Lab, pods: Sequence[Node], names: Mapping[str, str]) -> Cluster:
    own_names = {pod.name: lab.address(index) for index, pod in enumerate(pods)}
    return Cluster(tuple(pods), names, own_names)


def _pod(lab: Lab, host: int, name: str, template: Mapping[str, Any]) -> Node:
    """A pod of a template with one container."""
    policy = documents("network-policy.yaml")["NetworkPolicy"]["spec"]
    assert _is_selected(policy["podSelector"]["matchLabels"], template)
    (container,) = template["spec"]["containers"]
    fields = {"status.podIP": lab.address(host)}
    env = {}
    for variable in container["env"]:
        if "value" in variable:
            env[variable["name"]] = variable["value"]
        else:
            env[variable["name"]] = fields[variable["valueFrom"]["fieldRef"]["fieldPath"]]
    settings = template["spec"]["securityContext"]["sysctls"]
    return Node(
        name=name,
        command=(*container["command"], *container.get("args", ())),
        env=env,
        sysctls={setting["name"]: setting["value"] for setting in settings},
    )


def _with(node: Node, **variables: str) -> Node:
    return Node(node.name, node.command, {**node.env, **variables}, node.sysctls)


def _is_selected(selector: Mapping[str, str], template: Mapping[str, Any]) -> bool:
    return selector.items() <= template["metadata"]["labels"].items()


def _set_sysctls(lab: Lab, host: int, sysctls: Mapping[str, str]) -> None:
    for name, value in sysctls.items():
        path = "/proc/sys/" + name.replace(".", "/")
        process = lab.start(["sh", "-c", f"echo '{value}' > {path}"], host)
        assert process.wait(10.0) == 0, name
