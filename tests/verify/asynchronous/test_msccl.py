"""MSCCL XML: right algorithms are proved, and each kind of fault is found and named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import pytest

from latecomer.verify.asynchronous.model import ALL_RANKS, BlockProgram
from latecomer.verify.asynchronous.msccl import verify_xml
from latecomer.verify.asynchronous.msccl_program import IN_PLACE, OUT_OF_PLACE, XmlLowering
from latecomer.verify.asynchronous.msccl_xml import decode
from latecomer.verify.asynchronous.render import freedom_in_words
from latecomer.verify.asynchronous.verdict import AsynchronousReport
from latecomer.verify.core.verdict import Verdict
from latecomer.verify.errors import FormatError
from tests.verify.asynchronous.algorithms import (
    Algorithm,
    algorithm,
    block,
    changed,
    pair_allreduce,
    ring_allgather,
    ring_allreduce,
    step,
    xml,
)
from tests.verify.asynchronous.explore import explore

OUT = {"inplace": 0, "outofplace": 1}


def refuted(report: AsynchronousReport) -> list[str]:
    return [name for name, r in report.results.items() if r.verdict is Verdict.REFUTED]


def direct(coll: str, n: int, **head: Any) -> Algorithm:
    """Every rank sends to every other on a block of its own; the own part is copied."""
    gpus = []
    for rank in range(n):
        blocks = []
        for peer in range(n):
            own = {"srcbuf": "i", "dstbuf": "o", "srcoff": 0, "dstoff": 0}
            if coll == "alltoall":
                own |= {"srcoff": peer, "dstoff": rank if peer == rank else peer}
            if peer == rank:
                if coll == "allgather":
                    own["dstoff"] = rank
                copies = coll != "broadcast" or rank == 0
                blocks.append(block(-1, -1, [step("cpy", **own)] if copies else []))
                continue

            sends = coll != "broadcast" or rank == 0
            receives = coll != "broadcast" or peer == 0
            steps = []
            if sends:
                steps.append(step("s", own["srcoff"]))
            if receives:
                steps.append(step("r", dstbuf="o", dstoff=0 if coll == "broadcast" else peer))
            blocks.append(block(peer if sends else -1, peer if receives else -1, steps))
        gpus.append(blocks)
    return algorithm(coll, 1 if coll == "broadcast" else n, gpus, **{**OUT, **head})


def star(coll: str, n: int) -> Algorithm:
    """Rank r sends its chunk c to rank c (reduce: all to rank 1), which adds up, block by block."""
    gpus: list[list[Any]] = []
    for rank in range(n):
        blocks = [block(-1, -1, [step("cpy", rank, dstbuf="o", dstoff=0, hasdep=1)])]
        for peer in range(n):
            if peer == rank:
                continue
            waits = {"depid": len(blocks) - 1, "deps": 1 if len(blocks) > 1 else 0}
            add = step("rrc", srcbuf="o", dstbuf="o", hasdep=1, **waits)
            blocks.append(block(peer, peer, [step("s", peer), add]))
        gpus.append(blocks)
    if coll == "reduce":
        sums = [block(-1, -1, [step("cpy", dstbuf="o", hasdep=1)])]
        for peer in range(n):
            if peer != 1:
                waits = {"depid": len(sums) - 1, "deps": 0}
                add = step("rrc", srcbuf="o", dstbuf="o", hasdep=1, **waits)
                sums.append(block(-1, peer, [add]))
        gpus = [sums if rank == 1 else [block(1, -1, [step("s")])] for rank in range(n)]
    return algorithm(coll, 1 if coll == "reduce" else n, gpus, **OUT)


RIGHT = {
    "ring": ring_allreduce(4),
    "ring of large steps": ring_allreduce(4, 3, maxBytes=8_000_000),
    "LL": ring_allreduce(3, proto="LL"),
    "pair": pair_allreduce(),
    "ring allgather": ring_allgather(5),
    "ring allgather out of place": ring_allgather(3, **OUT),
    "both placements": ring_allgather(3, outofplace=1),
    "direct allgather": direct("allgather", 3),
    "direct allgather in place": direct("allgather", 3, inplace=1),
    "alltoall": direct("alltoall", 3),
    "broadcast": direct("broadcast", 3),
    "reducescatter": star("reducescatter", 3),
    "reduce": star("reduce", 3),
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_algorithms_are_proved(name: str) -> None:
    report = verify_xml(xml(RIGHT[name]))
    assert report.verdict is Verdict.PROVED, report.counterexample
    head = RIGHT[name]["head"]
    assert len(report.placements) == head["inplace"] + head["outofplace"]


Fault = Callable[[Algorithm], object]


def at(gpu: int, tb: int, number: int, **change: Any) -> Fault:
    return lambda algo: algo["gpus"][gpu][tb]["steps"][number].update(change)


PLANTED: dict[str, tuple[Algorithm, Fault, str, str]] = {
    "dropped dep": (pair_allreduce(), at(0, 2, 1, depid=-1), "race_free", "tb 1 step 0"),
    "weakened dep": (pair_allreduce(), at(0, 2, 3, deps=0), "race_free", "tb 1 step 1"),
    "swapped offset": (
        ring_allreduce(3),
        at(1, 0, 1, srcoff=1, dstoff=1),
        "right_values",
        "belong",
    ),
    "unpublished flag": (pair_allreduce(), at(0, 1, 1, hasdep=0), "signals_match", "tb 1"),
    "dropped step": (
        ring_allreduce(3),
        lambda algo: algo["gpus"][2][0]["steps"].pop(),
        "connections_match",
        "messages: 4 sent, 3 received",
    ),
    "doubled reduce": (
        pair_allreduce(),
        lambda algo: algo["gpus"][0][2]["steps"].append(step("re", 1, srcbuf="s")),
        "right_values",
        "rank 1's input chunk 1 twice",
    ),
    "crossed waits": (
        pair_allreduce(),
        lambda algo: (at(0, 0, 0, depid=2, deps=1)(algo), at(0, 2, 1, hasdep=1)(algo)),
        "deadlock_free",
        "wait cycle of 2",
    ),
    "crossed receives": (
        ring_allgather(2),
        lambda algo: [gpu[0]["steps"].reverse() for gpu in algo["gpus"]],
        "deadlock_free",
        "wait cycle of 2",
    ),
    "other size": (
        ring_allreduce(3, 2, maxBytes=2**21),
        at(0, 0, 1, cnt=1),
        "connections_match",
        "chunks",
    ),
    "no peer": (ring_allreduce(3), lambda algo: algo["gpus"][0][0].update(send=-1), "", "peer"),
    "shared end": (
        pair_allreduce(),
        lambda algo: algo["gpus"][0].append(block(1, -1, [step("s", 0)])),
        "connections_match",
        "two blocks",
    ),
    "beyond": (ring_allreduce(3), at(0, 0, 3, dstoff=3), "bounds", "i[3..3]"),
    "undefined": (
        ring_allgather(3, **OUT),
        lambda algo: algo["gpus"][0][0]["steps"].pop(0),
        "right_values",
        "nothing defined",
    ),
    "uneven": (ring_allgather(3), lambda algo: algo["head"].update(nchunksperloop=4), "", "begin"),
    "shifted copy": (
        ring_allreduce(3, 2, maxBytes=2**21),
        lambda algo: algo["gpus"][0][0]["steps"].append(step("cpy", 0, dstoff=1, cnt=2)),
        "race_free",
        "overlap",
    ),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_faults_are_found_and_named(name: str) -> None:
    right, fault, broken, words = PLANTED[name]
    assert verify_xml(xml(right)).verdict is Verdict.PROVED
    report = verify_xml(xml(changed(right, fault)))
    assert report.verdict is Verdict.REFUTED
    wrong = report.counterexample
    assert wrong is not None
    assert wrong.property == (broken or wrong.property)
    assert words in " ".join((wrong.expected, wrong.found, *wrong.actions))


def mutants(algo: Algorithm) -> Iterator[tuple[str, Algorithm]]:
    """Every single small change to a step."""
    for g, gpu in enumerate(algo["gpus"]):
        for b, tb in enumerate(gpu):
            for s, old in enumerate(tb["steps"]):
                for key, value in [
                    ("depid", -1),
                    ("deps", old["deps"] - 1),
                    ("hasdep", 1 - old["hasdep"]),
                    ("srcoff", old["srcoff"] ^ 1),
                    ("dstoff", old["dstoff"] ^ 1),
                    ("type", {"rrc": "r", "r": "rrc", "rcs": "rrcs"}.get(old["type"], "nop")),
                ]:
                    copy = deepcopy(algo)
                    copy["gpus"][g][b]["steps"][s][key] = value
                    yield f"{g} {b} {s} {key}={value}", copy
                for number in (s, s + 1):
                    copy = deepcopy(algo)
                    steps = copy["gpus"][g][b]["steps"]
                    if number > s:  # twice
                        steps.insert(s, old)
                    else:
                        del steps[s]
                    yield f"{g} {b} {s} {'twice' if number > s else 'dropped'}", copy


def wanted(program: BlockProgram) -> dict[int, tuple[tuple[int, int], ...]]:
    """What the program's demand wants: at each address, the sum of which ranks' chunks."""
    (demand,) = program.demands
    rows = zip(demand.address.tolist(), demand.rank.tolist(), demand.chunk.tolist(), strict=True)
    terms = {}
    for address, rank, chunk in rows:
        ranks = range(program.ranks) if rank == ALL_RANKS else [rank]
        terms[address] = tuple((term, chunk) for term in ranks)
    return terms


@pytest.mark.parametrize("name", ["pair", "ring", "allgather"])
def test_every_mutant_is_refuted_exactly_where_some_interleaving_goes_wrong(name: str) -> None:
    algo = {
        "pair": pair_allreduce(),
        "ring": ring_allreduce(3),
        "allgather": ring_allgather(3, **OUT),
    }[name]
    placement = OUT_OF_PLACE if name == "allgather" else IN_PLACE
    harmless = 0
    caught = 0
    for name_of_mutant, mutant in mutants(algo):
        report = verify_xml(xml(mutant))
        lowering = XmlLowering(decode(xml(mutant)), placement, 2, name_of_mutant)
        program = lowering.program()
        if lowering.refutations:
            assert report.verdict is Verdict.REFUTED, name_of_mutant
            continue

        steps = [step for block in program.blocks for step in block.steps]
        sent = sum(step.sends >= 0 for step in steps)
        received = sum(step.receives >= 0 for step in steps)
        outcome = explore(program, 2)
        terms = wanted(program)
        wrong = any(end[address] != terms[address] for end in outcome.ends for address in terms)

        refutation = (name_of_mutant, report.counterexample)
        if sent != received or outcome.stuck or outcome.races or wrong:
            assert report.verdict is Verdict.REFUTED, refutation
            caught += 1
        else:
            assert report.verdict is not Verdict.REFUTED, refutation
            harmless += 1
    assert caught > 20
    assert harmless > 0


def test_steps_wait_and_fuse_as_in_the_kernel() -> None:
    """The kernel's own count of steps, not ``s``, is what flags are raised to."""
    algo = pair_allreduce()
    for gpu in algo["gpus"]:  # a nop without a wait is not counted: flags come one late
        gpu[0]["steps"].insert(0, step("nop"))
        gpu[2]["steps"][0]["deps"] = 1
        gpu[2]["steps"][2]["deps"] = 2
    assert refuted(verify_xml(xml(algo))) == ["signals_match", "deadlock_free"]
    for gpu in algo["gpus"]:
        gpu[2]["steps"][0]["deps"] = 0
        gpu[2]["steps"][2]["deps"] = 1
    report = verify_xml(xml(algo))
    assert report.verdict is Verdict.PROVED
    assert any("nop without a wait" in line for line in report.limits)
    # the last cnt of fused additions holds for all of them
    gpus = [
        [block(1, -1, [step("s", 0), step("s", 1)])],
        [
            block(-1, 0, [step("r", 0, dstbuf="s"), step("r", 1, dstbuf="s", hasdep=1)]),
            block(-1, -1, [step("re", 0, srcbuf="s", depid=0, deps=1)]),
        ],
    ]
    fused = algorithm("allreduce", 2, gpus)
    fused["gpus"][1][1]["steps"].append(step("re", 0, srcbuf="s", srcoff=0, cnt=2))
    assert verify_xml(xml(fused)).counterexample is not None
    lowered = XmlLowering(decode(xml(fused)), IN_PLACE, 2, "t").program()
    assert [s.text for s in lowered.blocks[2].steps] == [
        "re s[0..+1] s[0..+1] into i[0..+1] after tb 0 step 1"
    ]


