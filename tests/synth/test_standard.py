"""Ring, recursive halving-doubling, direct: proved, and as good as the literature says."""

import pytest

import synth
from synth import standard
from verify import Incast, Transfer, Verdict, check
from verify.errors import ArgumentError

RANKS = range(2, 18)


@pytest.mark.parametrize("n", RANKS)
@pytest.mark.parametrize("make", [synth.ring, synth.rhd, synth.direct])
def test_proved(make, n: int) -> None:
    schedule = make(n)
    report = check(schedule)
    assert report.verdict is Verdict.PROVED
    assert report.results["same_bits"].verdict is Verdict.PROVED
    assert report.completion_rounds == schedule.rounds


@pytest.mark.parametrize("n", RANKS)
def test_rounds_and_ports(n: int) -> None:
    ring, rhd, direct = synth.ring(n), synth.rhd(n), synth.direct(n)
    assert (ring.rounds, ring.chunks, ring.ports) == (2 * (n - 1), n, "duplex")
    assert (direct.rounds, direct.chunks, direct.ports) == (2, n, Incast(n - 1))
    p = rhd.chunks
    assert p <= n < 2 * p
    folding = n > p
    assert rhd.rounds == 2 * (p.bit_length() - 1) + 2 * folding
    assert rhd.ports == Incast(p if folding else max(1, p // 2))


def test_halving_doubling_of_four_by_hand() -> None:
    halving, doubling = synth.rhd(4).phases
    assert set(halving.rounds[0]) == {
        Transfer(0, 2, 2, "reduce"),
        Transfer(0, 2, 3, "reduce"),
        Transfer(1, 3, 2, "reduce"),
        Transfer(1, 3, 3, "reduce"),
        Transfer(2, 0, 0, "reduce"),
        Transfer(2, 0, 1, "reduce"),
        Transfer(3, 1, 0, "reduce"),
        Transfer(3, 1, 1, "reduce"),
    }
    assert set(doubling.rounds[0]) == {
        Transfer(0, 1, 0, "copy"),
        Transfer(1, 0, 1, "copy"),
        Transfer(2, 3, 2, "copy"),
        Transfer(3, 2, 3, "copy"),
    }


@pytest.mark.parametrize("n", [-1, 0, 1, standard.MOST_RANKS + 1])
@pytest.mark.parametrize("make", [synth.ring, synth.rhd, synth.direct])
def test_refuses_other_numbers_of_ranks(make, n: int) -> None:
    with pytest.raises(ArgumentError):
        make(n)


def test_public_names() -> None:
    assert synth.__all__ == sorted(synth.__all__)
    assert all(callable(getattr(synth, name)) for name in synth.__all__)
