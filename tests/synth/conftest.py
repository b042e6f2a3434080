"""The commands, run in an empty folder: each by itself, or as a line that names its program."""

from __future__ import annotations

import shlex
from collections.abc import Callable

import pytest

from runtime.__main__ import app as runtime_app
from synth.cli import main as synth_main
from tests.verify.conftest import Command, in_process
from verify.cli import main as verify_main
from verify.running import run

synth = in_process("synth", synth_main)
verify = in_process("verify", verify_main)
runtime = in_process("runtime", lambda: run(runtime_app))


@pytest.fixture
def typed(
    synth: Command, verify: Command, runtime: Command
) -> Callable[[str], tuple[int, str, str]]:
    """(exit code, stdout, stderr) of a line as one types it; ``runtime`` is python -m runtime."""
    programs = {"synth": synth, "verify": verify, "runtime": runtime}

    def command_line(line: str) -> tuple[int, str, str]:
        program, *arguments = shlex.split(line)
        return programs[program](*arguments)

    return command_line
