"""Chakra traces: replayed in any order that their dependencies allow, they sum right."""

import random

import pytest

from latecomer.synth.export import chakra
from tests.synth.export.schedules import families, straggler

PRIME = 2**61 - 1


def varint(data: bytes, at: int) -> tuple[int, int]:
    """The number that begins at ``at``, and where it ends."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at += 1
        shift += 7
        if byte < 128:
            return value, at


def nodes(trace: bytes) -> list[dict]:
    """Nodes with their attributes, decoded; the metadata before them is checked."""
    messages = []
    at = 0
    while at < len(trace):
        size, at = varint(trace, at)
        messages.append(trace[at : at + size])
        at += size

    head = chakra.messages()["GlobalMetadata"].FromString(messages[0])
    assert {a.name: a.string_val for a in head.attr}["schema"] == chakra.SCHEMA

    decoded = []
    for message in messages[1:]:
        node = chakra.messages()["Node"].FromString(message)
        facts = {a.name: getattr(a, a.WhichOneof("value")) for a in node.attr}
        decoded.append({"id": node.id, "type": node.type, "deps": list(node.data_deps), **facts})
    return decoded


def replayed(traces: list[bytes], chunks: int, seed: int) -> list[list[int]]:
    """What every rank holds at the end; nodes run in a drawn order, sends without waiting."""
    draw = random.Random(seed)
    todo = [nodes(trace) for trace in traces]
    ranks = len(todo)
    held = []  # by rank and chunk
    totals = [0] * chunks
    for _ in range(ranks):
        inputs = [draw.randrange(PRIME) for _ in range(chunks)]
        held.append(inputs)
        totals = [(total + value) % PRIME for total, value in zip(totals, inputs, strict=True)]

    done: list[set[int]] = [set() for _ in range(ranks)]
    wires: dict[tuple[int, int], list[int]] = {}
    """Values sent and not yet received, by sender and receiver."""
    to_add: dict[tuple[int, int], tuple[int, int]] = {}
    """Chunk and value received and not yet added, by rank and number of the receiving node."""

    def is_ready(rank: int, node: dict) -> bool:
        if not done[rank].issuperset(node["deps"]):
            return False
        if node["type"] == chakra.COMM_RECV_NODE:
            return bool(wires.get((node["comm_src"], rank)))
        return True

    while any(todo):
        ready = [
            (rank, node) for rank in range(ranks) for node in todo[rank] if is_ready(rank, node)
        ]
        rank, node = draw.choice(ready)
        if node["type"] == chakra.COMM_SEND_NODE:
            value = held[rank][node["msg_chunk_idx"]]
            wires.setdefault((rank, node["comm_dst"]), []).append(value)
        elif node["type"] == chakra.COMM_RECV_NODE:
            value = wires[node["comm_src"], rank].pop(0)
            if node.get("is_rrc"):
                to_add[rank, node["id"]] = node["msg_chunk_idx"], value
            else:
                held[rank][node["msg_chunk_idx"]] = value
        else:
            chunk, value = to_add.pop((rank, node["deps"][0]))
            held[rank][chunk] = (held[rank][chunk] + value) % PRIME
        todo[rank].remove(node)
        done[rank].add(node["id"])

    assert not any(wires.values())
    assert held == [totals] * ranks
    return held


@pytest.mark.parametrize("n", range(2, 7))
def test_replayed_traces_sum_right(n):
    replayed(chakra.encode(straggler(n)), straggler(n).chunks, n)


@pytest.mark.long
@pytest.mark.parametrize("n", range(2, 17))
def test_traces_of_every_family_sum_right(n):
    for schedule in families(n):
        replayed(chakra.encode(schedule), schedule.chunks, n)


def test_a_missing_dependency_is_seen():
    traces = chakra.encode(straggler(5))
    chunks = straggler(5).chunks
    node = chakra.messages()["Node"]
    broken = []
    for trace in traces:
        size, at = varint(trace, 0)
        text = trace[: at + size]
        for facts in nodes(trace):
            stripped = node(id=facts["id"], type=facts["type"], data_deps=[])
            if facts["type"] == chakra.COMP_NODE:
                stripped.data_deps.extend(facts["deps"])
            for name, value in facts.items():
                if name in {"comm_src", "comm_dst", "msg_chunk_idx"}:
                    stripped.attr.add(name=name, int32_val=value)
                elif name == "is_rrc":
                    stripped.attr.add(name=name, bool_val=value)
            encoded = stripped.SerializeToString()
            assert len(encoded) < 128
            text += bytes([len(encoded)]) + encoded
        broken.append(text)

    with pytest.raises(AssertionError):
        replay_with_seeds(broken, chunks)


def replay_with_seeds(traces: list[bytes], chunks: int) -> None:
    for seed in range(10):
        replayed(traces, chunks, seed)


def test_sizes_are_there_where_bytes_are_given():
    nodes_of_rank_0 = nodes(chakra.encode(straggler(4), nbytes=1000)[0])
    sizes = {node["comm_size"] for node in nodes_of_rank_0 if node["type"] != chakra.COMP_NODE}
    assert sizes == {334}
