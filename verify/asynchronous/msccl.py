"""The verdict on an MSCCL XML file: its program, checked for all placements and sizes it is for."""

from __future__ import annotations

from latecomer.verify.asynchronous.check import check
from latecomer.verify.asynchronous.deadlock import Freedom
from latecomer.verify.asynchronous.msccl_limits import limits
from latecomer.verify.asynchronous.msccl_program import XmlLowering, placements
from latecomer.verify.asynchronous.msccl_xml import Algorithm, decode
from latecomer.verify.asynchronous.sizes import Sizes
from latecomer.verify.asynchronous.verdict import AsynchronousReport
from latecomer.verify.core.verdict import Result, Verdict, overall
from latecomer.verify.errors import FormatError

FORMAT = "msccl-xml"

SLOTS = {"Simple": 2, "LL": 8, "LL128": 8}
"""Messages in flight on one connection: NCCL_STEPS = 8 steps of the FIFO, of which a message takes
one, but four in Simple (two slices of two steps; prims_simple.h, msccl_kernel.cu)."""

STEP_BYTES = {"Simple": 2**22 // 8, "LL": 2**19 // 8 // 2, "LL128": 4_915_200 // 8 // 16 * 15}
"""Data in one step of a connection's buffer as NCCL makes it by default (init.cc, device.h): LL
keeps a flag with every word of data, LL128 one with 15."""

CHUNK_STEPS = {"broadcast": 1, "reduce": 1}
"""Steps of a Simple message that the executor reckons with (collectives.h); 4 where not named."""


def sizes_of(algorithm: Algorithm, max_bytes: int | None = None) -> Sizes:
    """The sizes that a file declares, narrowed or set by ``max_bytes``."""
    largest = [size for size in (algorithm.optional.get("maxBytes", 0),) if size > 0]
    if max_bytes is not None:
        largest.append(max_bytes)

    steps_of_slot = 1
    if algorithm.proto == "Simple":
        steps_of_slot = CHUNK_STEPS.get(algorithm.coll, 4)
    return Sizes(
        chunks=algorithm.nchunksperloop,
        slot_bytes=steps_of_slot * STEP_BYTES[algorithm.proto],
        min_bytes=max(0, algorithm.optional.get("minBytes", 0)),
        max_bytes=min(largest, default=None),
    )


def verify_xml(
    data: bytes, name: str = "<bytes>", max_bytes: int | None = None, slots: int | None = None
) -> AsynchronousReport:
    """Check the text of an MSCCL XML file.

    Args:
        data: the text; ``name`` is used in error messages.
        max_bytes: the largest size to be looked at; None: what the file says.
        slots: of every FIFO; None: the executor's, by protocol.

    Raises:
        FormatError: the file can't be read, or its protocol or collective is none that is known.

    Examples:
        >>> from latecomer import synth
        >>> from latecomer.synth.export import msccl_xml
        >>> from latecomer.verify.asynchronous.msccl import verify_xml
        >>> report = verify_xml(msccl_xml.encode(synth.ring(4)))  # an AsynchronousReport
        >>> report.verdict, report.slots, report.slack  # messages that a connection has room for
        (<Verdict.PROVED: 'proved'>, 2, 1)
    """
    return check_algorithm(decode(data, name), name, max_bytes, slots)


def check_algorithm(
    algorithm: Algorithm,
    name: str = "<bytes>",
    max_bytes: int | None = None,
    slots: int | None = None,
) -> AsynchronousReport:
    """Check what was read of an MSCCL XML file; the arguments are those of ``verify_xml``.

    Raises:
        FormatError: its protocol or collective is none that is known, or it makes no program.
    """
    if algorithm.proto not in SLOTS:
        raise FormatError(name, f"proto = {algorithm.proto!r} is none of {', '.join(SLOTS)}")
    sizes = sizes_of(algorithm, max_bytes)
    if slots is None:
        slots = SLOTS[algorithm.proto]

    results: dict[str, Result] = {}
    freedom: Freedom | None = None
    programs = []
    refuted_programs = []
    used_placements = placements(algorithm)
    for placement in used_placements:
        lowering = XmlLowering(algorithm, placement, slots, name)
        program = lowering.program()
        programs.append((program, sizes))
        of_placement, freedom = check(program, sizes, lowering.refutations)
        if overall(result.verdict for result in of_placement.values()) is Verdict.REFUTED:
            refuted_programs.append(program)
        results = {key: _worse(results.get(key), result) for key, result in of_placement.items()}
    assert freedom is not None  # it is the same for all placements
    shown_program = refuted_programs[0] if refuted_programs else programs[0][0]

    return AsynchronousReport(
        format=FORMAT,
        name=algorithm.name,
        kind=algorithm.coll,
        ranks=algorithm.ngpus,
        placements=used_placements,
        blocks=sum(len(gpu.blocks) for gpu in algorithm.gpus),
        steps=sum(len(block.steps) for gpu in algorithm.gpus for block in gpu.blocks),
        protocol=algorithm.proto,
        slots=slots,
        sizes=sizes,
        results=results,
        freedom=freedom,
        limits=limits(algorithm, sizes),
        programs=tuple(programs),
        shown_program=shown_program,
    )


def _worse(first: Result | None, second: Result) -> Result:
    """Of the results for two placements the one that decides."""
    severity = (Verdict.PROVED, Verdict.UNKNOWN, Verdict.REFUTED)
    if first is None or severity.index(second.verdict) > severity.index(first.verdict):
        return second
    # Of two that are proved, one with a note says more.
    return first if first.note or first.verdict is not Verdict.PROVED else second
