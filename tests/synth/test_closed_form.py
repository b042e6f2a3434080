"""The closed form: a broadcast within the ports, and a proved schedule at the bound for any n."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.straggler.broadcast import Broadcast
from synth.straggler.closed_form import ClosedForm
from synth.straggler.instance import Instance
from verify import Phase, Schedule, Verdict, check

ranks = st.integers(2, 300)


def schedule_of(instance: Instance) -> Schedule:
    form = ClosedForm(instance)
    phases = [
        Phase("reduce_scatter", (instance.helpers,), form.waiting()),
        Phase("completion", (), form.completion()),
    ]
    return Schedule(
        ranks=instance.ranks,
        chunks=instance.chunks,
        late=(instance.helpers,),
        ports=instance.ports,
        phases=tuple(phase for phase in phases if phase.rounds),
        meta={},
    )


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


@pytest.mark.parametrize("m", [1, 2, 3])
@pytest.mark.parametrize("n", [*range(2, 36), 63, 64, 65, 97])
def test_at_the_bound_for_every_n(n: int, m: int) -> None:
    report = check(schedule_of(Instance(n, m)))
    assert report.verdict is Verdict.PROVED
    assert report.optimal is True


@given(n=ranks)
@settings(max_examples=12, deadline=None)
def test_at_the_bound_for_large_n(n: int) -> None:
    report = check(schedule_of(Instance(n)))
    assert report.verdict is Verdict.PROVED
    assert report.optimal is True


@pytest.mark.parametrize("m", [1, 2, 3])
@pytest.mark.parametrize("n", [2, 4, 8, 16, 32])
def test_powers_of_two_fit_matching_ports(n: int, m: int) -> None:
    report = check(schedule_of(Instance(n, m, "matching")))
    assert report.verdict is Verdict.PROVED
    assert report.optimal is True


@pytest.mark.parametrize("n", [5, 6, 7, 12])
def test_pairs_do_not_fit_matching_ports(n: int) -> None:
    assert check(schedule_of(Instance(n, 1, "matching"))).verdict is Verdict.REFUTED


@pytest.mark.parametrize("m", [1, 2, 4])
@pytest.mark.parametrize("n", [*range(3, 40), 64, 100])
def test_the_wait_is_hardly_longer_than_a_reduce_scatter(n: int, m: int) -> None:
    instance = Instance(n, m)
    waiting = ClosedForm(instance).waiting()
    assert len(waiting) <= instance.bound + instance.fewest_hops - 1
