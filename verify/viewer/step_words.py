"""What the texts of steps mean: the names of operations, the letters of buffers, and the rest.

The names are those of the files (``verify/asynchronous/formats.md`` says what they do there).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from latecomer.verify.asynchronous.msccl import FORMAT as MSCCL

MSCCL_OPERATIONS = {
    "s": "send: reads chunks and sends them to another rank",
    "r": "receive: stores the chunks that another rank sends",
    "cpy": "copy: copies chunks within this rank",
    "re": "reduce: adds chunks of this rank to others of this rank",
    "rrc": "receive, reduce, copy: receives chunks, adds its own to them and stores the sum",
    "rcs": "receive, copy, send: receives chunks, stores them and sends them on",
    "rrs": "receive, reduce, send: receives chunks, adds its own and sends the sum, not storing it",
    "rrcs": "receive, reduce, copy, send: receives chunks, adds its own, stores and sends the sum",
}
"""Operations of MSCCL that a step can be; a ``nop`` is part of the step after it."""

PLAN_OPERATIONS = {
    "put": "writes chunks of this rank into a buffer of another rank",
    "get": "reads chunks from a buffer of another rank into its own",
    "copy": "copies chunks within this rank",
    "re": "reduce: adds up chunks of this rank and stores the sum",
    "res": "reduce, send: adds up chunks of this rank, stores the sum and writes it to other ranks",
    "rre": "read, reduce: reads chunks of other ranks, adds its own and stores the sum",
    "rres": "read, reduce, send: the same as rre, and writes the sum to other ranks",
    "glres": "load, reduce, store through a switch: the sum of all ranks' chunks is stored at all",
    "gstore": "store through a switch: writes chunks of this rank to all ranks",
    "ppkt": "put packets: writes chunks to another rank as packets, each word with a flag",
    "rppkt": "read, put packets: writes packets that have arrived here on to other ranks",
    "cpkt": "copy to packets: copies chunks within this rank and makes packets of them",
    "upkt": "unpack: waits for packets that arrive here and stores their data",
    "repkt": "reduce packets: waits for packets, adds them to its own chunks and stores the sum",
    "respkt": "reduce, send packets: the same as repkt, and sends the sum to other ranks",
    "recpkt": "reduce, copy packets: the same as repkt, and keeps the sum as packets here, too",
    "recspkt": "reduce, copy, send packets: recpkt and respkt in one",
    "signal": "raises the counter of a channel at the other rank, after the data before it",
    "wait": "waits until the other rank has raised the counter of a channel",
    "rlxsignal": "relaxed signal: raises the counter of a channel, and orders no data",
    "rlxwait": "relaxed wait: waits for a relaxed signal, and orders no data",
    "sem_acquire": "waits until a semaphore of this rank has been released, and takes that credit",
    "sem_release": "releases a semaphore, which lets a block of this rank that waits for it go on",
    "barrier": "come: the block is there; go: waits until all blocks of the barrier are there",
}
"""Operations of MSCCL++ that a step can be; ``nop`` and ``flush`` make no step."""

BUFFERS = {
    "i": "the input buffer of the rank",
    "o": "the output buffer of the rank",
    "s": "the scratch buffer of the rank, for what is neither input nor output",
}

_BUFFER = re.compile(r"\b([ios])\[")
_SEVERAL_CHUNKS = re.compile(r"\[\d+\.\.\+\d+\]")


def operation_of(text: str) -> str:
    """The name of the operation with which the text of a step begins."""
    return text.split(maxsplit=1)[0].rstrip(":")


def words_of(texts: Iterable[str], format_name: str, in_place: bool) -> dict[str, Any]:
    """The words that occur in the texts of steps, each with its meaning.

    Args:
        texts: of the steps that a page shows.
        format_name: of their file, as the report has it.
        in_place: whether input and output are one buffer.
    """
    all_texts = set(texts)
    meanings = MSCCL_OPERATIONS if format_name == MSCCL else PLAN_OPERATIONS
    names = {operation_of(text) for text in all_texts}
    operations = {name: meaning for name, meaning in meanings.items() if name in names}

    letters = {letter for text in all_texts for letter in _BUFFER.findall(text)}
    notation = []
    for letter, meaning in BUFFERS.items():
        if letter in letters:
            shared = letter in "io" and in_place
            with_other = "; in place, input and output share their memory" if shared else ""
            notation.append([f"{letter}[3]", f"chunk 3 of {meaning}{with_other}"])
    if any(_SEVERAL_CHUNKS.search(text) for text in all_texts):
        notation.append(["[8..+7]", "chunk 8 and the 7 chunks after it"])
    if any(" after tb " in text for text in all_texts):
        words = "after tb 2 step 1"
        notation.append([words, "begins when thread block 2 of this rank has done its step 1"])
    notation.append(["tb 2", "thread block 2 of the rank; a block runs its steps in order"])
    return {"operations": operations, "notation": notation}
