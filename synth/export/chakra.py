"""Chakra execution traces, one per rank, for simulators such as astra-sim.

A trace holds nodes with the nodes of the same rank that they wait for: COMM_SEND and COMM_RECV for
the ends of a transfer, and after a receive that adds, a COMP for the addition. Messages of a pair
meet in their order under the tag 0, so each end also waits for the one before it with that peer in
that direction. Attributes are those that collectiveapi's converter writes (chunk numbers instead of
bytes: the simulator knows the size), beside the ``comm_size`` of the trace's schema where bytes are
given.

The schema (MLCommons Chakra ``et_def.proto``, 1.0.2-chakra.0.0.4) is described here as far as it is
used; protobuf does the encoding. A file is messages, each after its length: metadata, then nodes.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from latecomer.synth.export.ends import End, ends
from latecomer.verify.core.schedule import Schedule
from latecomer.verify.errors import ArgumentError

SCHEMA = "1.0.2-chakra.0.0.4"
# NodeType of the schema.
COMP_NODE = 4
COMM_SEND_NODE = 5
COMM_RECV_NODE = 6

_FIELDS = {
    "AttributeProto": [
        ("name", 1, "string", False),
        ("int32_val", 7, "int32", False),
        ("int64_val", 9, "int64", False),
        ("uint64_val", 13, "uint64", False),
        ("bool_val", 27, "bool", False),
        ("string_val", 29, "string", False),
    ],
    "GlobalMetadata": [
        ("version", 1, "string", False),
        ("attr", 2, "AttributeProto", True),
    ],
    "Node": [
        ("id", 1, "uint64", False),
        ("name", 2, "string", False),
        ("type", 3, "int32", False),
        ("data_deps", 5, "uint64", True),
        ("attr", 10, "AttributeProto", True),
    ],
}
"""Of each message: field, number, type, whether repeated. Enumerations travel as integers."""


@cache
def messages() -> dict[str, Any]:
    """The classes of the schema's messages, by name.

    Raises:
        ArgumentError: protobuf is not installed.
    """
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError:
        remedy = "pip install protobuf"
        raise ArgumentError("--to", "chakra", "needs the package protobuf", remedy) from None
    file = descriptor_pb2.FileDescriptorProto(
        name="latecomer/chakra.proto", package="ChakraProtoMsg", syntax="proto3"
    )
    kinds = descriptor_pb2.FieldDescriptorProto
    for name, fields in _FIELDS.items():
        message = file.message_type.add(name=name)
        choice = name == "AttributeProto"
        if choice:
            message.oneof_decl.add(name="value")
        for field, number, kind, repeated in fields:
            added = message.field.add(
                name=field,
                number=number,
                label=kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL,
            )
            if kind in _FIELDS:
                added.type = kinds.TYPE_MESSAGE
                added.type_name = f".ChakraProtoMsg.{kind}"
            else:
                added.type = getattr(kinds, f"TYPE_{kind.upper()}")
            if choice and field != "name":
                added.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"ChakraProtoMsg.{name}"))
        for name in _FIELDS
    }


def encode(schedule: Schedule, nbytes: int | None = None) -> list[bytes]:
    """The traces, one per rank, in order.

    Args:
        nbytes: of the whole buffer; None: the simulator's own size is used.

    Raises:
        ArgumentError: protobuf is not installed.

    Examples:
        >>> from pathlib import Path
        >>> from latecomer import synth
        >>> from latecomer.synth.export import chakra
        >>> for rank, trace in enumerate(chakra.encode(synth.generate(4), 2**30)):
        ...     _ = Path(f"trace.{rank}.et").write_bytes(trace)
    """
    traces: list[list[bytes]] = [[_metadata()] for _ in range(schedule.ranks)]
    last_node: list[int] = [0] * schedule.ranks
    before: dict[tuple[int, int, bool], int] = {}
    complete: list[int] = []
    size = None if nbytes is None else -(-nbytes // schedule.chunks)
    for end in ends(schedule):
        stream = end.rank, end.peer, end.sends
        waits = {complete[other] for other in end.before}
        # Messages of a pair meet in their order, so its ends have to be posted in it.
        if stream in before:
            waits.add(before[stream])
        node = last_node[end.rank]
        traces[end.rank].append(_end(node, end, schedule.chunks, size, sorted(waits)))
        before[stream] = node
        if end.reduce and not end.sends:
            node += 1
            traces[end.rank].append(_addition(node, end))
        complete.append(node)
        last_node[end.rank] = node + 1
    return [b"".join(trace) for trace in traces]


def _end(node: int, end: End, chunks: int, size: int | None, waits: list[int]) -> bytes:
    kind = COMM_SEND_NODE if end.sends else COMM_RECV_NODE
    name = "COMM_SEND_NODE" if end.sends else "COMM_RECV_NODE"
    attributes: list[tuple[str, str, int | bool]] = [
        ("comm_type", "int64_val", kind),
        ("comm_dst" if end.sends else "comm_src", "int32_val", end.peer),
        ("comm_tag", "int32_val", 0),
        ("msg_chunk_cnt", "int32_val", 1),
        ("msg_chunk_idx", "int32_val", end.chunk),
        ("total_chunk_cnt", "int32_val", chunks),
        ("local_time_step", "int32_val", end.round),
        ("chunk_offset", "int32_val", end.chunk),
    ]
    if end.reduce and not end.sends:
        attributes.append(("is_rrc", "bool_val", True))
    if size is not None:
        attributes.append(("comm_size", "int64_val", size))
    return _node(node, f"{name}_{end.round}", kind, waits, attributes)


def _addition(node: int, end: End) -> bytes:
    return _node(node, f"COMP_NODE_{end.round}", COMP_NODE, [node - 1], [])


def _node(
    node: int,
    name: str,
    kind: int,
    waits: list[int],
    attributes: list[tuple[str, str, int | bool]],
) -> bytes:
    classes = messages()
    message = classes["Node"](id=node, name=name, type=kind, data_deps=waits)
    for label, field, value in attributes:
        message.attr.add(name=label, **{field: value})
    return _delimited(message.SerializeToString(deterministic=True))


def _metadata() -> bytes:
    message = messages()["GlobalMetadata"]()
    message.attr.add(name="schema", string_val=SCHEMA)
    message.attr.add(name="collective", string_val="allreduce")
    return _delimited(message.SerializeToString(deterministic=True))


def _delimited(message: bytes) -> bytes:
    """A message after its length as a varint."""
    left = len(message)
    length = bytearray()
    while left > 127:
        length.append(left & 127 | 128)
        left >>= 7
    return bytes([*length, left]) + message
