"""A lab that is really up. Where none is possible these tests are skipped, and say why."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from bench.lab import JobFailed, LabError, Limits, Ports, Tail, measure
from bench.lab import lab as lab_module
from bench.lab.mechanisms import CONGESTION
from bench.lab.plan import plan
from tests.runtime.spawning import execute

pytestmark = pytest.mark.lab

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 20.0

SUM = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
tensor = torch.full((1000,), float(os.environ["RANK"]))
dist.all_reduce(tensor)
print("sum", tensor[0].item(), tensor[-1].item())
dist.barrier()
os._exit(0)
"""


def shell(text):
    return ["sh", "-c", text]


def test_ranks_have_torchrun_s_variables_and_an_address_of_their_own(lab):
    with lab(hosts=3) as up:

        def first_lines(text, **env):
            job = up.run(shell(text), env=env).check()
            return [rank.output.split("\n")[0] for rank in job.ranks]

        variables = "echo $RANK/$WORLD_SIZE $MASTER_ADDR $GLOO_SOCKET_IFNAME $EXTRA"
        expected = [f"{rank}/3 10.77.0.1 e0 x" for rank in range(3)]
        assert first_lines(variables, EXTRA="x") == expected
        assert first_lines(f"cat {CONGESTION}; ls /sys/fs") == ["reno"] * 3

        addresses = first_lines("ip -4 -o addr show e0 | grep -o '10.77.0.[0-9]*'")
        assert addresses == [up.address(rank) for rank in range(3)]

        processes = first_lines("ls /proc | grep -c '^[0-9]*$'")
        assert all(int(count) < 12 for count in processes)  # hosts see only their lab
        assert first_lines("ip -o link | wc -l") == ["2"] * 3


def test_several_ranks_on_a_host_are_numbered_host_by_host(lab):
    with lab(hosts=2) as up:
        variables = "$RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK/$GROUP_WORLD_SIZE"
        job = up.run(shell(f"echo {variables} $LATECOMER_ADDRESS"), ranks_per_host=3).check()

    assert [rank.output for rank in job.ranks] == [
        f"{rank}/6 {rank % 3}/3 {rank // 3}/2 {up.address(rank // 3)}\n" for rank in range(6)
    ]


def test_gloo_runs_on_the_hosts(lab):
    with lab(hosts=2) as up:
        job = up.run([sys.executable, "-c", SUM], timeout_s=60).check()
        assert all("sum 1.0 1.0" in rank.output for rank in job.ranks)


def test_the_first_failing_rank_is_named_and_ends_the_others(lab):
    with lab(hosts=3) as up:
        command = shell("if [ $RANK = 1 ]; then echo oops; exit 7; fi; sleep 60")
        job = up.run(command)
        assert (job.first_failed, job.ok, job.timed_out) == (1, False, False)
        assert [rank.returncode for rank in job.ranks] == [-15, 7, -15]
        assert "rank 1 failed" in job.ranks[0].stopped
        with pytest.raises(JobFailed, match=r"rank 1 ended with 7; it printed\s+oops"):
            job.check()

        job = up.run(shell("exit $((RANK == 1))"), keep_going=True)
        assert [rank.returncode for rank in job.ranks] == [0, 1, 0]


def test_a_job_that_does_not_end_is_ended(lab):
    with lab(hosts=2) as up:
        job = up.run(shell("trap '' TERM; echo here; sleep 60 & wait; sleep 60"), timeout_s=1.0)
        assert job.timed_out
        assert [rank.returncode for rank in job.ranks] == [-9, -9]
        with pytest.raises(JobFailed, match="had not ended after 1 s"):
            job.check()
        assert up.run(["true"]).ok, "the lab is of use afterwards"


def test_output_comes_line_by_line_with_its_rank(lab):
    lines = []
    with lab(hosts=2) as up:
        up.run(shell("echo a$RANK; printf b$RANK"), on_line=lambda r, text: lines.append((r, text)))
    assert sorted(lines) == [(0, "a0"), (0, "b0"), (1, "a1"), (1, "b1")]


def test_losses_hit_only_the_path_they_are_set_for(lab):
    with lab(hosts=3, of_link={(0, 1): Limits(loss=0.9), (0, 2): Limits(loss=0.5)}) as up:
        measured = measure.frames(up, [(0, 1), (0, 2), (1, 0)], 400, 0.0005)
    assert 0.8 < measured[0, 1].loss < 1.0
    assert 0.3 < measured[0, 2].loss < 0.7
    assert measured[1, 0].loss < 0.25  # nothing is set there: a busy receiver may lose some itself


