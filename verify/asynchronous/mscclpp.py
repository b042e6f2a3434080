"""The verdict on an MSCCL++ execution plan, for every interleaving."""

from __future__ import annotations

from collections.abc import Iterator

from latecomer.verify.asynchronous.check import check
from latecomer.verify.asynchronous.deadlock import Freedom
from latecomer.verify.asynchronous.mscclpp_order import other_end
from latecomer.verify.asynchronous.mscclpp_plan import Plan, PlanBlock, PlanOperation, decode_plan
from latecomer.verify.asynchronous.mscclpp_program import PlanLowering
from latecomer.verify.asynchronous.mscclpp_rounds import doubt, threads_may_go_on
from latecomer.verify.asynchronous.verdict import AsynchronousReport
from latecomer.verify.core.verdict import PROVED, Result, Verdict, unknown

FORMAT = "mscclpp"

# execution_common.hpp of microsoft/mscclpp: MAX_OPERATION, MAX_CHANNEL, MAX_DEVICE_SEMAPHORES,
# MAX_CHANNEL_PER_OPERATION.
MOST_OPERATIONS = 64
MOST_CHANNELS = 16
MOST_SEMAPHORES = 16
MOST_CHANNELS_OF_ONE = 8
MOST_AREAS_OF_ONE = 10
"""Channels of one operation; its sources, and its targets."""

OF_EXECUTIONS = ("deadlock_free", "race_free", "right_values")
"""Properties that are about what happens; the others are about what is written."""

BY_THREADS = "block by block it hangs, but threads wait only for packets of their own"


def verify_plan(data: bytes, name: str = "<bytes>") -> AsynchronousReport:
    """Check the text of an MSCCL++ plan, for every interleaving.

    Raises:
        FormatError: it is no plan, or one with operations that are not known here.

    Examples:
        >>> from latecomer import synth
        >>> from latecomer.synth.export import mscclpp
        >>> from latecomer.verify.asynchronous.mscclpp import verify_plan
        >>> verify_plan(mscclpp.encode(synth.ring(4))).verdict
        <Verdict.PROVED: 'proved'>
    """
    return check_plan(decode_plan(data, name), name)


def check_plan(plan: Plan, name: str = "<bytes>") -> AsynchronousReport:
    """Check what was read of an MSCCL++ plan; ``name`` is used in error messages.

    Raises:
        FormatError: it has operations that are not known here.
    """
    lowering = PlanLowering(plan, name)
    program = lowering.program()
    refutations = dict(lowering.refutations)
    not_synchronized = refutations.pop("synchronized", None)

    of_program, freedom = check(program, None, refutations)
    results = dict(of_program)
    if not_synchronized is not None:
        reason = "the threads of a block are not together"
        results |= {"race_free": unknown(reason), "right_values": unknown(reason)}
    hangs = results["deadlock_free"].verdict is Verdict.REFUTED
    if hangs and threads_may_go_on(plan, name, lowering):
        results |= dict.fromkeys(OF_EXECUTIONS, unknown(BY_THREADS))
    results, freedom = _with_barriers(results, freedom, lowering)

    doubt_of_plan = doubt(plan, name, lowering)
    # Whether another checker of the program alone decides about the plan.
    says_all = (
        not_synchronized is None
        and doubt_of_plan is None
        and not refutations
        and results == of_program
    )
    results = {"synchronized": not_synchronized or PROVED, **results}
    if doubt_of_plan is not None:
        # A doubt is one about each property of an execution; what is refuted stays so.
        for property_name in OF_EXECUTIONS:
            if results[property_name].verdict is Verdict.PROVED:
                results[property_name] = unknown(doubt_of_plan)

    return AsynchronousReport(
        format=FORMAT,
        name=plan.name,
        kind=plan.collective,
        ranks=len(plan.gpus),
        placements=(program.placement,),
        blocks=len(program.blocks),
        steps=sum(len(block.ops) for gpu in plan.gpus for block in gpu.threadblocks),
        protocol=plan.protocol,
        slots=None,
        sizes=None,
        results=results,
        freedom=freedom,
        limits=tuple(_limits(plan)),
        programs=((program, None),) if says_all else (),
        shown_program=program,
    )


