"""Right schedules as plain JSON documents, made by hand and by the simplest textbook rules.

Nothing here knows ``synth``. Every builder names its ranks 0 .. n-1 with the late rank last;
``renamed`` moves the late rank anywhere.
"""

import itertools
import json
import random
import re
from typing import Any

from latecomer.verify import Report, Schedule, check, decode

Document = dict[str, Any]
OPS = {"+": "reduce", "=": "copy"}


def moves(text: str) -> list[list[Any]]:
    """``0+1:2 1=0:2``: 0 sends chunk 2 to 1, who adds it; 1 sends it to 0, who copies it."""
    matches = re.findall(r"(-?\d+)([+=])(-?\d+):(-?\d+)", text)
    return [[int(src), int(dst), int(chunk), OPS[op]] for src, op, dst, chunk in matches]


def schedule_of(doc: Document) -> Schedule:
    return decode(json.dumps(doc).encode())


def report_of(doc: Document) -> Report:
    return check(schedule_of(doc))


def broken(doc: Document) -> Document:
    """The document without the last transfer of its last round."""
    doc["phases"][-1]["rounds"][-1].pop()
    return doc


def document(
    n: int,
    k: int,
    phases: list[tuple[str, list[int], list[list[list[Any]]]]],
    *,
    ports: Any = "duplex",
    late: list[int] | None = None,
) -> Document:
    return {
        "format": "latecomer/1",
        "kind": "allreduce",
        "ranks": n,
        "chunks": k,
        "late": late or [],
        "ports": ports,
        "phases": [
            {"name": name, "absent": absent, "rounds": rounds} for name, absent, rounds in phases
        ],
        "meta": {},
    }


def ring(n: int) -> Document:
    """Ring ReduceScatter, ring AllGather; everybody on time; n chunks."""
    scatter = []
    gather = []
    for t in range(n - 1):
        scatter.append([[i, (i + 1) % n, (i - t) % n, "reduce"] for i in range(n)])
        gather.append([[i, (i + 1) % n, (i + 1 - t) % n, "copy"] for i in range(n)])
    return document(n, n, [("reduce_scatter", [], scatter), ("all_gather", [], gather)])


def recursive_doubling(n: int, k: int = 1, ports: Any = "matching") -> Document:
    """Everybody exchanges everything with partner rank ^ 2^t; n a power of two."""
    rounds = []
    for chunk in range(k):
        for t in range(n.bit_length() - 1):
            rounds.append([[i, i ^ 1 << t, chunk, "reduce"] for i in range(n)])
    return document(n, k, [("doubling", [], rounds)], ports=ports)


def halving_doubling(n: int) -> Document:
    """Recursive halving, then recursive doubling (one chunk per transfer and round); n chunks."""
    bits = [1 << t for t in range(n.bit_length() - 1)]
    halving = []
    for bit in reversed(bits):
        halving += _exchanges(n, bit, wanted=bit, op="reduce")
    doubling = []
    for bit in bits:
        doubling += _exchanges(n, bit, wanted=0, op="copy")
    return document(n, n, [("halving", [], halving), ("doubling", [], doubling)], ports="matching")


def _exchanges(n: int, bit: int, wanted: int, op: str) -> list[list[list[Any]]]:
    """Rounds in which each rank i sends rank i ^ bit all chunks that it is to send there.

    These are the chunks whose number agrees with i ^ wanted, from that bit on.
    """
    chunks_of = []
    for i in range(n):
        chunks_of.append([chunk for chunk in range(n) if not (chunk ^ i ^ wanted) & -bit])

    rounds = []
    for j in range(len(chunks_of[0])):
        rounds.append([[i, i ^ bit, chunks[j], op] for i, chunks in enumerate(chunks_of)])
    return rounds


def direct(n: int, incast: int) -> Document:
    """Owner c gets chunk c from everybody, ``incast`` at a time, and sends the sum to everybody."""
    scatter = []
    gather = []
    for low in range(1, n, incast):
        shifts = range(low, min(low + incast, n))
        owners_and_shifts = list(itertools.product(range(n), shifts))
        scatter.append([[(c + s) % n, c, c, "reduce"] for c, s in owners_and_shifts])
        gather.append([[c, (c + s) % n, c, "copy"] for c, s in owners_and_shifts])
    phases = [("reduce_scatter", [], scatter), ("all_gather", [], gather)]
    return document(n, n, phases, ports={"incast": incast})


