"""Whoever dies, stops or breaks is named by all others; what can't run is refused beforehand."""

from __future__ import annotations

import contextlib
import itertools
import os
import time

import pytest
import torch

from latecomer.runtime.pipeline import Pipeline, load
from latecomer.runtime.pipeline.messages import Arrived, Mailbox, WireError
from latecomer.runtime.pipeline.staging import Staged
from latecomer.runtime.pipeline.transport import Faults, LinkFault, due_s
from latecomer.verify.errors import ArgumentError, RankFailure, ScheduleRefused
from latecomer.verify.pipeline import parse_action
from latecomer.verify.pipeline.measured import Transit
from tests.runtime.pipeline.models import Block, loss_fn, model, run_step
from tests.runtime.pipeline.test_gradients import MICROBATCHES, RANKS, matches, schedule, start
from tests.runtime.spawning import on_ranks
from tests.verify.pipeline.documents import gpipe, one_f_one_b, zero_bubble

TIMEOUT_S = 6.0
DEAD = 1


def _trap(fault):
    """A hook of a module that springs at its third forward."""
    count = itertools.count(1)

    def spring(*_):
        if next(count) == 3:
            if fault == "die":
                os._exit(1)
            raise ValueError("a trap")

    return spring


@on_ranks(RANKS, timeout_s=100, victims={DEAD})
def test_failures_and_refusals(rank, size, store):
    start(rank, size, store)
    block = Block()
    plain = one_f_one_b(RANKS, MICROBATCHES)
    doubled = [[*program, program[-1]] for program in plain]
    other_on_rank_1 = gpipe(RANKS, MICROBATCHES) if rank == 1 else plain
    ddp = torch.nn.parallel.DistributedDataParallel(block)

    for module, programs, problem in (
        (block, one_f_one_b(RANKS + 1, MICROBATCHES), f"for {RANKS + 1} ranks, the group has 3"),
        (block, doubled, r"never run(.|\n)*exactly_once|exactly_once(.|\n)*never run"),
        ({RANKS: block}, plain, rf"must be the modules of stages \[{rank}\]"),
        (ddp, plain, "silently not be reduced"),
        (block, other_on_rank_1, "another schedule"),
    ):
        with pytest.raises((ScheduleRefused, ArgumentError), match=problem):
            Pipeline(module, schedule(programs), loss_fn, timeout_s=30)

    plan = load(schedule(zero_bubble(RANKS, MICROBATCHES)))
    for culprit, fault in ((0, "raise"), (2, "sleep"), (DEAD, "die")):
        blocks = model(RANKS)
        pipeline = Pipeline(blocks[rank], plan, loss_fn, timeout_s=TIMEOUT_S)
        assert matches(pipeline, blocks, 0)
        if rank == culprit:
            blocks[rank].register_forward_pre_hook(_trap(fault))
            while fault == "sleep" and pipeline.failure is None:  # until the others give it up
                time.sleep(0.05)

        for step in (1, 2):  # who has failed stays so
            with pytest.raises((RuntimeError, RankFailure)) as failed:
                run_step(pipeline, step)
            if rank == culprit and fault == "raise" and step == 1:
                assert isinstance(failed.value.__cause__, ValueError)
            else:
                assert isinstance(failed.value, RankFailure)
                assert failed.value.ranks == (culprit,)
        pipeline.close()


@pytest.mark.parametrize(
    ("receive", "step", "sender", "problem"),
    [
        ("1RECV_F2", 3, 0, ""),
        ("1RECV_F4", 4, 0, ""),
        ("1RECV_B0", 3, 2, ""),
        ("1RECV_F2", 3, 2, "rank 0 does that"),
        ("2RECV_F2", 3, 0, "no business"),
        ("1RECV_F5", 3, 0, "there are 5 microbatches"),
        ("1RECV_F2", 2, 0, "step 3 has begun"),
        ("1RECV_F0", 3, 0, "a second time"),
        ("1RECV_F1", 3, 0, "a second time"),
    ],
)
def test_messages_that_nobody_can_want(receive, step, sender, problem):
    mailbox = Mailbox({(1, "RECV_F"): 0, (1, "RECV_B"): 2}, 5)

    def put(receive, sender, step=3):
        transit = Transit(parse_action(receive), sender, 0.0, 0.0)
        mailbox.put(step, Arrived(transit, Staged([]), ()))

    mailbox.begin(3)
    put("1RECV_F0", 0)
    mailbox.take(parse_action("1RECV_F0"))
    put("1RECV_F1", 0)
    with pytest.raises(WireError, match=problem) if problem else contextlib.nullcontext():
        put(receive, sender, step)
    if not problem:
        mailbox.begin(step)
        assert mailbox.take(parse_action(receive))[0].transit.sender == sender
    mailbox.fail(RankFailure([1], "over"))
    with pytest.raises(RankFailure, match="over"):
        mailbox.take(parse_action("1RECV_F1"))


def test_injected_delays():
    faults = Faults([LinkFault(0, 1, 2.0, 1.0, 3, 4), LinkFault(0, 1, 0.5, first_step=4)])
    delays_s = {step: faults.delay_s(0, 1, step) for step in range(2, 6)}
    assert delays_s == {2: (0, 0), 3: (2.0, 1.0), 4: (2.5, 1.0), 5: (0.5, 0)}
    assert faults.delay_s(1, 0, 3) == (0, 0)

    # two messages at once: the second waits for the link, not for the latency of the first
    first_s, free_s = due_s(10.0, 0.0, (2.0, 1.0))
    second_s, _ = due_s(10.0, free_s, (2.0, 1.0))
    assert first_s == 13.0
    assert free_s == 11.0
    assert second_s == 14.0

    with pytest.raises(ArgumentError, match="latency_s"):
        LinkFault(0, 1, -1.0)
