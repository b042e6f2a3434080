"""The closed form, at the bound for any n; its broadcast and its ReduceScatter."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.straggler.broadcast import Broadcast
from synth.straggler.closed_form import ClosedForm
from synth.straggler.generate import search
from synth.straggler.instance import Instance
from synth.straggler.reduce_scatter import rotation, tournament
from verify import Verdict

ranks = st.integers(2, 300)


@given(n=ranks, k=st.integers(1, 80))
@settings(max_examples=150, deadline=None)
def test_a_broadcast_of_any_number_of_chunks(n: int, k: int) -> None:
    broadcast = Broadcast(n, k)
    root = n - 1
    assert len(broadcast.rounds) == k + (n - 1).bit_length() - 1
    has = [set() for _ in range(root)] + [set(range(k))]
    for t, moves in enumerate(broadcast.rounds):
        senders, receivers = [src for src, _, _ in moves], [dst for _, dst, _ in moves]
        assert len(set(senders)) == len(senders)
        assert len(set(receivers)) == len(receivers)
        assert root not in receivers
        if t < k:
            assert [chunk for src, _, chunk in moves if src == root] == [t]
            assert broadcast.beside[t] not in senders
        assert all(chunk in has[src] and chunk not in has[dst] for src, dst, chunk in moves)
        for _, dst, chunk in moves:
            has[dst].add(chunk)
    assert all(len(chunks) == k for chunks in has)


def assert_at_bound(n: int, m: int, ports="duplex") -> None:
    generated = search(n, m=m, ports=ports, owners="free")
    assert generated.method.startswith("closed form")
    assert generated.schedule.meta["owners"] == "free"
    assert (generated.schedule.chunks, generated.schedule.ports) == ((n - 1) * m, ports)
    assert (generated.report.verdict, generated.report.optimal) == (Verdict.PROVED, True)


@pytest.mark.parametrize("m", [1, 2, 3])
@pytest.mark.parametrize("n", [*range(2, 36), 63, 64, 65, 97])
def test_at_the_bound_for_every_n(n: int, m: int) -> None:
    assert_at_bound(n, m)
    if n.bit_count() == 1:
        assert_at_bound(n, m, "matching")


@given(n=ranks)
@settings(max_examples=12, deadline=None)
def test_at_the_bound_for_large_n(n: int) -> None:
    assert_at_bound(n, 1)


@pytest.mark.parametrize("m", [1, 2, 4])
@pytest.mark.parametrize("n", [*range(3, 40), 64, 100])
def test_the_wait_is_hardly_longer_than_a_reduce_scatter(n: int, m: int) -> None:
    instance = Instance(n, m)
    waiting = ClosedForm(instance).waiting()
    assert len(waiting) <= instance.bound + instance.fewest_hops - 1


@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize("helpers", range(1, 12))
@pytest.mark.parametrize("make", [rotation, tournament])
def test_the_helpers_reduce_scatter(make, helpers: int, m: int) -> None:
    """Every raw chunk goes once to its owner, in as few rounds as the ports allow."""
    rounds = make(helpers, m)
    moves = [t for transfers in rounds for t in transfers]
    assert sorted((t.src, t.dst, t.chunk, t.op) for t in moves) == [
        (src, chunk % helpers, chunk, "reduce")
        for src in range(helpers)
        for chunk in sorted(range(helpers * m), key=lambda chunk: (chunk % helpers, chunk))
        if chunk % helpers != src
    ]
    idle = make is tournament and helpers % 2  # one of an odd number sits out
    assert len(rounds) == m * (helpers if idle and helpers > 1 else helpers - 1)
    for transfers in rounds:
        assert len({t.src for t in transfers}) == len({t.dst for t in transfers}) == len(transfers)
        assert len(transfers) == helpers - bool(idle)
        if make is tournament:
            pairs = {frozenset((t.src, t.dst)) for t in transfers}
            assert 2 * len(pairs) == len(transfers) == len(set().union(*pairs))
