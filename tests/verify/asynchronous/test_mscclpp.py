"""MSCCL++ plans: right ones are proved, faults refuted unless an executor finds them harmless."""

import json
import random
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from bench.corpus.plans import PlanRun
from latecomer.synth import standard
from latecomer.synth.export.mscclpp import encode
from latecomer.verify.asynchronous.mscclpp import verify_plan
from latecomer.verify.core.verdict import Verdict
from latecomer.verify.errors import FormatError
from tests.synth.export.schedules import families, straggler

Document = dict[str, Any]


def packets(ranks: int = 2) -> Document:
    """The smallest all-reduce with packets: everyone sends all, and adds up what comes."""
    own = {"type": "i", "index": 0, "size": 1}
    gpus = []
    for rank in range(ranks):
        peers = [peer for peer in range(ranks) if peer != rank]
        slots = [{"type": "s", "index": peer, "size": 1} for peer in peers]
        sent = [{"buffer_id": n, "index": rank, "size": 1} for n in range(len(peers))]
        ops = [
            {"name": "ppkt", "src_buff": [own] * len(sent), "dst_buff": sent},
            {"name": "nop"},
            {"name": "repkt", "src_buff": [own, *slots], "dst_buff": [own]},
        ]
        refs = [{"access_channel_type": "memory", "remote_buffer_ids": list(range(len(peers)))}]
        gpus.append(
            {
                "id": rank,
                "input_chunks": 1,
                "output_chunks": 1,
                "scratch_chunks": ranks,
                "threadblocks": [{"id": 0, "ops": ops, "remote_buffer_refs": refs}],
                "channels": [{"channel_type": "memory", "connected_to": peers}],
                "remote_buffers": [{"rank": peer, "type": "s"} for peer in peers],
            }
        )
    head = {"name": "packets", "collective": "allreduce", "protocol": "LL", "inplace": True}
    return head | {"use_double_scratch_buffer": True, "gpus": gpus}


def verdict(plan: Document) -> Verdict:
    return verify_plan(json.dumps(plan).encode()).verdict


def outcomes(plan: Document, folder: Path, seeds: int = 40) -> set[str]:
    path = folder / "plan.json"
    path.write_text(json.dumps(plan))
    return {PlanRun(path, seed).outcome().kind for seed in range(seeds)}


@pytest.mark.parametrize("n", range(2, 17))
def test_exported_stragglers_are_proved_and_run_right(n, tmp_path):
    plan = json.loads(encode(straggler(n)))
    assert verdict(plan) is Verdict.PROVED
    assert outcomes(plan, tmp_path, 1) == {"right"}


@pytest.mark.long
@pytest.mark.parametrize("n", range(2, 17))
def test_exports_of_every_family_are_proved_and_run_right(n, tmp_path):
    for schedule in families(n):
        plan = json.loads(encode(schedule))
        assert verdict(plan) is Verdict.PROVED
        assert outcomes(plan, tmp_path, 6) == {"right"}


@pytest.mark.parametrize("ranks", [2, 4])
def test_packets_are_proved_and_run_right(ranks, tmp_path):
    assert verdict(packets(ranks)) is Verdict.PROVED
    assert outcomes(packets(ranks), tmp_path) == {"right"}


def faults(plan: Document) -> Iterator[tuple[str, Document]]:
    """Plans with one operation less, or one at another place of a buffer or another channel."""
    for g, gpu in enumerate(plan["gpus"]):
        for b, block in enumerate(gpu["threadblocks"]):
            for o, op in enumerate(block["ops"]):
                where = f"gpu {g} tb {b} operation {o} ({op['name']})"
                broken = deepcopy(plan)
                del broken["gpus"][g]["threadblocks"][b]["ops"][o]
                yield f"dropped {where}", broken
                for side in ("src_buff", "dst_buff"):
                    for n, area in enumerate(op.get(side, [])):
                        broken = deepcopy(plan)
                        moved = broken["gpus"][g]["threadblocks"][b]["ops"][o][side][n]
                        moved["index"] = area["index"] + (1 if area["index"] == 0 else -1)
                        yield f"moved {where}", broken
                if o and block["ops"][o - 1]["name"] != op["name"]:
                    broken = deepcopy(plan)
                    ops = broken["gpus"][g]["threadblocks"][b]["ops"]
                    ops.insert(o - 1, ops.pop(o))
                    yield f"crossed {where}", broken


def planted(number: int) -> list[tuple[str, Document]]:
    """So many of all faults, always the same."""
    exported = [json.loads(encode(schedule)) for schedule in (straggler(3), standard.direct(3))]
    every_fault = [fault for plan in [packets(3), *exported] for fault in faults(plan)]
    random.Random(0).shuffle(every_fault)
    return every_fault[:number]


def judged(fault: str, plan: Document, folder: Path) -> str:
    """``caught``, or ``harmless`` where execution agrees; fails where the two do not fit."""
    try:
        report = verify_plan(json.dumps(plan).encode())
    except FormatError:
        return "caught"
    if report.verdict is Verdict.PROVED:
        assert outcomes(plan, folder) == {"right"}, f"{fault}: proved"
        return "harmless"
    assert report.verdict is Verdict.REFUTED, fault
    return "caught"


