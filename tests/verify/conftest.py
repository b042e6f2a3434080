"""The command ``verify``, run in the process of the test."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from verify import cli


@pytest.fixture
def verify(monkeypatch, capfd, tmp_path: Path) -> Callable[..., tuple[int, str, str]]:
    """``verify ARGS`` in the folder of the test: (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["verify", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert isinstance(ended.value.code, int)
        return ended.value.code, *capfd.readouterr()

    return run
