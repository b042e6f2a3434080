"""The command, run in an empty folder."""

import sys
from collections.abc import Callable

import pytest

from synth.cli import main


@pytest.fixture
def synth(monkeypatch, capsys, tmp_path) -> Callable[..., tuple[int, str, str]]:
    """Run ``synth ARGS``; returns (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def run(*args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["synth", *args])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        return code, *capsys.readouterr()

    return run
