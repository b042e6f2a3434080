"""The self-test as a user runs it, its conformance suite, and how its processes may end."""

from __future__ import annotations

import os
import re
import sys
import time

import pytest
import torch
from torch._C._distributed_c10d import HashStore

from latecomer.command import app
from latecomer.runtime.network.processes import passes, talk
from latecomer.runtime.selftest import conformance
from latecomer.runtime.selftest.audit import Audit
from latecomer.verify import write
from latecomer.verify.errors import RankFailure
from latecomer.verify.running import run
from tests.runtime import schedules


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--ranks", "1"), "must be at least 2"),
        (("--schedule", "nowhere.json"), "nowhere.json"),
        (("--device", "tpu"), "tpu"),
        (("--ranks", "4", "--schedule", "for3.json"), "synth generate --n 4"),
    ],
)
def test_bad_arguments_exit_with_2(arguments, message, monkeypatch, capsys, tmp_path):
    write(schedules.ring(3), tmp_path / "for3.json")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["latecomer", "selftest", *arguments])
    with pytest.raises(SystemExit) as ended:
        run(app)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("check", [None, "audit"])
def test_a_rank_that_is_gone_in_the_middle_is_named(check, monkeypatch):
    monkeypatch.setattr(conformance, "TIMEOUT_S", 0.05)
    monkeypatch.setattr("latecomer.runtime.selftest.audit.TIMEOUT_S", 0.05)
    store = HashStore()
    audit = Audit([], 1000, store, 1, 2) if check else None
    with pytest.raises(RankFailure, match="did not join") as caught:
        conformance.run(lambda tensor, average: tensor, store, 1, 2, sizes=(0,), check=audit)
    assert caught.value.ranks == (0,)


def test_one_wrong_element_and_other_bits_than_rank_0_are_seen():
    def wrong(tensor, average):
        tensor[17:18] += 1
        return tensor

    store = HashStore()
    with pytest.raises(conformance.ConformanceError, match="element 17"):
        conformance.run(wrong, store, 0, 1, sizes=(0, 7, 1000))
    store.set("0/0", "another digest")
    with pytest.raises(conformance.ConformanceError, match="differ in bits"):
        conformance.run(lambda tensor, average: tensor, store, 1, 2, sizes=(0,))


@pytest.mark.parametrize("average", [False, True])
def test_nan_is_no_rounding(average):
    """Whether a NaN is further away from the sum than a bound is always false."""
    case = conformance.Case(torch.float32, 4, average=average, exact=False)
    inputs = [torch.tensor([1.0, 2.0, 3.0, 4.0])] * 2
    result = inputs[0] if average else inputs[0] * 2
    conformance.compare(case, inputs, result)

    result = result.clone()
    result[2] = torch.nan
    with pytest.raises(conformance.ConformanceError, match="element 2 is nan"):
        conformance.compare(case, inputs, result)


def _say(store, rank, ranks, say, ending):
    """Say something once all ranks are there; then rank 1 ends in this way, or both do."""
    store.set(f"{rank}", "")
    store.wait([f"{peer}" for peer in range(ranks)])
    say((rank, ranks))

    if rank == 1 and ending == "raises":
        raise ValueError("planted")
    if rank == 1 and ending == "dies":
        os._exit(3)
    if ending == "dies first":
        if rank == 1:
            store.set("rank 1 dies", "")
            os._exit(3)
        store.wait(["rank 1 dies"])
        raise ConnectionError("a consequence")  # may be heard of before the death is noticed
    if rank == 1 and ending == "hangs":
        time.sleep(600)


@pytest.mark.parametrize(
    ("ending", "deadline_s", "message"),
    [
        ("ends", 100, r"\((0, 2|1, 2)\)"),
        ("raises", 100, r"FAILED: rank 1: (.|\n)*ValueError: planted"),
        ("dies", 100, "FAILED: rank 1: died with exit code 3"),
        ("dies first", 100, "FAILED: rank 1: died with exit code 3"),
        ("hangs", 15, r"FAILED: rank\(s\) (0, )?1: not done after 15 s"),
    ],
)
def test_what_the_ranks_say_and_that_the_first_failure_ends_all(ending, deadline_s, message):
    lines = []
    words = talk(_say, 2, ending, timeout_s=60.0, deadline_s=deadline_s)

    assert passes(words, lines.append) is (ending == "ends")
    assert re.match(message, str(lines[-1]))
    if ending == "ends":
        assert sorted(lines) == [(0, 2), (1, 2)]
