"""Machines that lack something, played by a PATH on which it is missing or refuses."""

import json
import os
import shutil
from pathlib import Path

import pytest

from bench.lab import LabUnavailable, Network, Ports, sandbox
from bench.lab.lab import Lab
from tests.runtime.spawning import python

ROOT = Path(__file__).resolve().parents[2]
FOR_NETWORKS = ("veth", "tbf", "htb", "netem", "statistic", "nfqueue")
REFUSES = "#!/bin/sh\necho 'unshare: unshare failed: Operation not permitted' >&2\nexit 1\n"


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """A PATH with all that this machine has, to take from."""
    # From the last folder on, so that what an earlier one has too is replaced by its file.
    for folder in reversed(sandbox.search_path().split(os.pathsep)):
        if not Path(folder).is_dir():
            continue
        for file in Path(folder).glob("*"):
            link = tmp_path / file.name
            link.unlink(missing_ok=True)
            link.symlink_to(file)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sandbox, "search_path", lambda: str(tmp_path))
    return tmp_path


def refuse(folder):
    """Let namespaces be refused by the ``unshare`` of this folder; a PATH with it."""
    (folder / "unshare").unlink(missing_ok=True)
    (folder / "unshare").write_text(REFUSES)
    (folder / "unshare").chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (refuse, r"not permitted .*Operation not permitted.*sysctl"),
        (lambda tools: (tools / "unshare").unlink(), r"no unshare command.*Install util-linux"),
    ],
    ids=["refused", "no unshare"],
)
def test_refused_or_missing_namespaces_are_said_so(tools, change, message):
    change(tools)
    with pytest.raises(LabUnavailable, match=message):
        Lab(Network(hosts=1)).__enter__()


@pytest.mark.parametrize(("tool", "remedy"), [("ip", "iproute2"), ("tc", "iproute2 with tc")])
def test_a_missing_tool_is_named_with_its_package(lab, tools, tool, remedy):
    with lab(hosts=1):
        pass  # skips where there is none to take away
    (tools / tool).unlink()
    with pytest.raises(LabUnavailable, match=rf"does not work .*{tool}.*Install {remedy}"):
        Lab(Network(hosts=1)).__enter__()


def test_a_missing_firewall_is_named_with_its_package(lab, tools):
    with lab(hosts=1):
        pass
    (tools / "iptables").unlink(missing_ok=True)
    refused = pytest.raises(LabUnavailable, match=r"a firewall needs conntrack.*Install iptables")
    with Lab(Network(hosts=1)) as up, refused:
        up.admit([Ports("tcp", 5000, 5000)])


def test_check_says_what_works(lab):
    with lab(hosts=1):
        pass
    done = python("-m", "bench.lab", "check", "--json", cwd=ROOT)
    facts = json.loads(done.stdout)
    assert facts["possible"]
    assert set(facts["mechanisms"]) == {*FOR_NETWORKS, "conntrack"}
    for mechanism in facts["mechanisms"].values():
        assert bool(mechanism["detail"]) != mechanism["available"]


@pytest.mark.parametrize("command", [["check"], ["check", "--json"], ["up", "--", "true"]])
def test_the_command_ends_with_3_where_no_lab_is_possible(tmp_path, command):
    done = python("-m", "bench.lab", *command, cwd=ROOT, PATH=refuse(tmp_path))
    assert done.returncode == 3
    assert "Operation not permitted" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    if "--json" in command:
        assert json.loads(done.stdout)["possible"] is False


def test_tests_are_skipped_visibly_where_no_lab_is_possible(tmp_path):
    (tmp_path / "conftest.py").write_text("from bench.lab.fixture import lab\n")
    (tmp_path / "test_it.py").write_text("def test_it(lab):\n    with lab(hosts=1):\n        1/0\n")
    command = "-m pytest -rs -p no:cacheprovider test_it.py"
    done = python(*command.split(), cwd=tmp_path, PATH=refuse(tmp_path), PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stdout
    assert "1 skipped" in done.stdout
    assert "no emulated network on this machine: namespaces are not permitted" in done.stdout


def test_the_search_path_has_the_system_s_folders():
    assert {"/usr/sbin", "/sbin"} <= set(sandbox.search_path().split(os.pathsep))
    assert shutil.which("sh", path=sandbox.search_path())
