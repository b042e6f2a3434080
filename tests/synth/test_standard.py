"""Ring, recursive halving-doubling, direct: proved, and as good as the literature says."""

from fractions import Fraction

import pytest

import synth
from synth.cost import Cost, completion_cost
from verify import Incast, Transfer, Verdict, check


@pytest.mark.parametrize("n", range(2, 18))
def test_as_the_literature_says(n: int) -> None:
    ring, rhd, direct = synth.ring(n), synth.rhd(n), synth.direct(n)
    for schedule in (ring, rhd, direct):
        report = check(schedule)
        assert report.verdict is Verdict.PROVED
        assert report.results["same_bits"].verdict is Verdict.PROVED
        assert report.completion_rounds == schedule.rounds
    one_at_a_time = Cost(2 * (n - 1), Fraction(2 * (n - 1), n))
    assert (ring.rounds, ring.chunks, ring.ports) == (2 * (n - 1), n, "duplex")
    assert completion_cost(ring) == one_at_a_time
    # n - 1 messages leave every rank's one port in each of the two rounds of direct
    assert (direct.rounds, direct.chunks, direct.ports) == (2, n, Incast(n - 1))
    assert completion_cost(direct) == one_at_a_time
    assert completion_cost(direct, "round") == Cost(2, one_at_a_time.share)
    p = rhd.chunks
    assert p <= n < 2 * p
    folding = n > p  # moves the whole buffer twice more
    assert rhd.rounds == 2 * (p.bit_length() - 1) + 2 * folding
    assert rhd.ports == Incast(p if folding else max(1, p // 2))
    assert completion_cost(rhd) == Cost(rhd.rounds, Fraction(2 * (p - 1), p) + 2 * folding)


def test_halving_doubling_of_four_by_hand() -> None:
    halving, doubling = synth.rhd(4).phases
    first = {(0, 2): (2, 3), (1, 3): (2, 3), (2, 0): (0, 1), (3, 1): (0, 1)}
    assert set(halving.rounds[0]) == {
        Transfer(src, dst, chunk, "reduce") for (src, dst), both in first.items() for chunk in both
    }
    assert set(doubling.rounds[0]) == {Transfer(src, src ^ 1, src, "copy") for src in range(4)}


def test_public_names() -> None:
    assert synth.__all__ == sorted(synth.__all__)
    assert all(callable(getattr(synth, name)) for name in synth.__all__)
