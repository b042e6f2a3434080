"""What a user chooses is checked, and follows the replicas from quorum to quorum."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from latecomer.runtime.torchft.process_group import ProcessGroup
from latecomer.runtime.torchft.settings import checked
from latecomer.verify.errors import ArgumentError
from tests.runtime.torchft.quorums import PROFILE, names

REPLICAS = names(6)


def _settings(**options):
    defaults = {
        "timeout": 60,
        "silence": 0.5,
        "join_timeout": 10,
        "mode": None,
        "late": (),
        "most_late": None,
        "profile": PROFILE,
    }
    return checked(**(defaults | options))


@given(
    late=st.lists(st.sampled_from([*REPLICAS, "elsewhere"]), min_size=1, unique=True),
    quorum=st.lists(st.sampled_from(REPLICAS), min_size=1, unique=True),
)
def test_stragglers_are_found_by_name_whatever_their_rank(late, quorum):
    options = _settings(late=late).options(quorum, set())
    there = [name for name in late if name in quorum]
    if options.mode == "native":
        assert not there or len(quorum) < 3
    else:
        assert options.mode == "static"
        named = [quorum[rank] for rank in options.late]
        assert named == there[-len(named) :]
        assert len(named) == min(len(there), len(quorum) - 2)


def test_the_mode_follows_from_who_is_named():
    assert _settings().mode == "auto"
    assert _settings(late={"replica_2"}).mode == "static"
    assert _settings(late="replica_2").late == ("replica_2",)
    assert _settings(late={"b", "a"}).late == ("a", "b")
    assert _settings(late=["b", "a"]).late == ("b", "a")
    assert _settings(mode="predict").options(REPLICAS, set()).mode == "predict"


def test_times_may_be_given_as_torchft_has_them():
    settings = _settings(timeout=timedelta(minutes=1), silence=timedelta(milliseconds=500))
    assert (settings.timeout_s, settings.silence_s) == (60.0, 0.5)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"timeout": 0}, "timeout_s"),
        ({"silence": -1}, "silence_s"),
        ({"silence": 31}, "silence_s"),
        ({"join_timeout": float("nan")}, "join_timeout_s"),
        ({"mode": "sometimes"}, "mode"),
        ({"mode": "static"}, "late"),
        ({"mode": "auto", "late": "replica_2"}, "late"),
        ({"late": [2]}, "late"),
        ({"most_late": 0}, "most_late"),
        ({"profile": "no/such/file"}, "profile"),
    ],
)
def test_what_makes_no_sense_is_refused(options, name):
    with pytest.raises(ArgumentError) as refused:
        ProcessGroup(**options)
    assert refused.value.name == name


def test_a_name_that_several_have_is_refused_for_a_straggler():
    settings = _settings(late={"0"})
    with pytest.raises(ArgumentError, match="several of this quorum have it"):
        settings.options(["0", "0", "b"], {"0"})
