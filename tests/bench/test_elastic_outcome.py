"""What a disturbed training on the lab has come to, from what its replicas have told."""

from __future__ import annotations

import io
import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.elastic import lab
from bench.elastic.fleet import Failed, Replica, StepTold
from bench.elastic.outcome import (
    Span,
    first_told,
    rate,
    require_equal,
    require_same_end,
    went_on_s,
    work,
)
from bench.elastic.systems import HOSTS
from bench.lab.errors import LabError
from bench.lab.measure import port_bytes

ALL = Span(0.0, 1e9)


def step(number, at_s, view=0, replicas=(0, 1), hash_="a"):
    return StepTold(number=number, at_s=at_s, view=view, replicas=replicas, hash=hash_)


def told(*steps, pids=()):
    """A replica that has told of these steps, and, before them, with which processes it trains."""
    lines = [{"begins": 0, "pid": pid} for pid in pids]
    lines += [
        {"step": s.number, "at_s": s.at_s, "view": s.view, "replicas": s.replicas, "hash": s.hash}
        for s in steps
    ]
    output = io.StringIO("".join(json.dumps(line) + "\n" for line in lines))
    replica = Replica(0, SimpleNamespace(stdout=output, stderr=io.StringIO("")))
    replica.reading.join()
    return replica


def by_replicas(each):
    return len(each.replicas)


def test_a_replica_is_known_by_what_it_tells():
    replica = told(step(3, 1.5, view=7, replicas=(0, 2)), pids=(41, 42))
    assert replica.steps == [step(3, 1.5, view=7, replicas=(0, 2))]
    assert replica.pid == 42  # of the process that trains now


def test_a_step_that_is_done_again_is_no_work():
    """Checkpoint after step 1, death after step 3: steps 2 and 3 are done again."""
    first = [step(0, 1.0), step(1, 2.0), step(2, 3.0), step(3, 4.0)]
    again = [step(2, 14.0, view=1), step(3, 15.0, view=1), step(4, 16.0, view=1)]
    replicas = [told(*first, *again), told(*(step(s.number, s.at_s + 0.5) for s in first))]
    steps = first_told(replicas)
    assert [(each.number, each.at_s) for each in steps] == [
        (0, 1.0),
        (1, 2.0),
        (2, 3.0),
        (3, 4.0),
        (4, 16.0),
    ]
    assert work(steps, Span(5.0, 20.0), by_replicas) == 2
    assert work(steps, Span(2.0, 4.0), by_replicas) == 4  # the end is not in it


@given(
    st.lists(st.integers(1, 8), min_size=2, max_size=30),
    st.floats(0.01, 10.0),
    st.floats(0.0, 100.0),
)
def test_a_rate_is_that_of_whole_steps(sizes, step_s, begins_s):
    steps = [
        step(number, begins_s + number * step_s, replicas=tuple(range(size)))
        for number, size in enumerate(sizes)
    ]
    expected = sum(sizes[1:]) / (step_s * (len(sizes) - 1))
    assert rate(steps, ALL, by_replicas) == pytest.approx(expected, rel=1e-6)


def test_one_step_has_no_rate():
    with pytest.raises(Failed, match="1 step"):
        rate([step(0, 1.0), step(1, 3.0)], Span(0.0, 2.0), by_replicas)


def test_survivors_have_gone_on_with_the_last_one_s_first_step_in_a_later_view():
    # the step that ends at 10.1 was summed before the death at 10.0
    quick = [step(4, 9.8), step(5, 10.1), step(6, 10.7, view=1), step(7, 11.0, view=1)]
    slow = [step(4, 9.9), step(5, 10.2), step(6, 10.9, view=1)]
    assert went_on_s([quick, slow], 10.0) == pytest.approx(0.9)
    with pytest.raises(Failed, match="no step"):
        went_on_s([quick, slow[:2]], 10.0)


def test_parameters_that_differ_are_found():
    same = [step(0, 1.0), step(1, 2.0, hash_="b")]
    assert require_equal([told(*same), told(*same)], within_views=False) == 2
    other = [step(0, 1.0), step(1, 2.0, hash_="c")]
    for within_views in (False, True):
        with pytest.raises(Failed, match=r"step 1 .*'b', 'c'"):
            require_equal([told(*same), told(*other)], within_views=within_views)

    again = told(step(1, 9.0, view=1, hash_="c"))  # after a restart ranks may be others
    assert require_equal([told(*same), again], within_views=True) == 2
    with pytest.raises(Failed):
        require_equal([told(*same), again], within_views=False)


def test_the_end_is_the_last_step_that_all_have_done():
    first = told(step(1, 1.0, hash_="b"), step(2, 2.0, hash_="c"), step(3, 3.0, hash_="d"))
    behind = told(step(1, 1.0, hash_="b"), step(2, 2.0, hash_="c"))
    assert require_same_end([first, behind]) == "c"
    with pytest.raises(Failed, match="after step 2"):
        require_same_end([first, told(step(2, 2.0, hash_="x"))])
    with pytest.raises(Failed, match="no step"):
        require_same_end([first, told(step(4, 2.0))])


@given(st.integers(0, 2**32), st.integers(1, 20), st.floats(5.0, 60.0))
def test_replicas_die_once_in_the_middle_half_of_each_interval(seed, minutes, every_s):
    deaths = lab.moments(seed, float(minutes), every_s)
    assert deaths == lab.moments(seed, float(minutes), every_s)
    assert len(deaths) == int(minutes * 60.0 / every_s)
    for number, (at_s, victim) in enumerate(deaths):
        assert (number + 0.25) * every_s <= at_s <= (number + 0.75) * every_s
        assert 0 <= victim < HOSTS


def test_the_table_has_no_figures_of_a_system_that_was_wrong():
    figures = lab.Figures(
        deaths=[lab.Death(1, 0.0, 0.5, 7.0), lab.Death(2, 60.0, 0.7, 9.0)],
        rate_before=20.0,
        rate_after=18.0,
        rate_disturbed=17.1,
        kept=0.9,
        steps=100,
        load=lab.Load(cores=1.0, port=0.8),
        parameters="a",
    )
    lines = lab.table({"elastic": figures, "torchft": "step 3 differs\nby much"}).splitlines()
    assert "| 0.60 s | 0.70 s | 8.0 s | 19.0 | 17.1 | 90.0% | 80% | 1.0 |" in lines[2]
    assert lines[3] == "| torchft | FAILED: step 3 differs |" + " |" * 7
    assert len({line.count("|") for line in lines}) == 1


def test_bytes_of_a_port_are_read():
    devices = """Inter-|   Receive                            |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs
    lo:     10       1    0    0    0     0          0         0       20       1    0
    e0: 123456     100    0    0    0     0          0         0   654321     200    0
"""
    assert port_bytes(devices) == (123456, 654321)
    with pytest.raises(LabError, match="no e0"):
        port_bytes(devices.replace("e0", "e1"))