def exchange(count: int, **head: Any) -> Algorithm:
    """Two ranks that send all they have before they receive."""
    gpus = []
    for rank in range(2):
        steps = [step("s", cnt=count), step("rrc", cnt=count)]
        gpus.append([block(1 - rank, 1 - rank, steps)])
    return algorithm("allreduce", count, gpus, **head)


def test_deadlock_depends_on_the_size_of_the_buffer() -> None:
    """Four chunks in one slot up to 512 KiB each; beyond, two slots hold at most two or three."""
    report = verify_xml(xml(exchange(4)))
    assert report.freedom.up_to == 4 * 2**20  # two messages of two chunks of 1 MiB
    assert report.freedom.slots_needed == 4
    assert report.slack == -2
    assert report.freedom.unlimited
    assert not report.freedom.rendezvous
    assert "from 4,194,308 bytes on" in report.counterexample.found  # type: ignore[union-attr]
    assert verify_xml(xml(exchange(4, maxBytes=2**22))).verdict is Verdict.PROVED
    assert verify_xml(xml(exchange(4)), max_bytes=2**22).verdict is Verdict.PROVED
    assert verify_xml(xml(exchange(4)), max_bytes=2**22 + 4).verdict is Verdict.REFUTED
    assert verify_xml(xml(exchange(4)), slots=4).verdict is Verdict.PROVED
    assert verify_xml(xml(exchange(8, proto="LL"))).verdict is Verdict.PROVED
    assert verify_xml(xml(exchange(9, proto="LL"))).freedom.up_to == 9 * 2**15 // 2


