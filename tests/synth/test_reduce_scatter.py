"""The helpers' ReduceScatter: everybody's raw chunk at its owner, within the ports."""

import pytest

from synth.straggler.reduce_scatter import rotation, tournament

HELPERS = range(1, 12)


@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize("helpers", HELPERS)
@pytest.mark.parametrize("make", [rotation, tournament])
def test_every_raw_chunk_goes_once_to_its_owner(make, helpers: int, m: int) -> None:
    moves = [t for transfers in make(helpers, m) for t in transfers]
    assert all(t.op == "reduce" for t in moves)
    assert sorted((t.src, t.chunk) for t in moves) == [
        (src, chunk)
        for src in range(helpers)
        for chunk in range(helpers * m)
        if chunk % helpers != src
    ]
    assert all(t.dst == t.chunk % helpers for t in moves)


@pytest.mark.parametrize("helpers", HELPERS)
def test_rounds(helpers: int) -> None:
    assert len(rotation(helpers, 2)) == 2 * (helpers - 1)
    odd = helpers % 2 and helpers > 1
    assert len(tournament(helpers, 2)) == 2 * (helpers if odd else helpers - 1)


@pytest.mark.parametrize("helpers", HELPERS)
def test_ports(helpers: int) -> None:
    for transfers in rotation(helpers, 1):
        assert len({t.src for t in transfers}) == len({t.dst for t in transfers}) == helpers
    for transfers in tournament(helpers, 1):
        pairs = {frozenset((t.src, t.dst)) for t in transfers}
        assert 2 * len(pairs) == len(transfers) == len(set().union(*pairs))
        assert len(transfers) == helpers - helpers % 2
