"""Counts over HTTP: who serves, where, what it says, and what a port that is taken does."""

from __future__ import annotations

import re
import socket
import time
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from latecomer import runtime
from latecomer.runtime.telemetry.served import Address, address, own_address, parse_address
from latecomer.verify.errors import ArgumentError
from tests.runtime.telemetry.ranks import MadeUpRank

PATIENCE_S = 60.0


@pytest.fixture
def rank():
    made = MadeUpRank()
    yield made
    made.source.close()


@pytest.fixture
def port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def _metrics(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as answer:
        text = answer.read().decode()
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            rank = sample.labels.pop("rank")
            found[sample.name, rank, *sample.labels.values()] = sample.value
    return found


def test_counts_are_served_during_the_block_and_not_after(rank, port):
    with runtime.watch(rank, prometheus_port=port):
        rank.reduce()
        rank.reduce(way="one late", late=(3,))
        give_up_s = time.monotonic() + PATIENCE_S
        while ("latecomer_rank_done_total", "0", "one late") not in _metrics(port):
            assert time.monotonic() < give_up_s
        found = _metrics(port)
    assert found["latecomer_rank_entered_total", "0"] == 2
    assert found["latecomer_rank_done_total", "0", "native"] == 1
    assert found["latecomer_rank_begun_without_total", "0", "3"] == 1
    assert found["latecomer_rank_operation_seconds_total", "0"] == pytest.approx(0.02)
    assert found["latecomer_rank_reduced_bytes_total", "0"] == 32
    assert found["latecomer_rank_clock_uncertainty_seconds", "0"] == 0.0001
    with pytest.raises(OSError, match="refused"):
        _metrics(port)
    with socket.create_server(("127.0.0.1", port), reuse_port=False):
        pass  # it is free again


def test_a_port_that_is_taken_is_told_and_training_goes_on(rank, caplog):
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        with runtime.watch(rank, prometheus_port=taken) as watched:
            rank.reduce()
    assert len(watched.ranks[0].records) == 1
    told = [record.message for record in caplog.records if "can't serve" in record.message]
    assert len(told) == 1
    assert f"127.0.0.1:{taken}" in told[0]
    assert "in use" in told[0]


def test_the_environment_says_where_unless_the_program_does(rank, monkeypatch, caplog):
    monkeypatch.setenv("LATECOMER_PROMETHEUS", "127.0.0.1:0")
    with caplog.at_level("INFO", logger="latecomer"), runtime.watch(rank):
        (chosen,) = re.findall(r"http://127\.0\.0\.1:(\d+)/metrics", caplog.text)
        assert _metrics(int(chosen))["latecomer_rank_entered_total", "0"] == 0
    monkeypatch.setenv("LATECOMER_PROMETHEUS", "somewhere")
    with pytest.raises(ArgumentError, match=r"LATECOMER_PROMETHEUS = 'somewhere': must be"):
        runtime.watch(rank)
    assert address(9464, None) == Address("127.0.0.1", 9464)
    monkeypatch.delenv("LATECOMER_PROMETHEUS")
    assert address(None, None) is None
    with pytest.raises(ArgumentError, match="goes with a port only"):
        address(None, "0.0.0.0")


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("9464", "127.0.0.1", 9464), ("0.0.0.0:1", "0.0.0.0", 1), ("[::1]:80", "::1", 80)],
)
def test_an_address_is_read(text, host, port):
    assert parse_address(text, "X") == (host, port)


@pytest.mark.parametrize("text", ["", "host", "host:", "1:70000", "-1", "9464:host"])
def test_what_is_no_address_is_refused(text):
    with pytest.raises(ArgumentError, match="must be "):
        parse_address(text, "X")


def test_the_first_rank_of_each_host_serves_unless_ranks_are_named(monkeypatch):
    asked = Address("127.0.0.1", 9464)
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert own_address(8, asked, None) == asked
    assert own_address(8, asked, [9]) is None
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert own_address(9, asked, None) is None
    assert own_address(9, asked, [9]) == asked._replace(port=9465)