def _with_barriers(
    results: dict[str, Result], freedom: Freedom, lowering: PlanLowering
) -> tuple[dict[str, Result], Freedom]:
    """Add what the program does not say: whom barriers and semaphores let go on."""
    wrong = [barriers.wrong for barriers in lowering.barriers if barriers.wrong is not None]
    wrong += [unknown(reason) for reason in lowering.counting.unordered.values()]
    if not wrong:
        return results, freedom

    wrong.sort(key=lambda result: result.counterexample is None)  # what is refuted comes first
    results = dict(results)
    if results["deadlock_free"].verdict is not Verdict.REFUTED:
        results["deadlock_free"] = wrong[0]
    reason = wrong[0].note or "a barrier may never open, so there is no result to speak of"
    results["race_free"] = unknown(reason)
    results["right_values"] = unknown(reason)
    return results, Freedom(up_to=0, slots_needed=None, unlimited=False, rendezvous=False)


def _limits(plan: Plan) -> Iterator[str]:
    """What the executor would refuse, or does otherwise; no part of the verdict."""
    for gpu in plan.gpus:
        if gpu.output_chunks == 0 or gpu.input_chunks == 0:
            yield f"refused: gpu {gpu.id} divides sizes by its 0 input or output chunks"
            break
    channels = [channel for gpu in plan.gpus for channel in gpu.channels]
    if any(channel.buff and not channel.buffer_type for channel in channels):
        yield "refused: a switch channel without buffer_type (it has buff, as older files have)"
    if plan.protocol == "LL" and not plan.use_double_scratch_buffer:
        yield "packets of one run can meet those of the next: use_double_scratch_buffer is off"

    for gpu in plan.gpus:
        for block in gpu.threadblocks:
            yield from _limits_of_block(block, f"gpu {gpu.id} threadblock {block.id}")
        if len(gpu.semaphores) > MOST_SEMAPHORES:
            yield f"beyond the kernel's room: gpu {gpu.id} has over 16 semaphores"
    for gpu in plan.gpus:
        for channel in range(len(gpu.peers())):
            _, channel_of_peer = other_end(plan, gpu.id, channel)
            if channel_of_peer < 0:
                yield f"one way: channel {channel} of gpu {gpu.id} has no other end in the file"
                break


def _limits_of_block(block: PlanBlock, where: str) -> Iterator[str]:
    operations = [operation for outer in block.ops for operation in (outer, *outer.ops)]
    if len(operations) > MOST_OPERATIONS:
        yield (f"beyond the kernel's room: {where} has {len(operations)} operations, at most 64")
    channels = sum(len(ids.channel_ids) for ids in block.channels)
    if channels > MOST_CHANNELS:
        yield f"beyond the kernel's room: {where} has {channels} channels, at most 16"
    if any(_is_too_wide(operation) for operation in operations):
        yield f"beyond the kernel's room: {where} has over 8 channels or 10 areas at once"
    if any(_lacks_channel_type(operation) for operation in operations):
        yield f"refused: {where} has remote buffers without channel_type memory"


def _is_too_wide(operation: PlanOperation) -> bool:
    """Whether an operation has more channels or areas than the executor's has room for."""
    areas = max(len(operation.src_buff), len(operation.dst_buff))
    return len(operation.channel_ids) > MOST_CHANNELS_OF_ONE or areas > MOST_AREAS_OF_ONE


def _lacks_channel_type(operation: PlanOperation) -> bool:
    """Whether an operation has a remote buffer, and does not say by which kind of channel."""
    areas = (*operation.src_buff, *operation.dst_buff)
    has_remote = any(area.buffer_id is not None for area in areas)
    return has_remote and operation.channel_type != "memory"
