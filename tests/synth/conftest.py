"""The command, run in an empty folder."""

from synth.cli import main
from tests.verify.conftest import in_process

synth = in_process("synth", main)