def test_free_of_deadlock_at_sizes_below_the_smallest_meant_is_not_said() -> None:
    large = exchange(4)
    large["head"]["minBytes"] = 2**22 + 4
    report = verify_xml(xml(large))
    assert refuted(report)[0] == "deadlock_free"
    assert report.freedom.up_to == 0
    assert "at no size meant, but with 4 slots" in freedom_in_words(report)


def test_ends_may_count_otherwise_where_messages_are_the_same() -> None:
    def split(algo: Algorithm) -> None:
        algo["gpus"][0][0]["steps"][1:] = [step("rrc", 0), step("rrc", 1)]

    halves = changed(exchange(2), split)
    assert refuted(verify_xml(xml(halves)))[0] == "connections_match"
    halves["head"]["minBytes"] = 2 * (2**20 + 1)  # from here on a message is one chunk
    assert verify_xml(xml(halves)).verdict is Verdict.PROVED


@pytest.mark.parametrize(("to", "broken"), [(2, "race_free"), (0, "right_values")])
@pytest.mark.parametrize("max_bytes", [None, 4 * 2**20])
def test_a_forwarded_step_may_come_back_too_early(
    to: int, broken: str, max_bytes: int | None
) -> None:
    """Its first chunk overwrites (to = 2) what is still to be sent, also where it is one message.

    The executor moves a message in slices (Simple) or word by word (LL), and so forwards the first
    chunk before it has read the second.
    """
    gpus = [
        [block(1, -1, [step("s", 1, cnt=2)]), block(-1, 1, [step("r", to, cnt=2)])],
        [block(0, 0, [step("rcs", 2, cnt=2)])],
    ]
    data = xml(algorithm("allreduce", 4, gpus))
    assert refuted(verify_xml(data, max_bytes=max_bytes)) == [broken]