def test_delays_and_tails_are_at_least_what_was_set(lab):
    tail = Limits(delay_s=0.01, tails=(Tail(0.5, 0.05),))
    with lab(hosts=3, of_link={(0, 1): tail}, of_host={2: Limits(delay_s=0.02)}) as up:
        measured = measure.frames(up, [(0, 1), (1, 0), (0, 2)], 200, 0.001)
        assert up.rtt_ms >= 10

    with_tail = measured[0, 1]
    assert with_tail.percentile(0.0) >= 10
    in_tail = sum(delay_ms >= 60 for delay_ms in with_tail.delays_ms)
    assert in_tail > 50
    assert with_tail.percentile(0.0) < 60  # and some of it is not in the tail
    assert measured[0, 2].percentile(0.0) >= 20
    assert measured[1, 0].percentile(0.0) < 10


LISTENER = """
import socket, time
listeners = [socket.create_server(("0.0.0.0", port)) for port in (5000, 5001, 5009)]
time.sleep(60)
"""
CALLER = """
import socket
for port in (5000, 5001, 5009):
    try:
        socket.create_connection(("10.77.0.1", port), 1.0).close()
    except OSError:
        continue
    print(port)
"""


def test_a_firewall_admits_what_it_was_told_last(lab):
    def reached():
        job = up.run([sys.executable, "-I", "-c", CALLER]).check()
        return [rank.output.split() for rank in job.ranks]

    with lab(hosts=2) as up:
        listener = up.start([sys.executable, "-c", LISTENER], 0)
        every_port = ["5000", "5001", "5009"]
        wait_until(lambda: reached() == [every_port, every_port])
        up.admit([Ports("udp", 5000, 5000), Ports("tcp", 5000, 5001)])
        assert reached() == [every_port, ["5000", "5001"]]  # a host reaches itself
        up.admit([Ports("tcp", 5009, 5009)])
        assert reached() == [every_port, ["5009"]]
        listener.kill()


def test_rates_limit_what_passes(lab):
    """A lower bound on the time, from the bytes that had to pass; no claim on speed."""
    with lab(hosts=3, rate_mbit=50, of_link={(0, 1): Limits(rate_mbit=10)}) as up:
        measured = measure.streams(up, [(0, 1), (0, 2)], 0.5)
    assert 1 < measured.mbit[0, 1] < 12
    assert 1 < measured.mbit[0, 2] < 60
    assert measured.congestion == "reno"


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("reno", "bbr", "congestion control of host 0: is 'bbr', not 'reno'"),
        ("rate 50000000bit", "rate 60000000bit", "rate out of host 0"),
        ("gso_max_segs 1", "gso_max_segs 9", "cutting frames"),
        ("probability 0.25", "probability 0.5", "losses into host 0"),
        ("queue-num 0", "queue-num 1", "delays: rules are"),
    ],
)
def test_a_setting_that_did_not_take_effect_is_found(lab, monkeypatch, old, new, named):
    def tampered(network, choice):
        built = plan(network, choice)
        steps = tuple(replace(step, stdin=step.stdin.replace(old, new)) for step in built.steps)
        assert steps != built.steps
        return replace(built, steps=steps)

    monkeypatch.setattr(lab_module, "plan", tampered)
    asked = Limits(loss=0.25, delay_s=0.001)
    refused = pytest.raises(LabError, match=rf"did not take effect(.|\n)*{named}")
    with refused, lab(hosts=2, rate_mbit=50, everywhere=asked):
        pass


def test_a_delay_that_is_too_short_is_found_by_measuring(lab, monkeypatch):
    monkeypatch.setattr(lab_module, "EARLY", 3.0)  # as if three times as much had been asked for
    refused = pytest.raises(LabError, match="delay from 0 to 1")
    with refused, lab(hosts=2, everywhere=Limits(delay_s=0.02)):
        pass


def test_a_delaying_process_that_dies_is_noticed(lab):
    with lab(hosts=2, everywhere=Limits(delay_s=0.001)) as up:
        up._delayer.process.kill()
        with pytest.raises(LabError, match=r"delay.py .* ended early"):
            up.run(["sleep", "30"])