def pairings(m: int) -> list[list[tuple[int, int]]]:
    """Rounds of disjoint pairs of 0 .. m-1 in which every pair meets once (circle method)."""
    even = m + m % 2  # with odd m, rank m is nobody and its partner rests
    rounds = []
    for t in range(even - 1):
        pairs = [(even - 1, t)]
        pairs += [((t + i) % (even - 1), (t - i) % (even - 1)) for i in range(1, even // 2)]
        rounds.append([(a, b) for a, b in pairs if max(a, b) < m])
    return rounds


def straggler(n: int, ports: str = "duplex", blocks: int = 1) -> Document:
    """Rank n-1 is late: direct ReduceScatter of the helpers, exchanges, direct AllGather.

    ``blocks`` times n-1 chunks; helper j owns the chunks j, j + (n-1), ...
    """
    m = n - 1
    late = n - 1
    k = blocks * (n - 1)
    owned = [range(j, k, m) for j in range(m)]
    everybody = []
    if ports == "matching":
        for pairs in pairings(m):
            everybody.append([*pairs, *((b, a) for a, b in pairs)])
    else:
        for t in range(1, m):
            everybody.append([(i, (i + t) % m) for i in range(m)])

    scatter = []
    gather = []
    for block, pairs in itertools.product(range(blocks), everybody):
        scatter.append([[a, b, owned[b][block], "reduce"] for a, b in pairs])
        gather.append([[a, b, owned[a][block], "copy"] for a, b in pairs])
    exchange = [[[late, c % m, c, "reduce"], [c % m, late, c, "reduce"]] for c in range(k)]
    phases = [("reduce_scatter", [late], scatter), ("completion", [], exchange + gather)]
    return document(n, k, phases, ports=ports, late=[late])


def two_late(n: int) -> Document:
    """Ranks n-2 and n-1 are late, n-1 later; one chunk; chains and a final broadcast."""
    a = n - 2
    b = n - 1
    m = n - 2
    reduce = [[[i, i + 1, 0, "reduce"]] for i in range(m - 1)]
    join = [[[m - 1, a, 0, "reduce"]]]
    finish = [[[a, b, 0, "reduce"], [b, a, 0, "reduce"]]]
    spread = [[[a if i % 2 == 0 else b, i, 0, "copy"]] for i in range(m)]
    phases = [
        ("early", [a, b], reduce),
        ("middle", [b], join),
        ("completion", [], finish + spread),
    ]
    return document(n, 1, phases, late=[a, b])


def optimal_four(ports: str = "duplex") -> Document:
    """The fewest completion rounds for four ranks and three chunks: 3 + log2(4) - 1 = 4."""
    scatter = ["0+1:2 1+2:0 2+0:1", "0+1:1 1+2:2 2+0:0"]
    if ports == "matching":
        scatter = ["0+1:1 1+0:0", "0+2:2 2+0:0", "1+2:2 2+1:1"]
    completion = [
        "3+0:0 0+3:0",
        "3+1:1 1+3:1 0=2:0",
        "3+2:2 2+3:2 0=1:0 1=0:1",
        "3=0:2 2=1:2 1=2:1",
    ]
    phases = [
        ("reduce_scatter", [3], [moves(text) for text in scatter]),
        ("completion", [], [moves(text) for text in completion]),
    ]
    return document(4, 3, phases, ports=ports, late=[3])


def optimal_two() -> Document:
    """Two ranks, one late, one chunk: one exchange."""
    exchange = [moves("0+1:0 1+0:0")]
    return document(2, 1, [("completion", [], exchange)], ports="matching", late=[1])


def renamed(doc: Document, order: list[int]) -> Document:
    """The same document with rank r called ``order[r]``."""
    doc = json.loads(json.dumps(doc))
    doc["late"] = sorted(order[rank] for rank in doc["late"])
    for phase in doc["phases"]:
        phase["absent"] = sorted(order[rank] for rank in phase["absent"])
        for transfers in phase["rounds"]:
            for move in transfers:
                move[:2] = [order[rank] for rank in move[:2]]
    return doc


def all_right() -> dict[str, Document]:
    """Every builder at some small sizes, by name."""
    documents = {
        "optimal-2": optimal_two(),
        "optimal-4-duplex": optimal_four(),
        "optimal-4-matching": optimal_four("matching"),
        "doubling-2": recursive_doubling(2),
        "doubling-4x2": recursive_doubling(4, 2),
        "doubling-8-duplex": recursive_doubling(8, 1, "duplex"),
        "halving-4": halving_doubling(4),
        "halving-8": halving_doubling(8),
        "two-late-4": two_late(4),
        "two-late-6": two_late(6),
        "straggler-4x2": straggler(4, blocks=2),
    }
    for n in (2, 3, 5):
        documents[f"ring-{n}"] = ring(n)
    for n, incast in [(3, 2), (4, 2), (5, 4), (6, 3)]:
        documents[f"direct-{n}-incast-{incast}"] = direct(n, incast)
    for n in (3, 4, 5, 6):
        for ports in ("duplex", "matching"):
            documents[f"straggler-{n}-{ports}"] = straggler(n, ports)
    return documents


def shuffled(doc: Document, rng: random.Random) -> Document:
    """The same schedule with its ranks renamed at random: the late rank is anywhere."""
    order = list(range(doc["ranks"]))
    rng.shuffle(order)
    return renamed(doc, order)
