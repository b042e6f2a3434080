"""What a new user types: other names of options, units as vendors have them, other files."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from latecomer.synth.compare import as_text, compare
from latecomer.synth.cost import Link
from latecomer.synth.standard import ring
from latecomer.synth.units import parse_bandwidth, parse_bytes
from latecomer.verify.errors import ArgumentError
from latecomer.verify.output import write
from latecomer.verify.version import version


@pytest.mark.parametrize("program", ["synth", "verify", "latecomer"])
def test_every_program_says_its_version(typed, program):
    assert typed(f"{program} --version") == (0, f"latecomer {version()}\n", "")
    assert re.fullmatch(r"\d+\.\d+\.\d+|unknown", version())


@pytest.mark.parametrize("number", ["--n 5", "-n 5", "--ranks 5"])
def test_the_number_of_ranks_has_the_names_that_people_try(typed, number):
    assert typed(f"synth generate {number} -q")[0] == 0
    assert json.loads(Path("schedule.json").read_text())["ranks"] == 5


def test_a_late_rank_is_a_straggler(typed):
    assert typed("synth straggler --n 5 --straggler 2 -q")[0] == 0
    assert json.loads(Path("schedule.json").read_text())["late"] == [2]


@pytest.mark.parametrize(
    ("text", "bytes_per_s"),
    [
        ("100Gbps", 12.5e9),
        ("400Gb/s", 50e9),
        ("25 Gbit/s", 3.125e9),
        ("1.6Tbps", 200e9),
        ("450GB/s", 450e9),
        ("450GBps", 450e9),
    ],
)
def test_bandwidths_are_read_as_vendors_write_them(text, bytes_per_s):
    assert parse_bandwidth("--bandwidth", text) == pytest.approx(bytes_per_s)


def test_a_negative_size_is_told_as_such_and_a_size_in_bits_is_none():
    with pytest.raises(ArgumentError, match="must not be negative"):
        parse_bytes("--bytes", "-1GiB")
    with pytest.raises(ArgumentError, match="must be a number and a unit"):
        parse_bytes("--bytes", "1Gb")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("synth generate", "error: --n is needed: the number of ranks. For example: --n 8;"),
        ("synth generate --nodes 2 --per-node 2", "error: --bytes is needed: the size of the buf"),
        ("synth program --n 8 --rank 0", "error: --chunks is needed: the number of chunks. Or"),
        ("synth generate --n 4 -o schedule.yaml", "is to hold JSON: it must end in .json or .json"),
        ("synth generate --n 4 --bytes -1GiB", "--bytes = '-1GiB': must not be negative"),
        ("synth generate --n 4 --m 2 --chunks 3", "--m = 2: has no use with --chunks"),
    ],
)
def test_what_is_missing_or_wrong_is_said_by_the_name_that_was_typed(typed, line, message):
    code, printed, error = typed(line)
    assert (code, printed) == (2, "")
    assert message in error
    assert "None" not in error
    assert not list(Path().iterdir())


def test_a_trace_given_to_verify_is_told_where_it_belongs(typed):
    Path("trace.json").write_text('{"traceEvents": [], "displayTimeUnit": "ms"}')
    code, _, error = typed("verify trace.json")
    assert code == 2
    assert "is a trace, and no schedule. Look at it with: latecomer watch" in error


@pytest.mark.parametrize("kind", ["allreduce", "pipeline"])
def test_a_file_of_a_later_format_is_told_as_such(typed, kind):
    Path("later.json").write_text(f'{{"format": "latecomer/2", "kind": "{kind}", "x": 1}}')
    code, _, error = typed("verify later.json")
    assert code == 2
    assert "is of format latecomer/2; this version of latecomer reads latecomer/1" in error
    Path("broken.json").write_text(f'{{"format": "latecomer/1", "kind": "{kind}", "x": 1}}')
    _, _, error = typed("verify broken.json")
    assert "latecomer/2" not in error


def test_help_has_its_options_in_groups(typed):
    _, printed, _ = typed("synth generate --help")
    for group in ("How it is searched", "Predicted times", "Files and output"):
        assert group in printed
    _, printed, _ = typed("verify --help")
    for group in ("Further proofs", "What to look at", "Programs of thread blocks"):
        assert group in printed


@pytest.mark.parametrize("width", [80, 120, 1000])
def test_a_comparison_fits_the_terminal(width):
    comparison = compare(16, [2**10, 2**34], Link(3e-6, 450e9))
    text = as_text(comparison, width)
    assert max(map(len, text.splitlines())) <= width
    rows = [line for line in text.splitlines() if not line.startswith("#")]
    assert len(rows) == 2
    assert all(line.count("*") == 1 for line in rows)


def test_the_two_tables_of_a_comparison_have_the_same_times():
    comparison = compare(8, [2**20], Link(3e-6, 450e9))
    short = as_text(comparison, 80).splitlines()[-1].replace("*", " ").split()
    (row,) = comparison.rows
    milliseconds = [f"{time.seconds * 1e3:.4g}" for time in row.times.values()]
    assert short == ["1", "MiB", *milliseconds, str(row.chunks)]


def test_a_file_that_was_written_is_proved(typed):
    write(ring(3), "ring.json")
    assert typed("verify ring.json")[0] == 0
