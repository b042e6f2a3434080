"""What `verify --loss 1` finds on transposes is what Transpose.v proves for all of them."""

import pytest

from latecomer.synth import direct, generate, rhd, ring
from latecomer.synth.transpose.generate import transpose
from latecomer.verify import Schedule
from latecomer.verify.loss.examine import examine

SIZES = [(n, incast) for n in (*range(2, 14), 24) for incast in (1, 2, 3, n - 1) if incast < n]


def _as_the_theorem_says(schedule: Schedule) -> bool:
    """One contribution of one chunk at all ranks, or one chunk at one rank, who keeps its own."""
    report = examine(schedule, 1, 60.0)
    assert report.each is not None
    everybody = tuple(range(schedule.ranks))
    for single in report.each:
        lost = single.lost
        if lost.op == "reduce":
            ranks = everybody
            contributions: tuple[int, ...] = (lost.src,)
        else:
            ranks = (lost.dst,)
            contributions = tuple(rank for rank in everybody if rank != lost.dst)

        missing = [(block.chunk, block.ranks, block.contributions) for block in single.missing]
        if missing != [(lost.chunk, ranks, contributions)] or single.twice:
            return False
        if single.differ is not (lost.op == "copy"):
            return False
    return True


@pytest.mark.parametrize(("n", "incast"), SIZES)
def test_for_each_n(n: int, incast: int) -> None:
    """What is examined is compared with the oracle's runs in ``test_examine``."""
    assert _as_the_theorem_says(transpose(n, incast=incast))
    if incast == n - 1:
        assert _as_the_theorem_says(direct(n))


def test_it_says_so_of_no_others() -> None:
    two_level = transpose(8, groups=2, exchange="transpose")
    for schedule in (ring(5), rhd(8), generate(5), two_level, transpose(8, groups=4)):
        assert not _as_the_theorem_says(schedule)
