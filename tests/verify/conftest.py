"""The commands, run in the process of the test."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from latecomer.verify import cli

Command = Callable[..., tuple[int, str, str]]


def in_process(name: str, main: Callable[[], object]) -> Any:
    """A fixture for ``NAME ARGS`` in the folder of the test: (exit code, stdout, stderr)."""

    @pytest.fixture(name=name)
    def command(monkeypatch, capfd, tmp_path: Path) -> Command:
        monkeypatch.chdir(tmp_path)

        def run(*arguments: str) -> tuple[int, str, str]:
            monkeypatch.setattr(sys, "argv", [name, *arguments])
            try:
                main()
            except SystemExit as ended:
                return int(ended.code or 0), *capfd.readouterr()
            return 0, *capfd.readouterr()

        return run

    return command


verify = in_process("verify", cli.main)
