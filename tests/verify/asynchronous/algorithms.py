"""Small MSCCL algorithms as nested lists, and their XML; faults are planted in the lists."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

Algorithm = dict[str, Any]
"""``head``: the attributes of ``algo``; ``gpus``: per gpu its blocks."""

DEFAULTS = {"srcoff": 0, "dstoff": 0, "cnt": 1, "depid": -1, "deps": -1, "hasdep": 0}
DEFAULTS |= {"srcbuf": "i", "dstbuf": "i"}


def step(kind: str, offset: int = 0, **fields: Any) -> dict[str, Any]:
    """A step at one offset of ``i``, unless said otherwise."""
    return {**DEFAULTS, "type": kind, "srcoff": offset, "dstoff": offset, **fields}


def block(send: int, recv: int, steps: list[dict[str, Any]], chan: int = 0) -> dict[str, Any]:
    return {"send": send, "recv": recv, "chan": chan, "steps": steps}


def algorithm(coll: str, chunks: int, gpus: list[Any], **attributes: Any) -> Algorithm:
    """``gpus``: per gpu its list of blocks; scratch of two chunks."""
    head = {"name": "t", "proto": "Simple", "nchannels": 2, "nchunksperloop": chunks}
    head |= {"ngpus": len(gpus), "coll": coll, "inplace": 1, "outofplace": 0}
    head |= {"minBytes": 0, "maxBytes": 0, **attributes}
    return {"head": head, "gpus": gpus}


def xml(algo: Algorithm) -> bytes:
    def tag(name: str, attributes: dict[str, Any], inside: str = "") -> str:
        text = "".join(f' {key}="{value}"' for key, value in attributes.items())
        return f"<{name}{text}>{inside}</{name}>"

    chunks = algo["head"]["nchunksperloop"]
    gpus = ""
    for number, blocks in enumerate(algo["gpus"]):
        tbs = ""
        for tb, block in enumerate(blocks):
            steps = ""
            for s, attributes in enumerate(block["steps"]):
                steps += tag("step", {"s": s, **attributes})
            head = {"id": tb, "send": block["send"], "recv": block["recv"], "chan": block["chan"]}
            tbs += tag("tb", head, steps)
        sizes = {"i_chunks": chunks, "o_chunks": chunks, "s_chunks": 2}
        gpus += tag("gpu", {"id": number, **sizes}, tbs)
    return tag("algo", algo["head"], gpus).encode()


def ring_allreduce(n: int, count: int = 1, **attributes: Any) -> Algorithm:
    """One block a rank: n - 1 steps of reduction around the ring, n - 1 of copies."""
    gpus = []
    for rank in range(n):
        offsets = [(rank - hop) % n * count for hop in range(2 * n - 1)]
        middle = [step("rrs", offsets[hop], cnt=count) for hop in range(1, n - 1)]
        middle += [step("rrcs", offsets[n - 1], cnt=count)]
        middle += [step("rcs", offsets[hop], cnt=count) for hop in range(n, 2 * n - 2)]
        begin = step("s", offsets[0], cnt=count)
        end = step("r", offsets[2 * n - 2], cnt=count)
        gpus.append([block((rank + 1) % n, (rank - 1) % n, [begin, *middle, end])])
    return algorithm("allreduce", n * count, gpus, **attributes)


def ring_allgather(n: int, **attributes: Any) -> Algorithm:
    """Every chunk is passed on around the ring, within the output."""
    gpus = []
    for rank in range(n):
        steps = [step("cpy", 0, srcbuf="i", dstbuf="o", dstoff=rank)] if n > 1 else []
        steps += [step("s", rank, srcbuf="o")]
        for hop in range(1, n):
            kind = "rcs" if hop < n - 1 else "r"
            steps.append(step(kind, (rank - hop) % n, srcbuf="o", dstbuf="o"))
        gpus.append([block((rank + 1) % n, (rank - 1) % n, steps)])
    return algorithm("allgather", n, gpus, **attributes)


def pair_allreduce(**attributes: Any) -> Algorithm:
    """Two ranks: one block sends all, another receives into scratch, a third adds it up.

    Each addition waits for its chunk to have been sent, and to have come.
    """
    gpus = []
    for rank in range(2):
        sends = [step("s", 0, hasdep=1), step("s", 1, hasdep=1)]
        comes = [step("r", c, dstbuf="s", hasdep=1) for c in range(2)]
        adds = []
        for c in range(2):
            adds.append(step("nop", depid=0, deps=c))
            adds.append(step("re", c, srcbuf="s", depid=1, deps=c))
        peer = 1 - rank
        gpus.append([block(peer, -1, sends), block(-1, peer, comes), block(-1, -1, adds)])
    return algorithm("allreduce", 2, gpus, **attributes)


def changed(algo: Algorithm, change: Callable[[Algorithm], object]) -> Algorithm:
    """A copy with one change made to it."""
    copy = deepcopy(algo)
    change(copy)
    return copy
