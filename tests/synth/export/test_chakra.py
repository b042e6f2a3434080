"""Chakra traces: replayed in any order that their dependencies allow, they sum right."""

import random

import pytest

from synth.export import chakra
from tests.synth.export.schedules import families, straggler

PRIME = 2**61 - 1


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at = at + 1
        shift = shift + 7
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
    found = []
    for message in messages[1:]:
        node = chakra.messages()["Node"].FromString(message)
        facts = {a.name: getattr(a, a.WhichOneof("value")) for a in node.attr}
        found.append({"id": node.id, "type": node.type, "deps": list(node.data_deps), **facts})
    return found


def replayed(traces: list[bytes], chunks: int, seed: int) -> list[list[int]]:
    """What every rank holds at the end; nodes run in a drawn order, sends without waiting."""
    draw = random.Random(seed)
    todo = [nodes(trace) for trace in traces]
    ranks = len(todo)
    held = [[draw.randrange(PRIME) for _ in range(chunks)] for _ in range(ranks)]
    total = [sum(column) % PRIME for column in zip(*held, strict=True)]
    done: list[set[int]] = [set() for _ in range(ranks)]
    wires: dict[tuple[int, int], list[int]] = {}
    came: dict[tuple[int, int], tuple[int, int]] = {}
    while any(todo):
        ready = [
            (rank, node)
            for rank in range(ranks)
            for node in todo[rank]
            if done[rank].issuperset(node["deps"])
            and (node["type"] != chakra.COMM_RECV_NODE or wires.get((node["comm_src"], rank)))
        ]
        rank, node = draw.choice(ready)
        if node["type"] == chakra.COMM_SEND_NODE:
            value = held[rank][node["msg_chunk_idx"]]
            wires.setdefault((rank, node["comm_dst"]), []).append(value)
        elif node["type"] == chakra.COMM_RECV_NODE:
            value = wires[node["comm_src"], rank].pop(0)
            if node.get("is_rrc"):
                came[rank, node["id"]] = node["msg_chunk_idx"], value
            else:
                held[rank][node["msg_chunk_idx"]] = value
        else:
            chunk, value = came.pop((rank, node["deps"][0]))
            held[rank][chunk] = (held[rank][chunk] + value) % PRIME
        todo[rank].remove(node)
        done[rank].add(node["id"])
    assert not any(wires.values())
    assert held == [total] * ranks
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
            kept = node(id=facts["id"], type=facts["type"], data_deps=[])
            if facts["type"] == chakra.COMP_NODE:
                kept.data_deps.extend(facts["deps"])
            for name, value in facts.items():
                if name in {"comm_src", "comm_dst", "msg_chunk_idx"}:
                    kept.attr.add(name=name, int32_val=value)
                elif name == "is_rrc":
                    kept.attr.add(name=name, bool_val=value)
            encoded = kept.SerializeToString()
            assert len(encoded) < 128
            text += bytes([len(encoded)]) + encoded
        broken.append(text)
    with pytest.raises(AssertionError):
        list(map(lambda seed: replayed(broken, chunks, seed), range(10)))


def test_sizes_are_there_where_bytes_are_given():
    of = nodes(chakra.encode(straggler(4), nbytes=1000)[0])
    sizes = {node["comm_size"] for node in of if node["type"] != chakra.COMP_NODE}
    assert sizes == {334}
