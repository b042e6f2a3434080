"""What holds for all tests: their order, and that none depends on how busy the machine is.

The longest ones come first, so that no worker ends with one of them alone.
"""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")
# a shell that starts the tests in the background has it ignored, and so would all they start
signal.signal(signal.SIGINT, signal.default_int_handler)
# loading what is compiled takes every process a second or two; whoever tests it asks for it
os.environ.setdefault("LATECOMER_COMPILED", "off")


COUNTED = "ptx "
"""Properties of tests whose names begin so are numbers, and are added up in the summary."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What the interpreter of the kernel's PTX has run."""
    totals: dict[str, int] = {}
    for report in terminalreporter.stats.get("passed", []):
        for name, value in report.user_properties:
            if name.startswith(COUNTED):
                totals[name] = totals.get(name, 0) + int(value)
    if totals:
        terminalreporter.section("the kernel's PTX, in our interpreter")
    for name, total in sorted(totals.items()):
        terminalreporter.line(f"{name.removeprefix(COUNTED)}: {total:,}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked ``slow_first`` come first; all others stay as they were."""
    items.sort(key=lambda item: item.get_closest_marker("slow_first") is None)
