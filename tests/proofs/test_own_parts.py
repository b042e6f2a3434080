"""A rank's part of the closed form is what Coq has, for the numbers that the runtime chooses from.

``python -m tests.proofs.own_parts --extracted`` compares more of them, with more chunks.
"""

from pathlib import Path

import pytest

from tests.proofs import own_parts


@pytest.mark.parametrize("case", list(own_parts.drawn(40, seed=5, most_chunks=64)), ids=str)
def test_a_ranks_part_is_what_coq_has(kernel: Path, case: tuple[int, int, int]) -> None:
    assert own_parts.differs_from_extracted(case) == ""


@pytest.mark.parametrize("case", [(1024, 256, 0), (1000, 256, 999), (2, 256, 1)], ids=str)
def test_the_largest_are_what_coq_has(kernel: Path, case: tuple[int, int, int]) -> None:
    assert own_parts.differs_from_extracted(case) == ""


def test_another_part_is_noticed(kernel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of_another_rank = own_parts.own_part(9, 4, 3)
    monkeypatch.setattr(own_parts, "own_part", lambda n, rank, k: of_another_rank)
    assert own_parts.differs_from_extracted((9, 3, 4)) == ""
    assert "not what Coq has" in own_parts.differs_from_extracted((9, 3, 5))
