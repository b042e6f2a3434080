"""MSCCL++ plans that the executor reads otherwise than they look: none of them is proved.

Each plan differs in one thing from one that is proved.
"""

import json
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from random import Random
from typing import Any

import pytest

from bench.corpus.plans import PlanRun
from latecomer.verify.asynchronous.mscclpp import verify_plan
from latecomer.verify.core.verdict import Verdict
from latecomer.verify.errors import FormatError
from tests.verify.asynchronous.test_mscclpp import outcomes, packets

Document = dict[str, Any]


def own(buffer: str, index: int = 0, size: int = 1) -> Document:
    return {"type": buffer, "index": index, "size": size}


def remote(number: int = 0, index: int = 0, size: int = 1) -> Document:
    return {"buffer_id": number, "index": index, "size": size}


def operation(name: str, sources: list[Document], targets: list[Document]) -> Document:
    return {"name": name, "src_buff": sources, "dst_buff": targets, "channel_type": "memory"}


def channel(name: str, *ids: int) -> Document:
    return {"name": name, "channel_ids": list(ids), "channel_type": "memory"}


def semaphore(name: str, *ids: int) -> Document:
    return {"name": name, "semaphore_ids": list(ids)}


NOP = {"name": "nop"}
UNIT = 2**17
"""Bytes of a round."""


def rounds_of(*ops: Document, unit_size: int = UNIT) -> Document:
    """A pipeline: in each round all these operations, on a piece of their areas."""
    context = {"unit_size": unit_size, "num_chunks": 1}
    return {"name": "pipeline", "iter_context": context, "ops": list(ops)}


def plan_of(
    blocks: list[list[Document]], chunks: int = 1, semaphores: tuple[int, ...] = (), **head: Any
) -> Document:
    """Two ranks that do the same: buffer 0 is the peer's scratch, buffer 1 its input."""
    gpus = []
    for rank in range(2):
        peer = 1 - rank
        gpus.append(
            {
                "id": rank,
                "input_chunks": chunks,
                "output_chunks": chunks,
                "scratch_chunks": 4 * chunks,
                "threadblocks": [_block(number, ops) for number, ops in enumerate(blocks)],
                "channels": [{"channel_type": "memory", "connected_to": [peer, peer]}],
                "remote_buffers": [_remote_buffer(peer, buffer) for buffer in ("s", "i")],
                "semaphores": [{"init_value": value} for value in semaphores],
            }
        )
    names = {"name": "two", "collective": "allreduce", "protocol": "Simple", "inplace": True}
    return names | {"gpus": gpus} | head


def _block(number: int, ops: list[Document]) -> Document:
    return {
        "id": number,
        "ops": deepcopy(ops),
        "channels": [{"channel_type": "memory", "channel_ids": [0, 1]}],
        "remote_buffer_refs": [{"access_channel_type": "memory", "remote_buffer_ids": [0, 1]}],
    }


def _remote_buffer(rank: int, buffer: str) -> Document:
    return {"rank": rank, "type": buffer, "access_channel_types": ["memory"]}


def exchange(chunks: int = 1, ready: str = "signal", wait: str = "wait") -> Document:
    """Each puts its input into the other's scratch, signals, waits and adds up."""
    ops = [
        operation("put", [own("i", 0, chunks)], [remote(0, 0, chunks)]),
        NOP,
        channel(ready, 0),
        channel(wait, 0),
        NOP,
        operation("re", [own("i", 0, chunks), own("s", 0, chunks)], [own("i", 0, chunks)]),
    ]
    return plan_of([ops], chunks)


def pipelined(semaphores: tuple[int, ...] = (), before: int = 0, **head: Any) -> Document:
    """The same in pieces; ``before`` more acquires of semaphore 0 in each round."""
    acquires = [semaphore("sem_acquire", 0), NOP] * before
    pipeline = rounds_of(*acquires, *operations(exchange()), NOP)
    return plan_of([[pipeline]], semaphores=semaphores, **head)


