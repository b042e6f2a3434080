"""What a result must be when something is missing; every planted fault is seen, loss is none."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pytest
from torch._C._distributed_c10d import PrefixStore

from latecomer.runtime.optireduce.engine import OptiReduceEngine
from latecomer.runtime.optireduce.hadamard import FLOATS
from latecomer.runtime.optireduce.options import Options
from latecomer.runtime.optireduce.udp.bucket import Bucket
from latecomer.runtime.optireduce.udp.compiled.choice import choose
from latecomer.runtime.optireduce.udp.placement import Placer
from latecomer.runtime.selftest import conformance
from latecomer.runtime.selftest.audit import Audit
from tests.runtime.optireduce.simulation import lose
from tests.runtime.spawning import on_ranks, together

WAIT = timedelta(seconds=60)
OPTIONS = Options(
    datagram_bytes=128, warmup_steps=0, bound_s=1.0, dead_s=30.0, hadamard="off", stop_loss=1.0
)


EVERYBODY = {0, 1, 2}
SEEN_BY = {  # by fault, the ranks that see it
    "none": set(),
    "wrong sum": EVERYBODY,
    "unscaled": EVERYBODY,
    "left out": EVERYBODY,
    "wrong bit": {0},
    "misplaced": {1},
}


def _with_first_byte_changed(rows):
    return rows ^ (np.arange(rows.shape[1]) == 0).astype(np.uint8)


def _shifted_by_8_bytes(rows):
    return np.roll(rows, 8, axis=1)


ALTERED = {  # (rank, stage, sender) where datagrams are placed, None: all; what is placed
    "left out": ((2, 0, 0), np.zeros_like),
    "wrong bit": ((0, 1, 2), _with_first_byte_changed),
    "misplaced": ((1, 1, None), _shifted_by_8_bytes),
}


def _plant(fault, rank):
    """A contribution or a result that one rank takes wrong; or one that is made wrong."""
    if fault in ALTERED:
        (altering_rank, stage, sender), alter = ALTERED[fault]
        if rank == altering_rank:
            _alter_payloads(stage, sender, alter)
    elif fault == "wrong sum" and rank == 1:
        _add_one_to_results()
    elif fault == "unscaled":
        Bucket.scale_missing = lambda *_: None


def _alter_payloads(stage, sender, alter):
    """Let what is placed of a stage and sender (None: any) be altered."""
    place = Placer.place

    def place_altered(self, shard, batch):
        payload = batch.payload.copy()
        if shard.stage == stage and sender in (None, shard.sender):
            payload = alter(payload)
        return place(self, shard, batch._replace(payload=payload))

    Placer.place = place_altered
    # an empty table: the compiled path, if it runs, leaves all to numpy's
    choose("auto").placer._tabulate = lambda _: None


def _add_one_to_results():
    reduce = Bucket.reduce

    def reduce_wrong(self, first, stop):
        reduce(self, first, stop)
        self.elements(self.rank, first, stop)[:1] += 1

    Bucket.reduce = reduce_wrong


@pytest.mark.parametrize("fault", SEEN_BY)
@on_ranks(3, timeout_s=110)
def test_loss_is_no_wrong_sum_and_a_wrong_sum_is_seen_whatever_was_lost(rank, size, store, fault):
    _plant(fault, rank)
    engine = OptiReduceEngine(store, rank, size, options=OPTIONS, timeout_s=60)
    lose(0.1, rank)

    def all_reduce(tensor, average):
        submit = engine.submit if tensor.dtype in FLOATS else engine.reliable.submit
        return submit(tensor, average=average).wait(WAIT)

    records = []
    engine.ledger.missing = records
    audit = Audit(records, OPTIONS.payload_bytes, PrefixStore("audit", store), rank, size)
    messages = []

    def check(case, inputs, result):
        try:
            audit(case, inputs, result)
        except conformance.ConformanceError as error:
            messages.append(str(error))

    cases_store = PrefixStore("cases", store)
    conformance.run(all_reduce, cases_store, rank, size, sizes=(0, 1, 7, 1000), check=check)
    assert all("are wrong)" in message for message in messages)

    store.set(f"wrong {rank}", "\n".join(messages))
    together(store, rank, size, "over")
    messages_of_ranks = [store.get(f"wrong {peer}").decode() for peer in range(size)]
    seeing_ranks = {peer for peer, text in enumerate(messages_of_ranks) if text}
    assert seeing_ranks == SEEN_BY[fault]
    if seeing_ranks:
        for dtype in FLOATS:
            name = str(dtype).removeprefix("torch.")
            assert f" x {name} (" in "".join(messages_of_ranks)

    totals = engine.ledger.totals
    engine.close()
    assert totals["lost"] == audit.lost[rank]
    assert totals["due"] == audit.due[rank]
    losses = audit.losses()
    assert f"{audit.lost.total()} of {audit.due.total()} " in losses
    for peer in range(size):
        assert audit.lost[peer]
        assert f"{audit.lost[peer]} at rank {peer}" in losses
