"""The command that looks at a running job, or at one that is over, or at traces."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from latecomer.command import app
from latecomer.runtime.telemetry.export import trace
from latecomer.runtime.telemetry.page import command
from latecomer.verify.report.trace_events import document
from latecomer.verify.running import run
from tests.runtime.spawning import python
from tests.runtime.telemetry.ranks import watch_two_ranks
from tests.runtime.telemetry_page.test_page import _ranks

ROOT = Path(__file__).parents[3]


@pytest.fixture
def watch(monkeypatch, capsys):
    """Runs the command: (exit code, what it prints)."""

    def run_command(*arguments):
        monkeypatch.setattr(sys, "argv", ["latecomer", "watch", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            run(app)
        said = capsys.readouterr()
        return ended.value.code or 0, said.out + said.err

    monkeypatch.setenv("COLUMNS", "80")
    return run_command


@pytest.fixture
def directory(tmp_path, monkeypatch):
    monkeypatch.setenv("LATECOMER_JOB", "night run")
    watch_two_ranks(tmp_path / "watched")
    return tmp_path / "watched"


def test_the_table_has_who_waited_for_whom_and_what_ran(watch, directory):
    code, said = watch("--once", directory)
    assert code == 0
    assert said.startswith("night run, 2 ranks on ")
    assert "watched since 20" in said
    rows = [line.split() for line in said.splitlines() if re.match(r" *[01]  ", line)]
    first, second = rows
    assert first[:3] == ["1", "failed", "4"]
    assert "100%" in first
    assert second[-3:] == ["s,", "1:", "100%"]
    assert "4 operations ran: native" in said
    plain = " ".join(said.split())
    assert "of the last: nothing was saved: all ran natively, mostly because: made up" in plain
    assert "rank 1 left the block: ValueError: enough" in said
    assert max(map(len, said.splitlines())) <= 80


def test_json_is_one_object(watch, directory):
    (directory / "rank1-000000.jsonl").unlink()
    code, said = watch("--json", directory)
    assert code == 0
    found = json.loads(said, parse_constant=pytest.fail)
    assert (found["job"], found["world_size"], found["missing"]) == ("night run", 2, [1])
    (rank,) = found["ranks"]
    assert (rank["rank"], rank["entered"], rank["done"], rank["is_over"]) == (0, 4, 4, True)
    assert found["ways"] == {"native": 4}
    assert (found["gain"]["compared"], found["gain"]["usual_reason"]) == (0, "made up")


def test_figures_are_about_the_last_operations(watch, directory):
    _, said = watch("--json", "--last", "3", directory)
    assert json.loads(said)["last_operations"] == 3
    assert json.loads(said)["operations"] == 4


def test_a_page_is_written_of_a_directory(watch, directory, tmp_path):
    code, said = watch("--html", tmp_path / "run.html", directory)
    assert code == 0
    assert "run.html: 4 operations of 2 ranks: rank 1 wasted most, 8.00 s" in said
    page = (tmp_path / "run.html").read_text()
    assert "job night run, 2 ranks on" in page
    assert '"reload":null' in page


def test_traces_are_shown_without_a_page_too(watch, tmp_path):
    (tmp_path / "trace.json").write_text(document(trace(_ranks())))
    code, said = watch(tmp_path / "trace.json")
    assert code == 0
    assert "rank       wait   last" in said
    _, said = watch("--json", tmp_path / "trace.json")
    assert json.loads(said)["lines"][0]["rank"] == 2


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--follow"], "--follow = '{directory}': goes with --html"),
        (["--follow", "--once", "--html", "run.html"], "goes with --html"),
        (["--json", "--html", "run.html"], "--json = 'run.html': goes without --html"),
        (["--operations", "0-1"], "--operations = '0-1': goes with traces. Use --last"),
        (["{directory}"], "must be one directory"),
        (["--once", "--prometheus", "9465"], "goes with a job that is followed"),
        (["--prometheus", "everywhere"], "--prometheus = 'everywhere': must be [address:]port"),
    ],
)
def test_what_does_not_go_together_is_refused(watch, directory, arguments, problem):
    given = [argument.format(directory=directory) for argument in arguments]
    code, said = watch(*given, directory)
    assert code == 2
    assert problem.format(directory=directory) in said


def test_what_is_not_there_is_refused(watch, tmp_path):
    code, said = watch("--once", tmp_path)
    assert code == 2
    assert "has no files of a watch" in said
    code, said = watch(tmp_path / "nowhere")
    assert code == 2
    assert "No such file or directory" in said
    code, said = watch("--follow", "--html", tmp_path / "run.html", tmp_path / "nowhere")
    assert code == 2


def test_the_table_follows_a_job_that_begins_until_control_c(watch, tmp_path, monkeypatch):
    """Nothing at first, then the job."""
    looks = []

    def sleep(seconds):
        looks.append(seconds)
        if len(looks) == 1:
            watch_two_ranks(tmp_path)
        if len(looks) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(command.host, "sleep", sleep)
    code, said = watch("--every", "7", tmp_path)
    assert code == 0
    assert looks == [7.0] * 3
    assert "4 operations ran: native" in said


def test_who_waited_for_whom_is_served_while_it_follows(watch, directory, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    found = {}

    def sleep(seconds):
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60.0) as answer:
            text = answer.read().decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found[sample.name, *sample.labels.values()] = sample.value
        raise KeyboardInterrupt

    monkeypatch.setattr(command.host, "sleep", sleep)
    assert watch("--prometheus", port, directory)[0] == 0
    assert found["latecomer_waited_seconds_total", "1", "0"] == pytest.approx(8.0)
    assert found["latecomer_wasted_seconds_total", "1"] == pytest.approx(8.0)
    assert found["latecomer_arrived_last_total", "1"] == 4
    assert found["latecomer_arrived_last_total", "0"] == 0
    assert found["latecomer_operations_total", "native"] == 4
    assert 4 in [value for key, value in found.items() if key[0] == "latecomer_rank_entered_total"]
    with socket.create_server(("127.0.0.1", port)):
        pass  # it is free again


def test_a_port_that_is_taken_is_refused_and_all_that_without_torch(directory):
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        arguments = ["-m", "latecomer", "watch", "--prometheus", f"127.0.0.1:{taken}", directory]
        result = python("-X", "importtime", *arguments, cwd=ROOT)
    assert result.returncode == 2
    assert "can't be served at (Address already in use). Choose another port" in result.stderr
    loaded = {line.rpartition("|")[2].strip() for line in result.stderr.splitlines()}
    assert "prometheus_client" in loaded
    assert "torch" not in loaded


def test_a_page_is_written_again_and_again_and_loads_itself(directory, tmp_path):
    page = tmp_path / "run.html"
    arguments = ["watch", "--html", page, "--follow", "--every", "0.1", directory]
    process = [sys.executable, "-u", "-m", "latecomer", *arguments]
    with subprocess.Popen(process, cwd=ROOT, stdout=subprocess.PIPE, text=True) as following:
        try:
            assert "until Ctrl-C" in following.stdout.readline()
            assert '"reload":0.1' in page.read_text()
            page.unlink()
            give_up_s = time.monotonic() + 120.0
            while not page.exists():
                assert time.monotonic() < give_up_s
                time.sleep(0.05)
            following.send_signal(signal.SIGINT)
            assert following.wait(120.0) == 0
        finally:
            following.kill()