LIMITS: dict[str, tuple[Fault, str]] = {
    "old": (
        lambda algo: [algo["head"].pop(key) for key in ("outofplace", "maxBytes")],
        "no outofplace",
    ),
    "never": (lambda algo: algo["head"].update(outofplace=0), "never used: neither"),
    "sizes": (lambda algo: algo["head"].update(minBytes=7, maxBytes=7), "never used: no size"),
    "channel": (lambda algo: algo["head"].update(nchannels=0), "not connected"),
    "order": (lambda algo: algo["gpus"][0][0]["steps"][0].update(s=3), "s is not looked at"),
    "long": (lambda algo: algo["gpus"][0].append(block(-1, -1, [step("nop")] * 65)), "65 steps"),
}


@pytest.mark.parametrize("name", LIMITS)
def test_limits_of_the_executor_are_no_verdict(name: str) -> None:
    change, line = LIMITS[name]
    report = verify_xml(xml(changed(ring_allgather(3, **OUT), change)))
    assert report.verdict is Verdict.PROVED
    assert any(line in limit for limit in report.limits)


MALFORMED = {
    "no xml": (b"<algo", "not a complete XML document"),
    "other": (b"<algorithm/>", "not <algo>"),
    "doctype": (b"<!DOCTYPE a><algo/>", "DOCTYPE"),
    "ranks": (xml(ring_allreduce(3)).replace(b'ngpus="3"', b'ngpus="4"'), "one <gpu>"),
    "missing": (xml(ring_allreduce(2)).replace(b' cnt="1"', b""), "has no cnt"),
    "number": (xml(ring_allreduce(2)).replace(b'cnt="1"', b'cnt="x"'), "no integer"),
    "type": (xml(ring_allreduce(2)).replace(b'"s"', b'"send"'), "type 'send'"),
    "proto": (xml(ring_allreduce(2, proto="simple")), "proto = 'simple'"),
    "coll": (xml(ring_allreduce(2)).replace(b"allreduce", b"gather"), "coll = 'gather'"),
    "moves": (
        xml(algorithm("allreduce", 9, [[block(-1, -1, [step("cpy", cnt=2**20)] * 3)]])),
        "move 3145728 chunks",
    ),
    "memory": (xml(algorithm("allreduce", 2**20, [[]] * 16)), "product must be"),
    "large": (xml(ring_allreduce(2)).replace(b'deps="-1"', b'deps="99999999"'), "beyond"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_files_name_the_place(name: str) -> None:
    data, words = MALFORMED[name]
    with pytest.raises(FormatError, match=words):
        verify_xml(data, "a.xml")
