"""The profile: repeats until they agree, and is refused where it was not measured."""

from __future__ import annotations

import logging
import time
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.runtime.policy import profile as profiles
from latecomer.runtime.policy.cost_model import (
    PROFILE,
    AlphaBeta,
    Phase,
    Profile,
    ScheduleCandidate,
)
from latecomer.verify.errors import ArgumentError
from tests.runtime.spawning import on_ranks

RANKS = 2
CPU = torch.device("cpu")
LINE = AlphaBeta(1e-5, 1e-9)
CANDIDATE = ScheduleCandidate("one", 1, Phase(1, 1.0), Phase(1, 1.0))


@given(st.lists(st.floats(1e-6, 1.0), max_size=8))
def test_the_least_three_agree_or_not(durations_s):
    in_order = sorted(durations_s)
    near_the_least = [duration for duration in in_order if duration <= 1.1 * in_order[0]]
    assert profiles.least_agree(durations_s) == (len(near_the_least) >= 3)


def _measured(run, native=lambda tensor: None):
    return profiles._least_s(native, run, torch.zeros(4))


def _take(monkeypatch, durations_s):
    """A run whose repeats take these times, by a clock that only it moves."""
    clock_s = [0.0]
    remaining_s = iter(durations_s)
    monkeypatch.setattr(profiles.host, "monotonic", lambda: clock_s[0])

    def run(tensor):
        clock_s[0] += next(remaining_s)

    return run, remaining_s


def test_a_quiet_machine_is_asked_four_times(monkeypatch):
    run, remaining_s = _take(monkeypatch, [0.5, 0.1, 0.1, 0.1, 7.0])  # the first one warms up
    assert _measured(run) == pytest.approx(0.1)
    assert list(remaining_s) == [7.0]


def test_a_slow_first_repeat_does_not_decide(monkeypatch):
    """The outliers come first: three agreeing ones are waited for."""
    monkeypatch.setattr(profiles, "MOST_S", 100.0)
    run, remaining_s = _take(monkeypatch, [9.0, 0.5, 0.3, 0.2, 0.1, 0.104, 0.9, 0.102])
    assert _measured(run) == pytest.approx(0.1)
    assert list(remaining_s) == []


def test_a_noisy_machine_is_given_up(monkeypatch):
    durations_s = [0.8**number for number in range(20)]  # never three within a tenth
    run, remaining_s = _take(monkeypatch, durations_s)
    assert _measured(run) == pytest.approx(0.8**3)  # after MOST_S, but three repeats at least
    assert list(remaining_s) == durations_s[4:]


@on_ranks(RANKS)
def test_ranks_repeat_equally_often_though_only_one_is_discontent(rank, size, store):
    group = StoreExchange(store, rank, size, 60.0)
    turns = [0]

    def native(tensor):
        turns[0] += 1
        texts = group.all_gather(f"turn {turns[0]}", str(tensor.item()))
        tensor.fill_(sum(map(float, texts.values())))

    noise_s = iter([0.0, 0.04, 0.02, 0.01] if rank else [0.0] * 4)
    runs = [0]

    def run(tensor):
        runs[0] += 1
        time.sleep(0.01 + next(noise_s, 0.0))

    _measured(run, native)
    counts = group.all_gather("runs", str(runs[0]))
    assert len(set(counts.values())) == 1
    assert runs[0] >= 4


def _shared(group, given_profile):
    def unused(tensor):
        raise AssertionError("a given profile is not measured")

    return profiles.shared_profile(
        group, given_profile, unused, unused, CANDIDATE, CPU, {}, ranks_per_machine=1
    )


@on_ranks(RANKS)
def test_only_a_profile_of_this_group_is_taken(rank, size, store):
    group = StoreExchange(store, rank, size, 60.0)
    fits = Profile(RANKS, LINE, LINE)
    assert _shared(group.under("fits"), fits if rank == 0 else None) == fits

    with pytest.raises(ArgumentError, match="was measured with 4 ranks, this group has 2"):
        _shared(group.under("ranks"), Profile(4, LINE, LINE))
    with pytest.raises(ArgumentError, match=r"2 host\(s\) with 1 ranks, this group is on 1 with 2"):
        _shared(group.under("hosts"), Profile(RANKS, LINE, LINE, hosts=(1, 1)))


@on_ranks(RANKS)
def test_a_profile_that_is_far_off_is_said_to_be(rank, size, store):
    group = StoreExchange(store, rank, size, 60.0)
    warnings = []
    handler = logging.Handler()
    handler.emit = lambda record: warnings.append(record.getMessage())
    logging.getLogger("latecomer").addHandler(handler)

    clock_s = [0.0]
    # of this process, and of this module alone
    profiles.host = SimpleNamespace(monotonic=lambda: clock_s[0], name=profiles.host.name)

    def native(tensor):
        clock_s[0] += 0.001

    def shared(name, beta_s):
        profile = Profile(RANKS, AlphaBeta(1e-6, beta_s), LINE, hosts=(RANKS,))
        return profiles.shared_profile(
            group.under(name), profile, native, native, CANDIDATE, CPU, {}, ranks_per_machine=1
        )

    shared("near", 1e-3 / profiles.LARGE)
    assert warnings == []
    shared("far", 1.0 / profiles.LARGE)
    assert len(warnings) == (1 if rank == 0 else 0)


def test_a_file_of_before_has_no_hosts():
    line = '{"alpha_s": 1, "beta_s": 1}'
    old = f'{{"ranks": 2, "native": {line}, "schedule": {line}}}'
    assert PROFILE.decode(old).hosts == ()