def verdict_of(plan: Document) -> Verdict | None:
    """The verdict; None where the plan is refused."""
    try:
        return verify_plan(json.dumps(plan).encode()).verdict
    except FormatError:
        return None


def operations(plan: Document, gpu: int = 0, block: int = 0) -> list[Document]:
    ops: list[Document] = plan["gpus"][gpu]["threadblocks"][block]["ops"]
    return ops


def changed(plan: Document, number: int, **fields: Any) -> Document:
    """With other fields in one operation of both ranks; None takes a field away."""
    for gpu in range(2):
        ops = operations(plan, gpu)
        for name, value in fields.items():
            if value is None:
                del ops[number][name]
            else:
                ops[number][name] = value
    return plan


def packets_of_nothing() -> Document:
    """Areas of no chunks beside packets of some."""
    plan = packets()
    for gpu in range(2):
        copy = operation("copy", [own("i", 0, 0)], [own("i", 0, 0)])
        operations(plan, gpu).extend([NOP, copy])
    return plan


RIGHT: dict[str, Callable[[], Document]] = {
    "packets": packets,
    "packets beside areas of no chunks": packets_of_nothing,
    "exchange": exchange,
    "exchange of two chunks": lambda: exchange(2),
    "pipeline": pipelined,
    "a credit": lambda: with_credits(1),
    "a join": lambda: joined(together=True),
    "a switch": lambda: switched("i", "i"),
    "relaxed, to begin": lambda: begun("rlxsignal", "rlxwait"),
    "a piece of scratch again": lambda: reused(16 * 2**20 // UNIT),
}


def with_credits(initial: int, released: bool = True) -> Document:
    """A pipeline that takes a credit in each round, and gives it back in another block."""
    plan = pipelined(semaphores=(initial, 0), before=1)
    for gpu in range(2):
        ops = operations(plan, gpu)[0]["ops"]
        ops.append(semaphore("sem_release", 1))
        giving_back = [semaphore("sem_acquire", 1), NOP]
        if released:
            giving_back.append(semaphore("sem_release", 0))
        pipeline = rounds_of(*giving_back, NOP)
        blocks = plan["gpus"][gpu]["threadblocks"]
        blocks.append({**blocks[0], "id": 1, "ops": [pipeline]})
    return plan


def reused(initial: int) -> Document:
    """A pipeline whose scratch, of 16 MiB a chunk, is used again, with so many credits.

    Its peer reads scratch before it gives the credit back over a channel.
    """
    first = rounds_of(
        semaphore("sem_acquire", 1),
        NOP,
        operation("copy", [own("i")], [own("s")]),
        NOP,
        semaphore("sem_release", 0),
        NOP,
    )
    second = rounds_of(
        semaphore("sem_acquire", 0),
        NOP,
        operation("put", [own("s")], [remote(0, 1)]),
        NOP,
        channel("signal", 0),
        channel("wait", 0),
        NOP,
        operation("rre", [own("i"), remote(0, 0)], [own("o", 0)]),
        NOP,
        channel("signal", 1),
        channel("wait", 1),
        NOP,
        semaphore("sem_release", 1),
        NOP,
    )
    return plan_of([[first], [second]], semaphores=(0, initial), reuse_resources=True)


def joined(together: bool) -> Document:
    """Two blocks copy a half each of what a third puts; it acquires twice, in a row or not."""

    def copies(index: int) -> list[Document]:
        copy = operation("copy", [own("i", index)], [own("s", 4 + index)])
        return [copy, NOP, semaphore("sem_release", 0)]

    puts = [operation("put", [own("s", 4 + n)], [remote(0, n)]) for n in range(2)]
    acquire = semaphore("sem_acquire", 0)
    if together:
        begin = [acquire, NOP, acquire, NOP, *puts]
    else:
        begin = [acquire, NOP, puts[0], NOP, acquire, NOP, puts[1]]
    after_puts = operations(exchange(2))[1:]
    return plan_of([begin + after_puts, copies(0), copies(1)], 2, semaphores=(0,))


def begun(signal: str, wait: str) -> Document:
    """The exchange, after both have said that they have begun."""
    plan = exchange()
    for gpu in range(2):
        ops = operations(plan, gpu)
        ops[:0] = [channel(signal, 1), channel(wait, 1), NOP]
    return plan


@pytest.mark.parametrize("name", RIGHT)
def test_the_right_ones_are_proved_and_run_right(name, tmp_path):
    plan = RIGHT[name]()
    report = verify_plan(json.dumps(plan).encode())
    assert report.verdict is Verdict.PROVED, report.results
    assert outcomes(plan, tmp_path, 10) == {"right"}


def through_scratch(target: Document) -> Document:
    """A put that seems to copy into the own scratch, from where the data are sent."""
    plan = exchange()
    for gpu in range(2):
        ops = operations(plan, gpu)
        ops[:1] = [
            operation("put", [own("i")], [target]),
            NOP,
            operation("put", [own("s", 3)], [remote()]),
        ]
    return plan


def sent_twice() -> Document:
    """The second target gets what lies at the offset of a second source, which is 0."""
    plan = exchange(2)
    for gpu in range(2):
        operations(plan, gpu)[:1] = [
            operation("put", [own("i", 0)], [remote(0, 0)]),
            operation("put", [own("i", 1)], [remote(0, 3), remote(0, 1)]),
        ]
    return plan


def with_blocks(blocks: list[list[Document]], semaphores: int) -> Document:
    """The exchange, and beside it blocks that move nothing."""
    plan = exchange()
    for gpu in plan["gpus"]:
        gpu["semaphores"] = [{"init_value": 0} for _ in range(semaphores)]
        gpu["threadblocks"] += [
            {"id": number, "ops": deepcopy(ops)} for number, ops in enumerate(blocks, 1)
        ]
    return plan


def cycle_of_three_rounds() -> Document:
    """Each pipeline is a round ahead of the next; the last lets the first begin at its end."""
    acquire = [semaphore("sem_acquire", number) for number in range(4)]
    release = [semaphore("sem_release", number) for number in range(4)]
    return with_blocks(
        [
            [acquire[3], NOP, rounds_of(release[0], NOP)],
            [rounds_of(release[1], NOP, acquire[0], NOP)],
            [rounds_of(release[2], NOP, acquire[1], NOP)],
            [rounds_of(acquire[2], NOP), NOP, release[3]],
        ],
        4,
    )


def ahead() -> Document:
    """A release before the pipeline, so each round's acquire is that of the round before."""
    acquire = semaphore("sem_acquire", 0)
    release = semaphore("sem_release", 0)
    return with_blocks(
        [[release, NOP, rounds_of(release, NOP)], [rounds_of(acquire, NOP), NOP, acquire]], 1
    )


def of_different_lengths() -> Document:
    acquire = semaphore("sem_acquire", 0)
    release = semaphore("sem_release", 0)
    return with_blocks(
        [[rounds_of(release, NOP, unit_size=2 * UNIT)], [rounds_of(acquire, NOP)]], 1
    )


def out_of_order() -> Document:
    """Operations count by their place in the file, channels by the block's number."""
    plan = exchange()
    for gpu in plan["gpus"]:
        (block,) = gpu["threadblocks"]
        block["id"] = 1
        gpu["threadblocks"] = [block, {"id": 0, "ops": []}]
    return plan


def begun_by_all(**head: Any) -> Document:
    plan = begun("signal", "wait") | head
    for gpu in range(2):
        operations(plan, gpu)[0]["channel_ids"] = [1, 0]
        operations(plan, gpu)[1]["channel_ids"] = [1, 0]
    return plan


def for_ports() -> Document:
    plan = exchange()
    for gpu in plan["gpus"]:
        gpu["remote_buffers"][0]["access_channel_types"] = ["port"]
    return plan


def unequal(field: str, value: int) -> Document:
    plan = exchange()
    plan["gpus"][1][field] = value
    return plan


def nothing() -> Document:
    plan = plan_of([[]])
    for gpu in plan["gpus"]:
        gpu["input_chunks"] = 0
        gpu["output_chunks"] = 0
    return plan


def beside_packets() -> Document:
    """Packets in scratch chunk 1 take the words of data in chunks 2 and 3."""
    plan = packets()
    for gpu in plan["gpus"]:
        gpu["scratch_chunks"] = 4
        copy = operation("copy", [own("s", 3)], [own("s", 2)])
        gpu["threadblocks"].append({"id": 1, "ops": [copy]})
    return plan


def dry() -> Document:
    plan = exchange()
    for gpu in range(2):
        operations(plan, gpu)[:0] = [semaphore("sem_acquire", 0), NOP]
        plan["gpus"][gpu]["semaphores"] = [{"init_value": 1}]
    return plan


def odd_pieces() -> Document:
    plan = reused(1)
    for gpu in plan["gpus"]:
        for block in gpu["threadblocks"]:
            block["ops"][0]["iter_context"]["unit_size"] = 3 * 2**16
    return plan


def smaller_area() -> Document:
    plan = pipelined()
    for gpu in range(2):
        operations(plan, gpu)[0]["iter_context"]["num_chunks"] = 2
    return plan


def packets_in_rounds() -> Document:
    plan = packets()
    for gpu in plan["gpus"]:
        block = gpu["threadblocks"][0]
        *before, last = block["ops"]
        block["ops"] = [*before, rounds_of(last)]
    return plan


def without_rounds() -> Document:
    plan = pipelined()
    for gpu in range(2):
        del operations(plan, gpu)[0]["iter_context"]
    return plan


def cut_differently() -> Document:
    """Part 0 of 2 ends elsewhere than part 1 of 4, where a chunk has six words."""
    copies = []
    for part in range(2):
        copy = operation("copy", [own("i")], [own("s", 2)])
        copy["tbg_info"] = {"tb_id": part, "tbg_size": 2}
        releases = [
            semaphore("sem_release", 2 * part),
            NOP,
            semaphore("sem_release", 2 * part + 1),
        ]
        copies.append([copy, NOP, *releases])

    puts = []
    for part in range(4):
        put = operation("put", [own("s", 2)], [remote(0, 0)])
        put["tbg_info"] = {"tb_id": part, "tbg_size": 4}
        acquire = semaphore("sem_acquire", part)
        release = semaphore("sem_release", 4 + part)
        puts.append([acquire, NOP, put, NOP, release])

    last = []
    for part in range(4):
        last += [semaphore("sem_acquire", 4 + part), NOP]
    last += operations(exchange())[2:]
    return plan_of([*copies, *puts, last], semaphores=(0,) * 8)


def overlapping() -> Document:
    """A copy one chunk up, whose threads run over each other."""
    plan = exchange(3)
    for gpu in range(2):
        ops = operations(plan, gpu)
        ops[0] = operation("put", [own("i", 0, 3)], [remote(0, 1, 3)])
        ops[5:] = [
            operation("copy", [own("s", 1, 3)], [own("s", 0, 3)]),
            NOP,
            operation("re", [own("i", 0, 3), own("s", 0, 3)], [own("i", 0, 3)]),
        ]
    return plan


def got_elsewhere() -> Document:
    ops = [
        operation("copy", [own("i")], [own("s", 1)]),
        NOP,
        channel("signal", 0),
        channel("wait", 0),
        NOP,
        operation("get", [remote(0, 1)], [own("s", 0)]),
        NOP,
        operation("re", [own("i"), own("s", 0)], [own("i")]),
    ]
    return plan_of([ops])


def other_threads() -> Document:
    """Two chunks are sent one by one, then written as one area: by other threads."""
    plan = packets()
    for rank, gpu in enumerate(plan["gpus"]):
        gpu |= {"input_chunks": 2, "output_chunks": 2, "scratch_chunks": 8}
        ops = gpu["threadblocks"][0]["ops"]
        ops[0]["src_buff"] = [own("i", 0), own("i", 1)]
        ops[0]["dst_buff"] = [remote(0, 2 * rank), remote(0, 2 * rank + 1)]
        del ops[1]
        ops[1]["src_buff"] = [own("i", 0, 2), own("s", 2 - 2 * rank, 2)]
        ops[1]["dst_buff"] = [own("i", 0, 2)]
    return plan


def packet_of_another_thread() -> Document:
    """Rank 1 overwrites scratch when a packet has come that other threads sent than read it."""
    plan = packets() | {"use_double_scratch_buffer": False}
    for gpu in plan["gpus"]:
        gpu["scratch_chunks"] = 16
    first, second = plan["gpus"]
    first["threadblocks"][0]["ops"] = [
        operation("copy", [own("i")], [own("s", 8)]),
        NOP,
        operation("copy", [own("s", 8)], [own("s", 9)]),
        operation("ppkt", [own("i")], [remote(0, 0)]),
        NOP,
        operation("repkt", [own("s", 9), own("s", 1)], [own("i")]),
    ]
    second["threadblocks"][0]["ops"] = [
        operation("upkt", [own("s", 0)], [own("s", 10)]),
        operation("put", [own("s", 11)], [remote(0, 8)]),
        NOP,
        operation("ppkt", [own("i")], [remote(0, 1)]),
        NOP,
        operation("re", [own("i"), own("s", 10)], [own("i")]),
    ]
    return plan


def released_too_early() -> Document:
    """One thread waits for each channel; that of the first releases."""
    plan = exchange()
    for gpu in range(2):
        block = plan["gpus"][gpu]["threadblocks"][0]
        ops = block["ops"]
        ops[2] = channel("signal", 1, 0)
        ops[3] = channel("wait", 1, 0)
        adds = ops.pop()
        ops[4] = semaphore("sem_release", 0)
        plan["gpus"][gpu]["semaphores"] = [{"init_value": 0}]
        plan["gpus"][gpu]["threadblocks"].append(
            block | {"id": 1, "ops": [semaphore("sem_acquire", 0), NOP, adds]}
        )
    return plan


def one_round_behind() -> Document:
    """A signal before the pipeline: each round waits for the one before it, not for its own."""
    plan = pipelined()
    for gpu in range(2):
        ops = operations(plan, gpu)
        ops.insert(0, channel("signal", 0))
        ops.append(channel("wait", 0))
    return plan


def too_many_rounds() -> Document:
    plan = pipelined()
    for gpu in range(2):
        operations(plan, gpu)[0]["iter_context"]["unit_size"] = 2**14
    return plan


def switched(*buffers: str) -> Document:
    """One rank adds up all ranks' buffers behind a switch; each binds the buffer it names."""
    plan = plan_of([[]])
    for gpu, buffer in zip(plan["gpus"], buffers, strict=True):
        groups = [{"size": 2, "ranks": [0, 1]}]
        channel = {"channel_type": "switch", "buffer_type": buffer, "rank_groups": groups}
        gpu["channels"].append(channel)
    block = plan["gpus"][0]["threadblocks"][0]
    block["channels"].append({"channel_type": "switch", "channel_ids": [0]})
    area = {"switch_channel_id": 0, "index": 0, "size": 1}
    block["ops"] = [operation("glres", [area], [area]) | {"channel_type": "switch"}]
    return plan


def of_no_ranks() -> Document:
    plan = exchange()
    groups: list[Document] = [{"ranks": []}]
    switch = {"channel_type": "switch", "buffer_type": "i", "rank_groups": groups}
    plan["gpus"][0]["channels"].append(switch)
    return plan


def of_no_buffer() -> Document:
    plan = switched("i", "i")
    del plan["gpus"][0]["channels"][-1]["buffer_type"]
    return plan


def listed_twice() -> Document:
    """Two names for one channel, and a thread for each."""
    plan = exchange()
    for gpu in range(2):
        block = plan["gpus"][gpu]["threadblocks"][0]
        block["channels"][0]["channel_ids"] = [0, 0]
        operations(plan, gpu)[2] = channel("signal", 0, 1)
        operations(plan, gpu)[3] = channel("wait", 0, 1)
    return plan


WRONG: dict[str, Callable[[], Document]] = {
    "signals over no channel": lambda: changed(
        changed(exchange(), 2, channel_type=None), 3, channel_type=None
    ),
    "a target that is named as an own buffer": lambda: through_scratch(own("s", 3)),
    "one source for two targets": sent_twice,
    "a copy of two areas": lambda: plan_of(
        [
            [
                operation("put", [own("i", 0, 2)], [remote(0, 0, 2)]),
                NOP,
                channel("signal", 0),
                channel("wait", 0),
                NOP,
                operation("copy", [own("s", 0), own("s", 1)], [own("s", 2), own("s", 3)]),
                NOP,
                operation("re", [own("i", 0, 2), own("s", 2, 2)], [own("i", 0, 2)]),
            ]
        ],
        2,
    ),
    "re with two targets": lambda: changed(exchange(), 5, dst_buff=[own("i"), own("s", 3)]),
    "areas of different sizes": lambda: changed(
        exchange(2), 5, src_buff=[own("i", 0, 1), own("s", 0, 2)]
    ),
    "a field of another operation": lambda: changed(exchange(), 2, barrier_id=0),
    "a part beyond the last": lambda: changed(exchange(), 0, tbg_info={"tb_id": 1, "tbg_size": 1}),
    "blocks out of order": out_of_order,
    "fewer threads than channels": lambda: begun_by_all(num_threads_per_block=1),
    "a remote buffer that is for ports": for_ports,
    "different chunks": lambda: unequal("input_chunks", 2),
    "no input": nothing,
    "small alignment": lambda: exchange() | {"buffer_alignment": 4},
    "a maximum": lambda: changed(exchange(), 5, reduce_op="max"),
    "data ordered by a relaxed signal": lambda: exchange(ready="rlxsignal"),
    "data ordered by a relaxed wait": lambda: exchange(wait="rlxwait"),
    "double scratch that is put to": lambda: exchange() | {"use_double_scratch_buffer": True},
    "scratch that is reused": lambda: exchange() | {"reuse_resources": True},
    "packets without room": lambda: packets() | {"protocol": "Simple"},
    "packets beside data": beside_packets,
    "a semaphore of two blocks": lambda: joined(together=False),
    "a semaphore that runs dry": dry,
    "credits that are not given back": lambda: with_credits(2, released=False),
    "scratch used again too early": lambda: reused(16 * 2**20 // UNIT + 1),
    "scratch that is no multiple of a piece": odd_pieces,
    "pieces of a smaller area": smaller_area,
    "packets in a pipeline": packets_in_rounds,
    "a pipeline without rounds": without_rounds,
    "areas that are cut differently": cut_differently,
    "areas that overlap": overlapping,
    "a get of another place": got_elsewhere,
    "packets by other threads": other_threads,
    "a release by a thread that has not waited": released_too_early,
    "more rounds than are counted": too_many_rounds,
    "switch channels of different buffers": lambda: switched("i", "s"),
    "a channel that is listed twice": listed_twice,
    "a switch channel of no buffer": of_no_buffer,
    "a switch channel of no ranks": of_no_ranks,
    "a packet of another thread": packet_of_another_thread,
    "a wait for the piece before": one_round_behind,
    "a wait cycle that takes three rounds": cycle_of_three_rounds,
    "signals of other rounds": ahead,
    "pipelines of different lengths": of_different_lengths,
}


REASONS = {
    "signals over no channel": "race_free",
    "a target that is named as an own buffer": "put with these targets: own s; expected:",
    "one source for two targets": "1 sources and 2 targets",
    "a copy of two areas": "copy with these sources: own s, own s;",
    "re with two targets": "re with these targets: own i, own s; expected:",
    "areas of different sizes": "areas of different sizes",
    "a field of another operation": "signal with barrier_id",
    "a part beyond the last": "part 1 of 1",
    "blocks out of order": "threadblocks must be numbered from 0, in order",
    "fewer threads than channels": "has more channels than the block has threads",
    "a remote buffer that is for ports": "remote buffer 0 is not for memory channels",
    "different chunks": "gpu 1 has other input_chunks or output_chunks",
    "no input": "has no input chunks",
    "small alignment": "buffer_alignment must be a multiple of 16",
    "a maximum": "reduce_op 'max'; the executor adds up",
    "data ordered by a relaxed signal": "relaxed signals order no data, and here data",
    "data ordered by a relaxed wait": "relaxed signals order no data, and here data",
    "double scratch that is put to": "gpu 0: put uses, with",
    "scratch that is reused": "reuse_resources: scratch holds chunks of up to",
    "packets without room": "packets, for which scratch has room only with",
    "packets beside data": "packets and data share scratch chunks of rank 0",
    "a semaphore of two blocks": "several blocks release semaphore 0 of rank 0,",
    "a semaphore that runs dry": "connections_match",
    "credits that are not given back": "connections_match",
    "scratch used again too early": "reuse_resources: scratch of 128 rounds is used",
    "scratch that is no multiple of a piece": "reuse_resources: 16777216 bytes of scratch are",
    "pieces of a smaller area": "an area of a pipeline must have its num_chunks;",
    "packets in a pipeline": "packets in a pipeline, which would be the same",
    "a pipeline without rounds": "a pipeline without iter_context",
    "areas that are cut differently": "blocks share areas that overlap and are cut",
    "areas that overlap": "synchronized",
    "a get of another place": "gpu 0: get takes each index for that of the",
    "packets by other threads": "synchronized",
    "a release by a thread that has not waited": "synchronized",
    "more rounds than are counted": "a pipeline has over 65535 rounds from",
    "switch channels of different buffers": "the ranks [0, 1] have switch channels of",
    "a switch channel of no buffer": "a switch channel of no buffer",
    "a switch channel of no ranks": "gpu 0 has a switch channel of ranks []",
    "a channel that is listed twice": "a channel is listed twice",
    "a packet of another thread": "packets order what some threads of a block have",
    "a wait for the piece before": "race_free",
    "a wait cycle that takes three rounds": "pipelines wait for what comes after them,",
    "signals of other rounds": "rounds wait for signals of other rounds at",
    "pipelines of different lengths": "pipelines have different numbers of rounds",
}
"""What is said of each, or how that begins: a refuted property, what is unknown, a refusal."""


def reason(plan: Document) -> str:
    """What is said of a plan that is not proved."""
    try:
        report = verify_plan(json.dumps(plan).encode())
    except FormatError as error:
        return " ".join(str(error).split())
    assert report.verdict is not Verdict.PROVED
    if report.counterexample is not None:
        return report.counterexample.property
    return next(result.note for result in report.results.values() if result.note)


@pytest.mark.parametrize("name", WRONG)
def test_what_the_executor_reads_otherwise_is_not_proved(name):
    assert REASONS[name] in reason(WRONG[name]())


@pytest.mark.parametrize("make", [packet_of_another_thread, released_too_early])
def test_threads_that_run_apart_go_wrong(make, tmp_path):
    assert "wrong" in outcomes(make(), tmp_path)


def test_data_that_are_ordered_by_a_relaxed_signal_are_named():
    report = verify_plan(json.dumps(exchange(ready="rlxsignal")).encode())
    assert report.verdict is Verdict.UNKNOWN
    assert "relaxed" in report.results["race_free"].note


@pytest.mark.parametrize(
    "plan", [with_credits(2, released=False), cycle_of_three_rounds()], ids=["credits", "cycle"]
)
def test_what_only_three_rounds_show_is_not_proved(plan, tmp_path, monkeypatch):
    assert outcomes(plan, tmp_path, 3) == {"right"}  # in two rounds
    monkeypatch.setattr("bench.corpus.plans.PIPELINED", 3)
    path = tmp_path / "plan.json"
    assert {PlanRun(path, seed).outcome().kind for seed in range(3)} == {"hang"}


def plan_with_more(random: Random) -> Document:
    """The exchange by three blocks of each rank, with a few operations that may do harm."""
    plan = exchange()
    for gpu in plan["gpus"]:
        block = gpu["threadblocks"][0]
        empty_blocks = [block | {"id": number, "ops": []} for number in (1, 2)]
        gpu["threadblocks"] = [block, *empty_blocks]
        gpu["semaphores"] = [{"init_value": value} for value in (0, 0, random.choice([0, 1]))]
    first, second = plan["gpus"]
    for _ in range(random.randint(1, 3)):
        add_pair(random, first["threadblocks"])
    if random.random() < 0.7:
        second["threadblocks"] = deepcopy(first["threadblocks"])
    if random.random() < 0.6:
        wrap_in_pipelines(random, plan)
    return plan


def add_pair(random: Random, blocks: list[Document]) -> None:
    """Insert what may belong together: a barrier of some blocks, a release with its acquire."""
    kind = random.choice(["barrier", "semaphore", "copy", "channel"])
    if kind == "barrier":
        identity = random.randrange(2)
        count = random.choice([1, 2, 2, 3])
        ops = [{"name": "barrier", "barrier_id": identity, "num_threadblocks": count}]
        meeting = random.sample(blocks, random.choice([count, count, 2, 3]))
        groups = [(block, ops) for block in meeting]
    elif kind == "semaphore":
        number = random.randrange(3)
        releaser, acquirer = random.sample(blocks, 2)
        groups = [
            (releaser, [NOP, semaphore("sem_release", number)]),
            (acquirer, [semaphore("sem_acquire", number), NOP]),
        ]
    elif kind == "channel":
        groups = [(random.choice(blocks), [NOP, channel("signal", 1), channel("wait", 1), NOP])]
    else:
        source = random.choice([own("i"), own("s", 0), own("s", 2), own("s", 3)])
        target = random.choice([own("s", 2), own("s", 3), own("s", 0), own("i")])
        groups = [(random.choice(blocks), [NOP, operation("copy", [source], [target]), NOP])]
    for block, ops in groups:
        index = random.randint(0, len(block["ops"]))
        block["ops"] = [*block["ops"][:index], *deepcopy(ops), *block["ops"][index:]]


def wrap_in_pipelines(random: Random, plan: Document) -> None:
    """Make pipelines of some blocks' operations, or of parts of them."""
    whole = random.random() < 0.6
    for number in range(3):
        part = random.random()
        for gpu in plan["gpus"]:
            block = gpu["threadblocks"][number]
            ops = block["ops"]
            begin = 0 if whole else int(part * len(ops))
            if ops[begin:]:
                block["ops"] = [*ops[:begin], rounds_of(*ops[begin:], NOP)]


@pytest.mark.parametrize("chunk", range(4))
def test_random_plans_that_are_proved_run_right(chunk, tmp_path, monkeypatch):
    path = tmp_path / "plan.json"
    verdicts: Counter[Verdict | None] = Counter()
    for seed in range(100 * chunk, 100 * chunk + 100):
        plan = plan_with_more(Random(seed))
        verdict = verdict_of(plan)
        verdicts[verdict] += 1
        if verdict is not Verdict.PROVED:
            continue
        path.write_text(json.dumps(plan))
        for rounds in (2, 4):
            monkeypatch.setattr("bench.corpus.plans.PIPELINED", rounds)
            ends = {PlanRun(path, run).outcome().kind for run in range(6)}
            assert ends == {"right"}, (seed, rounds)
    assert verdicts[Verdict.PROVED] > 5
    assert verdicts[Verdict.REFUTED] > 20
