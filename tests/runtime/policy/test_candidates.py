"""The candidates of a mode: rank 0 keeps what it proved, the others prove what they receive."""

from __future__ import annotations

import msgspec
import pytest
from torch._C._distributed_c10d import HashStore

from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.runtime.policy import candidates as module
from latecomer.runtime.policy.candidates import candidates
from latecomer.verify.errors import ScheduleRefused, SearchTimeout


def _group(store, rank, ranks):
    return StoreExchange(store, rank, ranks, timeout_s=10.0)


@pytest.mark.parametrize(("ranks", "most_late", "per_machine"), [(2, 0, 1), (6, 2, 1), (4, 1, 2)])
def test_all_ranks_have_the_same_schedules_and_costs(ranks, most_late, per_machine):
    store = HashStore()

    first, first_costs = candidates(_group(store, 0, ranks), most_late, per_machine)
    last, last_costs = candidates(_group(store, ranks - 1, ranks), most_late, per_machine)

    assert [schedule.digest for schedule in first] == [schedule.digest for schedule in last]
    assert [schedule.schedule for schedule in first] == [schedule.schedule for schedule in last]
    assert first_costs == last_costs


def test_rank_0_only_sends_and_proves_once_for_all_of_its_groups(monkeypatch):
    proved = []
    load = module.load
    monkeypatch.setattr(module, "load", lambda schedule: proved.append(schedule) or load(schedule))
    monkeypatch.setattr(StoreExchange, "receive_from", None)  # a call would raise
    module._made.cache_clear()

    of_first_group, _ = candidates(_group(HashStore(), 0, 4), 1)
    of_second_group, _ = candidates(_group(HashStore(), 0, 4), 1)

    assert len(proved) == len(module._made(4, 1, 1, False))
    assert of_first_group[0] is of_second_group[0]


def test_a_search_that_takes_too_long_costs_its_schedule_and_no_more(monkeypatch, caplog):
    """As on a machine that is very busy when the job starts."""

    def too_long(*arguments, **named):
        raise SearchTimeout("no schedule found in 5 s")

    monkeypatch.setattr("latecomer.synth.candidates.generate", too_long)
    module._made.cache_clear()
    schedules, costs = candidates(_group(HashStore(), 0, 4), 1)
    module._made.cache_clear()

    assert len(schedules) == len(costs) == len(module.CLASSES)
    assert caplog.text.count("rank 0 goes without the schedule") == 3


def test_a_rank_refuses_an_offer_that_is_not_proved():
    store = HashStore()
    candidates(_group(store, 0, 4), 1)
    group = _group(store, 1, 4)
    offer = msgspec.json.decode(group.receive_from(0, "candidates"))
    transfers = offer[0]["schedule"]["phases"][0]["rounds"][0]
    transfers.pop()
    group.send("candidates", msgspec.json.encode(offer).decode())

    with pytest.raises(ScheduleRefused, match="not proved"):
        candidates(group, 1)