def test_a_process_can_be_stopped_and_killed(lab):
    with lab(hosts=1) as up:
        sleeper = up.start(["sleep", "60"], 0)
        sleeper.signal(signal.SIGSTOP)
        with pytest.raises(TimeoutError):
            sleeper.wait(0.2)
        sleeper.kill()
        assert sleeper.wait(5.0) == -9
        with pytest.raises(LabError, match="No such file"):
            up.start(["no-such-command"], 0).wait(5.0)
    with pytest.raises(LabError, match="down"):
        up.start(["true"], 0)


def wait_until(reached):
    """Poll; a plain assertion on how the system ends up, not on how fast."""
    deadline = time.monotonic() + DEADLINE_S
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.05)


OWNER = """
import sys, time
from bench.lab import Lab, Network
with Lab(Network(hosts=2)) as up:
    up.start(["setsid", "sh", "-c", "sleep 600 & sleep 600; : " + sys.argv[1]], 1)
    up.start(["sh", "-c", "trap '' TERM INT HUP; sleep 600; : " + sys.argv[1]], 0)
    print("up", flush=True)
    if sys.argv[2] == "raise":
        raise RuntimeError("something else")
    time.sleep(600)
"""


def holders(marker):
    """Processes of the lab that was built under ``marker``: by command line, or by namespace."""
    processes = []  # (pid, whether the marker is in its command, network namespace)
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (folder / "cmdline").read_bytes().decode(errors="replace")
            namespace = os.readlink(folder / "ns/net")
            processes.append((folder.name, marker in command, namespace))

    namespaces = {namespace for _, is_marked, namespace in processes if is_marked}
    namespaces.discard(os.readlink("/proc/self/ns/net"))
    return [pid for pid, is_marked, namespace in processes if is_marked or namespace in namespaces]


@pytest.mark.parametrize("end", ["raise", signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_however_the_owner_ends(lab, end):
    with lab(hosts=1):
        pass  # skips where no lab is possible
    marker = uuid.uuid4().hex
    command = [sys.executable, "-c", OWNER, marker, str(end)]
    pipe = subprocess.PIPE
    owner = subprocess.Popen(command, stdout=pipe, stderr=subprocess.DEVNULL, cwd=ROOT)
    try:
        assert owner.stdout.readline() == b"up\n"
        if end != "raise":
            wait_until(lambda: len(holders(marker)) > 4)
            owner.send_signal(end)
        owner.wait(DEADLINE_S)
    finally:
        owner.kill()
        owner.communicate()
    wait_until(lambda: not holders(marker))


AGAIN = (
    'import subprocess, sys; subprocess.run([sys.executable, "-c", "import bench.lab"], check=1)'
)


def test_an_ordinary_user_can_have_a_lab(lab, tmp_path):
    with lab(hosts=2, everywhere=Limits(loss=0.1, delay_s=0.002)):
        pass
    if os.geteuid() != 0:
        pytest.skip("the other tests run as an ordinary user already")
    if shutil.which("setpriv") is None:
        pytest.skip("no setpriv command to become an ordinary user with")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    env = {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "HOME": str(tmp_path)}

    def as_nobody(command):
        become = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        return execute(*become, *command, cwd=ROOT, **env)

    def is_usable(python):
        return python is not None and as_nobody([python, "-c", AGAIN]).returncode == 0

    pythons = [sys.executable, shutil.which(version, path="/usr/local/bin:/usr/bin")]
    python = next(filter(is_usable, pythons), None)
    if python is None:
        pytest.skip(f"no {version} with this project's libraries that an ordinary user may run")

    options = "up --hosts 2 --loss 10% --delay 2ms --json -- id -u"
    done = as_nobody([python, "-m", "bench.lab", *options.split()])
    facts = json.loads(done.stdout)
    assert facts["ok"]
    assert facts["lab"]["congestion"] == "reno"
    assert [rank["output"] for rank in facts["ranks"]] == ["0\n", "0\n"]


def test_congestion_control_that_is_not_permitted_is_refused(lab):
    allowed = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control").read_text().split()
    refused = pytest.raises(LabError, match="no-such-control")
    with refused, lab(hosts=1, congestion="no-such-control"):
        pass
    with lab(hosts=1, congestion=allowed[0]) as up:
        assert up.describe()["congestion"] == allowed[0]
