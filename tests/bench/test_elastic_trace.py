"""A cluster's trace as outages of servers and replicas, and what a job keeps of it."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.elastic import goodput
from bench.elastic.trace import DAYS, SERVERS, Outage, faults, merged, of_replicas

times = st.integers(0, 60)
outages = st.lists(
    st.builds(
        lambda begins, lasts, who: Outage(float(begins), float(begins + lasts), who),
        times,
        st.integers(0, 20),
        st.sampled_from("abc"),
    ),
    max_size=12,
)


def _is_out(found, who, at):
    return any(each.who == who and each.begins <= at < each.ends for each in found)


@given(outages)
def test_merged_outages_do_not_overlap_and_cover_the_same_time(found):
    whole = merged(found)
    for who in "abc":
        own = [outage for outage in whole if outage.who == who]
        assert all(before.ends < after.begins for before, after in itertools.pairwise(own))
        for at in range(90):
            assert _is_out(whole, who, at + 0.5) == _is_out(found, who, at + 0.5)


def test_a_trace_is_read_and_its_servers_dealt_out(tmp_path):
    kind = {"Level": "Hardware Failure", "Class": "GPU", "Desc": "GPU Lost"}
    told = [
        ("a", 1.0, "fault_start"),
        ("b", 2.0, "fault_start"),
        ("a", 2.5, "fault_end"),
        ("c", 11.0, "fault_start"),
        ("b", 11.5, "fault_end"),
        ("d", 12.0, "fault_start"),
        ("c", 30.0, "fault_end"),
        ("d", 30.0, "fault_end"),
    ]
    path = tmp_path / "fault_trace.json"
    events = [
        {"node_id": node, "event_time": day, "event_type": what, "fault_type": kind}
        for node, day, what in told
    ]
    path.write_text(json.dumps(events))
    found = faults(path)
    assert found == [
        Outage(1.0, 2.5, "a"),
        Outage(2.0, 11.5, "b"),
        Outage(11.0, 30.0, "c"),
        Outage(12.0, 30.0, "d"),
    ]
    # a and c are replica 0, b and d replica 1; what began before the stretch is not in it
    assert of_replicas(found, 2, first_day=0.0, days=20.0) == [
        Outage(1.0, 2.5, "0"),
        Outage(2.0, 11.5, "1"),
        Outage(11.0, 20.0, "0"),
        Outage(12.0, 20.0, "1"),
    ]
    assert of_replicas(found, 2, first_day=10.0, days=20.0) == [
        Outage(1.0, 20.0, "0"),
        Outage(2.0, 20.0, "1"),
    ]


def test_work_kept_by_hand():
    """One of 400 servers is out for a day: an hour is lost at both ends of that, or more."""
    found = goodput.changes([Outage(10.0, 11.0, "a")])
    day_s = goodput.DAY_S
    most = (SERVERS * DAYS - 1) * day_s
    assert goodput.possible(found) == pytest.approx(most)
    assert goodput.without_restart(found, death_s=0.0, return_s=0.0) == pytest.approx(most)
    lost = most - goodput.without_restart(found, death_s=3600.0, return_s=3600.0)
    assert lost == pytest.approx(3600.0 * (SERVERS - 1 + SERVERS))

    halves = goodput.without_restart(found, death_s=0.0, return_s=0.0, microbatches=SERVERS)
    assert halves == pytest.approx((SERVERS * (DAYS - 1) + SERVERS / 2) * day_s)

    kept = goodput.with_checkpoints(found, every_s=3600.0, write_s=0.0, restart_s=1800.0)
    back = SERVERS * 1800.0  # half an hour of all servers' work, on average
    restart = (SERVERS - 1) * 1800.0
    unused = (DAYS - 11.0) * day_s  # the server that is back, until a restart that does not come
    assert most - kept == pytest.approx(back + restart + unused)
