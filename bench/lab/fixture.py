"""A pytest fixture that builds labs; import it in a ``conftest.py``.

    from bench.lab.fixture import lab  # noqa: F401

    def test_two_hosts(lab):
        with lab(hosts=2, rate_mbit=100) as network:
            network.run(["python", "job.py"]).check()

Where a lab is not possible the test is skipped, and the skip says what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from bench.lab.errors import LabUnavailable
from bench.lab.lab import Lab
from bench.lab.network import Network


@pytest.fixture
def lab() -> Callable[..., Any]:
    """Call it with the arguments of :class:`Network` for a lab that is up in a ``with`` block."""

    @contextmanager
    def build(**settings: Any) -> Iterator[Lab]:
        try:
            with Lab(Network(**settings)) as built:
                yield built
        except LabUnavailable as refused:
            pytest.skip(str(refused))

    return build
