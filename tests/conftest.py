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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked ``slow_first`` come first; all others stay as they were."""
    items.sort(key=lambda item: item.get_closest_marker("slow_first") is None)
