"""MSCCL XML as it stands in the file: what msccl-tools, TE-CCL, ForestColl and others write.

Nothing is interpreted here but numbers; what the file means is said in msccl_program.py, what the
executor would not run in msccl_limits.py. The attributes of ``algo`` that came later
(``outofplace``, ``minBytes``, ``maxBytes``) may be missing, everything else that the executor reads
must be there.
"""

from __future__ import annotations

from typing import NamedTuple
from xml.etree import ElementTree

import msgspec

from latecomer.verify.errors import FormatError

# Hostile files are bounded: what a file asks for is refused before it costs memory or time.
MAX_ELEMENTS = 2**20
MAX_RANKS = 2**12
MAX_CHUNKS = 2**20
MAX_MOVED = 2**21
"""Chunks in all steps together: each may become a message of its own."""
MAX_INTEGER = 2**63
"""Numbers are kept in arrays of 64 bits."""

TYPES = ("s", "r", "cpy", "re", "rrc", "rcs", "rrs", "rrcs", "nop")
BUFFERS = ("i", "o", "s")
ELEMENTS = {"algo", "gpu", "tb", "step"}
OPTIONAL = ("inplace", "outofplace", "minBytes", "maxBytes")
"""Attributes of ``algo`` that older files lack."""


class XmlStep(NamedTuple):
    """A ``step`` element; ``type`` and the buffers are among ``TYPES`` and ``BUFFERS``."""

    s: int
    type: str
    srcbuf: str
    srcoff: int
    dstbuf: str
    dstoff: int
    cnt: int
    depid: int
    deps: int
    hasdep: int


class XmlBlock(msgspec.Struct, frozen=True):
    """A ``tb`` element."""

    id: int
    send: int
    recv: int
    chan: int
    steps: tuple[XmlStep, ...]


class XmlGpu(msgspec.Struct, frozen=True):
    """A ``gpu`` element; ``chunks`` are those declared of each buffer."""

    id: int
    chunks: dict[str, int]
    blocks: tuple[XmlBlock, ...]


class Algorithm(msgspec.Struct, frozen=True):
    """An ``algo`` element; ``gpus`` by id.

    Attributes:
        optional: of ``inplace``, ``outofplace``, ``minBytes``, ``maxBytes`` those that are given.
        ignored: names of elements that have no meaning in this format, such as ``copy``.
    """

    name: str
    proto: str
    coll: str
    nchannels: int
    nchunksperloop: int
    ngpus: int
    optional: dict[str, int]
    gpus: tuple[XmlGpu, ...]
    ignored: tuple[str, ...]


def is_xml(data: bytes) -> bool:
    """Whether a file is to be read here: its text begins with a tag."""
    return data.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"<")


def decode(data: bytes, name: str = "<bytes>") -> Algorithm:
    """Parse the text of a file; ``name`` is used in error messages.

    Raises:
        FormatError: it is not XML, no algorithm, or an attribute is missing or no number.
    """
    # Entities that name each other make a short text long beyond any memory.
    if b"<!DOCTYPE" in data or b"<!ENTITY" in data:
        raise FormatError(name, "has a DOCTYPE, which no algorithm needs")
    if data.count(b"<") > MAX_ELEMENTS:
        raise FormatError(name, f"more than {MAX_ELEMENTS} XML tags, which no algorithm needs")
    try:
        root = ElementTree.fromstring(data)
    except (ElementTree.ParseError, ValueError) as error:
        raise FormatError(name, f"not a complete XML document: {error}") from None
    if root.tag != "algo":
        raise FormatError(name, f"the outermost element is <{root.tag}>, not <algo>")

    read = _Reader(name)
    ranks = read.within(root, "ngpus", "algo", 1, MAX_RANKS)
    gpus = [read.gpu(element) for element in root.iterfind("gpu")]
    gpus.sort(key=lambda gpu: gpu.id)
    if [gpu.id for gpu in gpus] != list(range(ranks)):
        raise FormatError(name, f"ngpus = {ranks}: needs one <gpu> for each id from 0 on")
    moved = sum(step.cnt for gpu in gpus for block in gpu.blocks for step in block.steps)
    if moved > MAX_MOVED:
        raise FormatError(name, f"its steps move {moved} chunks, more than the {MAX_MOVED} allowed")

    return Algorithm(
        name=root.get("name", ""),
        proto=read.text(root, "proto", "algo"),
        coll=read.text(root, "coll", "algo"),
        nchannels=read.integer(root, "nchannels", "algo"),
        nchunksperloop=read.within(root, "nchunksperloop", "algo", 1, MAX_CHUNKS),
        ngpus=ranks,
        optional={key: read.integer(root, key, "algo") for key in OPTIONAL if key in root.attrib},
        gpus=tuple(gpus),
        ignored=tuple(sorted({element.tag for element in root.iter()} - ELEMENTS)),
    )


