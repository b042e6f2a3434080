"""Machines that lack something, played by a PATH on which it is missing or refuses."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bench.lab import LabUnavailable, Network, sandbox
from bench.lab import lab as lab_module
from bench.lab.lab import Lab

ROOT = Path(__file__).resolve().parents[2]
REFUSES = "#!/bin/sh\necho 'unshare: unshare failed: Operation not permitted' >&2\nexit 1\n"


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """A PATH with all that this machine has, to take from."""
    for folder in reversed(sandbox.search_path().split(os.pathsep)):
        for file in Path(folder).glob("*") if Path(folder).is_dir() else ():
            link = tmp_path / file.name
            link.unlink(missing_ok=True)
            link.symlink_to(file)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sandbox, "search_path", lambda: str(tmp_path))
    return tmp_path


def refuse(tools):
    (tools / "unshare").unlink(missing_ok=True)
    (tools / "unshare").write_text(REFUSES)
    (tools / "unshare").chmod(0o755)


def test_refused_namespaces_are_said_so(tools):
    refuse(tools)
    with pytest.raises(LabUnavailable, match=r"not permitted .*Operation not permitted.*sysctl"):
        Lab(Network(hosts=1)).__enter__()


def test_no_unshare(tools):
    (tools / "unshare").unlink(missing_ok=True)
    with pytest.raises(LabUnavailable, match=r"no unshare command.*Install util-linux"):
        Lab(Network(hosts=1)).__enter__()


@pytest.mark.parametrize(("tool", "remedy"), [("ip", "iproute2"), ("tc", "iproute2 with tc")])
def test_a_missing_tool_is_named_with_its_package(lab, tools, tool, remedy):
    with lab(hosts=1):
        pass  # skips where there is none to take away
    (tools / tool).unlink()
    with pytest.raises(LabUnavailable, match=rf"does not work .*{tool}.*Install {remedy}"):
        lab_module.Lab(Network(hosts=1)).__enter__()


def test_check_says_what_works(lab):
    with lab(hosts=1):
        pass
    done = subprocess.run(
        [sys.executable, "-m", "bench.lab", "check", "--json"],
        check=True, capture_output=True, text=True, cwd=ROOT, timeout=500,
    )  # fmt: skip
    told = json.loads(done.stdout)
    assert told["possible"]
    assert {"veth", "tbf", "htb", "netem", "statistic", "nfqueue"} == set(told["mechanisms"])
    for mechanism in told["mechanisms"].values():
        assert bool(mechanism["detail"]) != mechanism["available"]


@pytest.mark.parametrize("command", [["check"], ["check", "--json"], ["up", "--", "true"]])
def test_the_command_ends_with_3_where_no_lab_is_possible(tmp_path, command):
    (tmp_path / "unshare").write_text(REFUSES)
    (tmp_path / "unshare").chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(
        [sys.executable, "-m", "bench.lab", *command],
        env=env, check=False, capture_output=True, text=True, cwd=ROOT, timeout=500,
    )  # fmt: skip
    assert done.returncode == 3
    assert "Operation not permitted" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    if "--json" in command:
        assert json.loads(done.stdout)["possible"] is False


def test_tests_are_skipped_visibly_where_no_lab_is_possible(tmp_path):
    (tmp_path / "unshare").write_text(REFUSES)
    (tmp_path / "unshare").chmod(0o755)
    (tmp_path / "conftest.py").write_text("from bench.lab.fixture import lab\n")
    (tmp_path / "test_it.py").write_text("def test_it(lab):\n    with lab(hosts=1):\n        1/0\n")
    env = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", "test_it.py"],
        env=env, check=False, capture_output=True, text=True, cwd=tmp_path, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert "1 skipped" in done.stdout
    assert "no emulated network on this machine: namespaces are not permitted" in done.stdout


def test_the_search_path_has_the_system_s_folders():
    assert {"/usr/sbin", "/sbin"} <= set(sandbox.search_path().split(os.pathsep))
    assert shutil.which("sh", path=sandbox.search_path())
