"""UBT over a simulated network: bounded, right where it says so, whatever is lost or repeated."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from latecomer.runtime.optireduce.options import HEADER_BYTES
from latecomer.runtime.optireduce.udp.events import Control, operation_id
from latecomer.runtime.optireduce.udp.reassembly import End
from tests.runtime.optireduce.simulation import Host, options, simulate

SLACK_S = 1e-3
# operations one after the other, across the wrap of their steps
WRAPPING = [operation_id(2**32 - 1, 2**32 - 1), operation_id(0, 0), operation_id(0, 1)]


def _run(
    size,
    sizes,
    *,
    enter=lambda rank: 0.0,
    present=None,
    operations=(1,),
    own_options=None,
    **network,
):
    """Hosts that have all entered these operations, each 10 ms after the one before."""
    own_options = own_options or options()
    hosts = {rank: Host(rank, size, own_options) for rank in (present or range(size))}
    entries = []
    for rank in hosts:
        for number, operation in enumerate(operations):
            entries.append((enter(rank) + 0.01 * number, rank, number, operation, sizes))
    simulate(hosts, entries, **network)
    return hosts


def _stages(hosts):
    """All stages of all operations."""
    stages = []
    for host in hosts.values():
        for bucket in host.buckets.values():
            stages += bucket.stages
    return stages


def _lost(hosts):
    return sum(stage.lost for stage in _stages(hosts))


def test_without_loss_everything_arrives_also_what_comes_before_it_is_expected():
    """Rank 0 enters late, and finds the others' first grants there at once."""
    sizes = [1000, 0, 80, 161]
    hosts = _run(4, sizes, operations=(7, 8, 9), enter=lambda rank: 0.1 * (rank == 0))
    for operation, bucket in hosts[0].buckets.items():
        assert bucket.stages[0].ended_s == hosts[0].entered_s[operation]
    assert _lost(hosts) == 0
    assert all(len(host.over_s) == 3 for host in hosts.values())


@pytest.mark.parametrize("slow_s", [0.003, 0.02, 0.15])
def test_a_sender_that_waits_for_credit_is_no_loss(slow_s):
    """Shards of a little more than the first grant; the rest waits for the receiver's credit.

    Every datagram takes ``slow_s``, longer than the grace period: what waits for the answer must
    not count as lost, though what came before it is all that is underway.
    """
    hosts = _run(
        3,
        sizes=[24 * (128 - HEADER_BYTES)] * 3,
        operations=(1, 2),
        own_options=options(grant_bytes=22 * 128, bound_s=10.0, grace_floor_s=0.001),
        delay=lambda dice: slow_s,
    )
    assert _lost(hosts) == 0
    assert {stage.end for stage in _stages(hosts)} == {End.COMPLETE}


@settings(max_examples=40, deadline=None)
@given(
    st.integers(2, 5),
    st.lists(st.integers(0, 700), min_size=5, max_size=5),
    st.sampled_from([0.0, 0.01, 0.1, 0.5, 1.0]),
    st.sampled_from([0.0, 0.3]),
    st.sampled_from([1e-4, 0.02, 0.3]),
    st.sampled_from([0.0, 0.1, 2.0]),
    st.integers(0, 2**32),
)
def test_every_operation_ends_within_its_bound(size, sizes, loss, twice, late, behind, seed):
    """Rank 0 may enter late; SimulatedBucket checks what is right and what untouched."""
    hosts = _run(
        size,
        sizes[:size],
        enter=lambda rank: behind if rank == 0 else 0.0,
        operations=WRAPPING,
        loss=loss,
        twice=twice,
        delay=lambda dice: dice.random() * late,
        seed=seed,
    )

    bound_s = options().bound_s
    absence_s = options().absence_s
    for host in hosts.values():
        for operation, entered_s in host.entered_s.items():
            first_stage = host.buckets[operation].stages[0]
            assert first_stage.ended_s <= entered_s + absence_s + bound_s + SLACK_S
            assert host.over_s[operation] <= entered_s + absence_s + 2 * bound_s + SLACK_S

    if loss == 0 and late < 0.01 and behind < 0.4:
        assert _lost(hosts) == 0


@pytest.mark.parametrize("from_s", [0.002, 0.004])
def test_a_receiver_that_was_paused_loses_nothing_that_was_sent_to_it(from_s):
    """In either stage, for longer than both bounds: what was sent lies in its socket meanwhile.

    Deadlines are longer by the time in which the receiver wanted to run and could not.
    """
    until_s = from_s + 3.5 * options().bound_s
    hosts = _run(4, [40 * 80] * 4, pauses=[(from_s, until_s, 1)], delay=lambda dice: 0.002)
    assert hosts[1].over_s[1] >= until_s
    assert _lost({1: hosts[1]}) == 0


def test_a_dead_rank_costs_its_own_part_only():
    hosts = _run(4, [500] * 4, present=[0, 1, 3])
    for host in hosts.values():
        for stage in host.buckets[1].stages:
            incomplete = {peer for peer, sender in stage.senders.items() if not sender.complete}
            assert incomplete == {2}
            assert stage.absent == {2}


def test_a_loss_of_marks_does_not_cost_the_bound():
    """Early end: 5 % loss, 40 operations; without it nearly all would take t_B."""
    hosts = _run(3, [2000] * 3, operations=range(1, 41), loss=0.05, seed=3)
    ends = [stage.end for stage in _stages(hosts)]
    assert ends.count(End.TIMEOUT) < len(ends) / 10
    assert _lost(hosts) > 0


@settings(max_examples=50, deadline=None)
@given(parts=st.lists(st.integers(0, 5), max_size=30))
def test_what_a_kernel_takes_in_part_goes_out_once_and_says_how_much_it_is_offered_next(parts):
    """It takes whole bursts, as a call with many messages does."""
    host = Host(0, 2, options())
    host.enter(0, operation_id(0, 0), [128_000, 128_000], 0.0)
    burst = host.options.burst
    grant = host.options.grant_bytes // host.options.datagram_bytes
    sent = []
    limit = burst
    for number, part in enumerate([*parts, *[1] * 10]):
        now_s = 5e-5 * number  # as its pace allows, and before the silence counts as a loss
        message = host.protocol.message_to_send(now_s)
        if message is None:
            break
        if isinstance(message, Control):
            host.protocol.sent(message, 1, now_s)
            continue
        taken = min(part * burst, message.datagrams)
        assert message.datagrams <= limit
        sent += range(message.first, message.first + taken)
        host.protocol.sent(message, taken, now_s)
        limit = max(message.datagrams, 2 * taken, burst)
    assert sent == list(range(grant))