class _Reader:
    """Reads elements; errors say where: ``where`` is an element as people find it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def text(self, element: ElementTree.Element, key: str, where: str) -> str:
        value = element.get(key)
        if value is None:
            raise FormatError(self.name, f"{where} has no {key}")
        return value

    def integer(self, element: ElementTree.Element, key: str, where: str) -> int:
        value = self.text(element, key, where)
        try:
            number = int(value)
        except ValueError:
            raise FormatError(self.name, f"{where}: {key} = {value!r} is no integer") from None
        if abs(number) >= MAX_INTEGER:
            raise FormatError(self.name, f"{where}: {key} = {value} has more than 64 bits")
        return number

    def within(
        self, element: ElementTree.Element, key: str, where: str, low: int, high: int
    ) -> int:
        number = self.integer(element, key, where)
        if not low <= number <= high:
            raise FormatError(self.name, f"{where}: {key} = {number} must be in {low} .. {high}")
        return number

    def gpu(self, element: ElementTree.Element) -> XmlGpu:
        number = self.integer(element, "id", "gpu")
        where = f"gpu {number}"
        chunks = {
            buffer: self.within(element, f"{buffer}_chunks", where, 0, MAX_CHUNKS)
            for buffer in BUFFERS
        }
        blocks = tuple(self.block(child, where) for child in element.iterfind("tb"))
        if len({block.id for block in blocks}) < len(blocks):
            raise FormatError(self.name, f"{where} has two thread blocks of one id")
        return XmlGpu(number, chunks, blocks)

    def block(self, element: ElementTree.Element, gpu: str) -> XmlBlock:
        number = self.integer(element, "id", f"{gpu} tb")
        where = f"{gpu} tb {number}"
        steps = tuple(self.step(child, where) for child in element.iterfind("step"))
        return XmlBlock(
            id=number,
            send=self.integer(element, "send", where),
            recv=self.integer(element, "recv", where),
            chan=self.integer(element, "chan", where),
            steps=steps,
        )

    def step(self, element: ElementTree.Element, block: str) -> XmlStep:
        # Files have many steps, and nearly all are as they should be: read at once, and looked at
        # attribute by attribute only if that fails.
        attributes = element.attrib
        try:
            step = XmlStep(
                s=int(attributes["s"]),
                type=attributes["type"],
                srcbuf=attributes["srcbuf"],
                srcoff=int(attributes["srcoff"]),
                dstbuf=attributes["dstbuf"],
                dstoff=int(attributes["dstoff"]),
                cnt=int(attributes["cnt"]),
                depid=int(attributes["depid"]),
                deps=int(attributes["deps"]),
                hasdep=int(attributes["hasdep"]),
            )
        except (KeyError, ValueError):
            self._refuse_attributes(element, f"{block} step {attributes.get('s', '?')}")
            raise

        where = f"{block} step {step.s}"
        if step.type not in TYPES:
            raise FormatError(self.name, f"{where}: type {step.type!r} is none of {TYPES}")
        if step.srcbuf not in BUFFERS or step.dstbuf not in BUFFERS:
            raise FormatError(self.name, f"{where}: a buffer that is none of {BUFFERS}")
        for key in ("s", "srcoff", "dstoff", "cnt", "depid", "deps"):
            if not -MAX_CHUNKS <= getattr(step, key) <= MAX_CHUNKS:
                raise FormatError(self.name, f"{where}: {key} is beyond {MAX_CHUNKS}")
        if step.cnt < 0:
            raise FormatError(self.name, f"{where}: cnt = {step.cnt} must be 0 or more")
        return step

    def _refuse_attributes(self, element: ElementTree.Element, where: str) -> None:
        """Say which attribute of a step is missing, or no number."""
        for key in XmlStep._fields:
            if key in ("type", "srcbuf", "dstbuf"):
                self.text(element, key, where)
            else:
                self.integer(element, key, where)
