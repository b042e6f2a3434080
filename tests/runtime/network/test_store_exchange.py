"""The exchange through the store: who is absent is named, in our time, whatever the store does."""

from __future__ import annotations

import os
import signal
import threading
from datetime import timedelta

import pytest
from torch._C._distributed_c10d import FileStore, HashStore, PrefixStore, TCPStore

from latecomer.runtime.network.store_exchange import StoreExchange
from latecomer.verify.errors import RankFailure
from tests.runtime.jobs import store_process

STORES = {
    "tcp": lambda _: TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=60)),
    "file": lambda folder: FileStore(str(folder / "store"), 3),
    "hash": lambda _: HashStore(),
}


@pytest.mark.parametrize("kind", STORES)
def test_the_absent_are_missing_and_named(kind, tmp_path):
    store = PrefixStore("here", STORES[kind](tmp_path))
    group = StoreExchange(store, 0, 4, 0.2)
    StoreExchange(store, 2, 4, 20.0).send("x/2", "two")
    assert group.gather("x") == {0: "", 2: "two"}
    assert group.all_gather("x", of=[0, 2]) == {0: "", 2: "two"}
    assert group.peek({0: "x/0", 1: "x/1"}) == {0: ""}
    assert group.under("x").receive_from(2, "2") == "two"

    with pytest.raises(RankFailure, match="did not join within") as caught:
        group.all_gather("x")
    assert caught.value.ranks == (1, 3)
    with pytest.raises(RankFailure, match="did not join within") as caught:
        group.receive_from(3, "x/3")
    assert caught.value.ranks == (3,)


def test_whoever_comes_in_time_is_heard():
    store = HashStore()
    threading.Timer(0.2, lambda: store.set("late", "here")).start()
    assert StoreExchange(store, 0, 9, 20.0).receive({7: "late"}) == {7: "here"}


@pytest.mark.parametrize("number", [signal.SIGSTOP, signal.SIGKILL])
def test_a_store_that_is_stopped_or_gone_is_an_error_and_no_hang(number):
    named = []
    message = "store through which the ranks meet is gone"

    def meet():
        with pytest.raises(RankFailure, match=message) as caught:
            group.gather("y")
        named.append(caught.value.ranks)

    with store_process() as (process, port):
        group = StoreExchange(TCPStore("127.0.0.1", port, None, False), 0, 2, 0.5)
        group.send("x/1", "here")
        assert group.receive({1: "x/1"}) == {1: "here"}
        os.kill(process.pid, number)
        if number == signal.SIGKILL:
            process.wait(20)
        meeting = threading.Thread(target=meet, daemon=True)
        meeting.start()
        meeting.join(20)
    assert named == [()]


def test_ranks_that_sent_something_else_are_told_apart():
    store = HashStore()
    for rank, (same, other) in {1: ("a", "b"), 2: ("a", "a")}.items():
        peer = StoreExchange(store, rank, 3, 20.0)
        peer.send(f"alike/{rank}", same)
        peer.send(f"one is odd/{rank}", other)

    group = StoreExchange(store, 0, 3, 20.0)
    assert group.differing("alike", "a") == {}
    assert group.differing("one is odd", "a") == {1: "b"}
    with pytest.raises(RankFailure, match="did not join within"):
        StoreExchange(store, 0, 3, 0.2).differing("nobody else", "a")


class Counting:
    """A store that counts what it is asked."""

    def __init__(self, store):
        self._store = store
        self.requests = 0

    def __getattr__(self, name):
        def ask(*arguments):
            self.requests += 1
            return getattr(self._store, name)(*arguments)

        return ask


@pytest.mark.parametrize("is_gone", [None, lambda rank: False], ids=["unwatched", "watched"])
def test_what_is_there_takes_as_many_requests_of_a_few_ranks_as_of_many(is_gone):
    """One store answers all ranks of a group: with some for each rank it would be its limit."""
    requests = {}
    for ranks in (2, 100):
        store = Counting(HashStore())
        for rank in range(ranks):
            StoreExchange(store, rank, ranks, 20.0).send(f"x/{rank}", str(rank))
        group = StoreExchange(store, 0, ranks, 20.0, is_gone)
        store.requests = 0
        assert group.all_gather("x", "0") == {rank: str(rank) for rank in range(ranks)}
        requests[ranks] = store.requests
    assert requests[2] == requests[100] <= 5


def test_one_that_is_gone_is_told_from_those_that_are_there():
    store = HashStore()
    StoreExchange(store, 1, 4, 20.0).send("x/1", "here")
    group = StoreExchange(store, 0, 4, 20.0, is_gone=lambda rank: rank == 3)
    assert group.gather("x") == {0: "", 1: "here"}  # and 2 could still come, but nobody waits
    with pytest.raises(RankFailure, match="ended before all had joined") as caught:
        group.all_gather("x")
    assert caught.value.ranks == (3,)