def test_faults_in_plans_are_caught_or_harmless(tmp_path):
    verdicts = Counter(judged(fault, plan, tmp_path) for fault, plan in planted(30))
    assert verdicts["caught"] > 20


@pytest.mark.long
def test_every_fault_in_plans_is_caught_or_harmless(tmp_path):
    every = planted(10**6)
    assert len(every) > 150
    verdicts = Counter(judged(fault, plan, tmp_path) for fault, plan in every)
    assert verdicts["caught"] > len(every) * 0.7


def test_a_missing_nop_is_named():
    plan = json.loads(encode(straggler(2)))
    ops = plan["gpus"][0]["threadblocks"][0]["ops"]
    del ops[next(n for n, op in enumerate(ops) if op["name"] == "signal") - 1]
    wrong = verify_plan(json.dumps(plan).encode()).counterexample
    assert wrong is not None
    assert (wrong.property, wrong.action) == ("synchronized", "tb 0: signal")
    assert wrong.expected.startswith("a nop between it and put")


def test_the_command_takes_plans(verify, tmp_path):
    (tmp_path / "plan.json").write_bytes(encode(straggler(4)))
    code, out, _ = verify("plan.json")
    assert (code, "(mscclpp)" in out, "PROVED" in out) == (0, True, True)
    plan = packets()
    del plan["gpus"][1]["threadblocks"][0]["ops"][0]
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    code, out, _ = verify("plan.json", "--json")
    assert (code, json.loads(out)["counterexample"]["property"]) == (1, "signals_match")


def test_what_is_no_plan_is_refused():
    plan = packets()
    plan["gpus"][0]["threadblocks"][0]["ops"][0]["name"] = "teleport"
    for data, problem in [
        (json.dumps(plan).encode(), "'teleport' is not known"),
        (b'{"name": "x"}', "missing required field"),
        (json.dumps(packets() | {"collective": "sendrecv"}).encode(), "'sendrecv' is not known"),
    ]:
        with pytest.raises(FormatError, match=problem):
            verify_plan(data)


def with_barriers(counts: list[list[tuple[int, int]]]) -> Document:
    """The plan of packets; before, block n of each gpu passes barriers: (id, count) in turn."""
    plan = packets()
    for gpu in plan["gpus"]:
        first = gpu["threadblocks"][0]
        gpu["threadblocks"] = [first] + [{"id": n, "ops": []} for n in range(1, len(counts))]
        for block, barriers in zip(gpu["threadblocks"], counts, strict=True):
            before = []
            for number, count in barriers:
                before.append({"name": "barrier", "barrier_id": number, "num_threadblocks": count})
            block["ops"] = before + block["ops"]
    return plan


@pytest.mark.parametrize(
    ("counts", "expected", "ends"),
    [
        ([[(0, 3)], [(0, 3)], [(0, 3)]], Verdict.PROVED, {"right"}),
        ([[(0, 2)] * 4, [(0, 2)] * 4], Verdict.PROVED, {"right"}),
        ([[(0, 2), (1, 2)], [(0, 2)], [(1, 2)]], Verdict.PROVED, {"right"}),
        ([[(0, 1)], [(0, 1)], [(0, 1)]], Verdict.PROVED, {"right"}),
        ([[(0, 2), (0, 1)], [(0, 2)], [(0, 1)]], Verdict.PROVED, {"right"}),
        ([[(0, 2)], [(0, 2)], [(0, 2)]], Verdict.REFUTED, {"hang"}),
        ([[(0, 2)]] * 4, Verdict.REFUTED, {"hang", "right"}),
        ([[(0, 4)], [(0, 4)], [(0, 4)]], Verdict.REFUTED, {"hang"}),
        ([[(0, 2)] * 2, [(0, 2)]], Verdict.REFUTED, {"hang"}),
        ([[(0, 2)], [(0, 3)], []], Verdict.REFUTED, {"hang"}),
        ([[(0, 2)], [(0, 3)], [(0, 3)]], Verdict.UNKNOWN, {"hang"}),
        ([[(0, 0)], []], Verdict.REFUTED, {"hang"}),
        ([[(0, 2), (1, 2)], [(1, 2), (0, 2)]], Verdict.REFUTED, {"hang"}),
    ],
)
def test_a_barrier_joins_exactly_as_many_blocks_as_it_counts(counts, expected, ends, tmp_path):
    plan = with_barriers(counts)
    assert verdict(plan) is expected
    assert outcomes(plan, tmp_path) == ends


def test_blocks_that_a_barrier_does_not_count_do_not_wait(tmp_path):
    """Blocks 0 and 1 are to wait for each other, but the barrier lets each go on by itself."""
    plan = with_barriers([[(0, 1)], [(0, 1)]])
    for gpu in plan["gpus"]:
        barrier, *following = gpu["threadblocks"][0]["ops"]
        gpu["threadblocks"][0]["ops"] = [*following, barrier]
        target = {"type": "o", "index": 0, "size": 1}
        source = {"type": "s", "index": 0, "size": 1}
        gpu["threadblocks"][1]["ops"] += [
            {"name": "copy", "src_buff": [source], "dst_buff": [target]},
        ]
    assert verdict(plan) is Verdict.REFUTED
    assert "wrong" in outcomes(plan, tmp_path)
