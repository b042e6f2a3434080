"""What a result must be when something is missing; every planted fault is seen, loss is none."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._C._distributed_c10d import PrefixStore

from runtime.optireduce import bucket
from runtime.optireduce.bucket import Bucket
from runtime.optireduce.engine import Engine
from runtime.optireduce.hadamard import FLOATS
from runtime.optireduce.options import Options
from runtime.selftest import conformance
from runtime.selftest.audit import Audit, Missing, expected
from tests.runtime.optireduce.faults import lose
from tests.runtime.spawning import spawn, together, values

WAIT = timedelta(seconds=60)
PAYLOAD = 16
OPTIONS = Options(
    datagram_bytes=128, warmup_steps=0, bound_s=1.0, dead_s=30.0, hadamard="off", stop_loss=1.0
)


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 60),
    st.integers(2, 4),
    st.sampled_from(sorted(FLOATS, key=str)),
    st.booleans(),
    st.data(),
)
def test_the_result_follows_from_what_arrived(numel, size, dtype, average, data):
    """Element by element, in numpy's scalars; bfloat16 is rounded by hand, half to even."""
    dice = torch.Generator().manual_seed(numel)
    inputs = [torch.randn(numel, generator=dice).to(dtype) for _ in range(size)]
    each = PAYLOAD // dtype.itemsize
    bounds = [numel * r // size for r in range(size + 1)]
    lost = st.dictionaries(
        st.integers(0, size - 1), st.lists(st.integers(0, 5), unique=True), max_size=size
    )
    told = [Missing(data.draw(lost), data.draw(lost)) for _ in range(size)]
    for rank, record in enumerate(told):  # a rank always has its own
        record.contributions.pop(rank, None)
        record.results.pop(rank, None)
    rank = data.draw(st.integers(0, size - 1))
    found = expected(inputs, told, rank, average=average, payload=PAYLOAD)
    wide = np.float64 if dtype is torch.float64 else np.float32
    for element in range(numel):
        owner = max(r for r in range(size) if bounds[r] <= element)
        number = (element - bounds[owner]) // each
        if number in told[rank].results.get(owner, []):
            right = wide(inputs[rank][element].item()) * wide(1 if average else size)
        else:
            right, count = wide(0), 0
            for sender in range(size):
                if number not in told[owner].contributions.get(sender, []):
                    right, count = right + wide(inputs[sender][element].item()), count + 1
            right = right / wide(count) if average else right * wide(size / count)
        assert found[element].item() == _rounded(right, dtype)


def _rounded(value, dtype):
    if dtype is not torch.bfloat16:
        name = str(dtype).removeprefix("torch.")
        return float(np.dtype(name).type(value))
    bits = int(np.float32(value).view(np.uint32))
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16
    return float(np.uint32(bits & 0xFFFFFFFF).view(np.float32))


ALTERED = {  # (rank, stage, sender) where datagrams are placed, None: all; what is placed
    "left out": ((2, 0, 0), np.zeros_like),
    "wrong bit": ((0, 1, 2), lambda rows: rows ^ (np.arange(rows.shape[1]) == 0).astype(np.uint8)),
    "misplaced": ((1, 1, None), lambda rows: np.roll(rows, 8, axis=1)),
}


def _plant(fault, rank):
    """A contribution or a result that one rank takes wrong; or one that is made wrong."""
    place, combine = Bucket.place, bucket.combine

    def placed(self, stage, sender, rows, numbers):
        (where, at_stage, of), alter = ALTERED[fault]
        wrong = (rank, stage) == (where, at_stage) and of in (None, sender)
        place(self, stage, sender, alter(rows) if wrong else rows, numbers)

    def off(*arguments):
        total = combine(*arguments)
        total[:1] += rank == 1
        return total

    if fault in ALTERED:
        Bucket.place = placed
    elif fault == "wrong sum":
        bucket.combine = off
    elif fault == "unscaled":
        Bucket.scale_missing = lambda *_: None


def _audited(rank, size, store, fault, share):
    """(wrong cases, what is said of losses, datagrams lost by rank)"""
    _plant(fault, rank)
    engine = Engine(store, rank, size, options=OPTIONS, timeout_s=60)
    lose(share, rank)

    def all_reduce(tensor, average):
        submit = engine.submit if tensor.dtype in FLOATS else engine.reliable.submit
        return submit(tensor, average=average).wait(WAIT)

    payload = OPTIONS.payload_bytes
    engine.ledger.missing = records = []
    audit = Audit(records, payload, PrefixStore("audit", store), rank, size)
    wrong = []

    def check(*case):
        try:
            audit(*case)
        except conformance.ConformanceError as error:
            wrong.append(str(error))

    cases = PrefixStore("cases", store)
    conformance.run(all_reduce, cases, rank, size, sizes=(0, 1, 7, 1000), check=check)
    together(store, rank, size, "over")
    totals = engine.ledger.totals
    assert (totals["lost"], totals["due"]) == (audit.lost[rank], audit.due[rank])
    engine.close()
    return wrong, audit.losses(), dict(audit.lost)


@pytest.mark.parametrize("share", [0.0, 0.1])
def test_loss_is_reported_and_is_no_wrong_sum(share):
    results = values(spawn(_audited, 3, None, share, timeout_s=110))
    assert [wrong for wrong, _, _ in results] == [[]] * 3
    _, said, lost = results[0]
    assert all(other[1:] == (said, lost) for other in results)
    assert f"{sum(lost.values())} of " in said
    assert not share or all(lost[r] and f"{lost[r]} at rank {r}" in said for r in range(3))


@pytest.mark.parametrize(
    ("fault", "share", "seen_by"),
    [
        ("wrong sum", 0.0, {0, 1, 2}),
        ("wrong sum", 0.1, {0, 1, 2}),
        ("left out", 0.1, {0, 1, 2}),
        ("wrong bit", 0.1, {0}),
        ("misplaced", 0.1, {1}),
        ("unscaled", 0.1, {0, 1, 2}),
    ],
)
def test_a_wrong_result_is_seen_whatever_was_lost(fault, share, seen_by):
    results = values(spawn(_audited, 3, fault, share, timeout_s=110))
    assert {rank for rank, (wrong, _, _) in enumerate(results) if wrong} == seen_by
    wrong = [case for cases, _, _ in results for case in cases]
    assert all("are wrong)" in case for case in wrong)
    for dtype in FLOATS:
        assert any(str(dtype).removeprefix("torch.") in case for case in wrong)
