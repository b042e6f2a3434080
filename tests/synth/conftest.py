"""The commands, run in an empty folder: each by itself, or as a line that names its program."""

from __future__ import annotations

import shlex
from collections.abc import Callable

import pytest

from latecomer.command import main as latecomer_main
from latecomer.synth.cli import main as synth_main
from latecomer.verify.cli import main as verify_main
from tests.verify.conftest import Command, in_process

synth = in_process("synth", synth_main)
verify = in_process("verify", verify_main)
latecomer = in_process("latecomer", latecomer_main)


@pytest.fixture
def typed(
    synth: Command, verify: Command, latecomer: Command
) -> Callable[[str], tuple[int, str, str]]:
    """(exit code, stdout, stderr) of a line as one types it."""
    programs = {"synth": synth, "verify": verify, "latecomer": latecomer}

    def command_line(line: str) -> tuple[int, str, str]:
        program, *arguments = shlex.split(line)
        return programs[program](*arguments)

    return command_line
