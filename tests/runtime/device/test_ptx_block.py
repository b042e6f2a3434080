"""Blocks: guards, threads that part and meet again, barriers that not all come to."""

from __future__ import annotations

import numpy as np
import pytest

from tests.runtime.device.ptx.block import Block
from tests.runtime.device.ptx.memory import Memory
from tests.runtime.device.ptx.order import BlockOrder
from tests.runtime.device.ptx.program import Program
from tests.runtime.device.ptx.regions import GAP, Region, Wrong

THREADS = 64

HEAD = f"""
.version 8.7
.extern .shared .align 16 .b8 smem[];
.visible .entry kernel(
	.param .u64 out
)
.reqntid {THREADS}
{{
	.reg .pred 	%p<4>;
	.reg .b32 	%r<9>;
	.reg .b64 	%rd<9>;
	ld.param.b64 	%rd1, [out];
	mov.u32 	%r1, %tid.x;
	mul.wide.u32 	%rd2, %r1, 4;
	add.s64 	%rd3, %rd1, %rd2;
	setp.lt.s32 	%p1, %r1, 20;
	mov.b32 	%r2, 0;
"""
STORE = "\tst.global.b32 [%rd3], %r2;\n\tret;\n}\n"


def run(body, units=1):
    """What each thread has stored; parts of the block take turns, the last one first."""
    program = Program(HEAD + body + STORE)
    region = Region(0, "own", GAP, 4 * THREADS)
    memory = Memory([region], 4 * GAP, (0,), seed=0)
    order = BlockOrder(0, 0, 1)
    block = Block(program, {"out": GAP}, 0, 1, memory, order, units, now=123)
    while not block.has_ended:
        going = [group for group in block.groups if not group.is_waiting]
        going[-1].advance(max)
    return memory.view(region, np.uint32).tolist()


@pytest.mark.parametrize("units", [1, 2])
def test_guards_are_for_each_thread(units):
    body = "\t@%p1 add.s32 %r2, %r1, 1;\n\t@!%p1 mov.b32 %r2, 7;\n"
    assert run(body, units) == [i + 1 if i < 20 else 7 for i in range(THREADS)]


PARTING = """
	@%p1 bra 	$L__low;
	add.s32 	%r2, %r1, 100;
	bra.uni 	$L__both;
$L__low:
	setp.eq.b32 	%p2, %r1, 3;
	@%p2 bra 	$L__three;
	add.s32 	%r2, %r1, 200;
	bra.uni 	$L__both;
$L__three:
	mov.b32 	%r2, 3;
$L__both:
	bar.sync 	0;
	add.s32 	%r2, %r2, 1;
"""


@pytest.mark.parametrize("units", [1, 2])
def test_threads_part_and_meet_at_the_barrier(units):
    expected = [i + 101 if i >= 20 else 4 if i == 3 else i + 201 for i in range(THREADS)]
    assert run(PARTING, units) == expected


@pytest.mark.parametrize(
    "body",
    [
        "\t@%p1 bra $L__1;\n\tbar.sync 0;\n\tbra.uni $L__2;\n$L__1:\n\tbar.sync 0;\n$L__2:\n",
        "\t@%p1 bra $L__1;\n\tbar.sync 0;\n$L__1:\n",
        "\t@!%p1 bra $L__1;\n\tret;\n$L__1:\n\tbar.sync 0;\n",
    ],
    ids=["two barriers", "some pass it by", "some have ended"],
)
@pytest.mark.parametrize("units", [1, 2])
def test_a_barrier_that_not_all_threads_come_to(body, units):
    with pytest.raises(Wrong, match="barrier"):
        run(body, units)


TELL = """
	setp.eq.b32 	%p2, %r1, 0;
	mov.b32 	%r3, 77;
	mov.b32 	%r4, smem;
	@%p2 st.shared.b32 [%r4 + 0], %r3;
	{barrier}
	ld.shared.b32 	%r2, [smem];
"""


@pytest.mark.parametrize("units", [1, 2])
def test_one_thread_tells_the_others(units):
    assert run(TELL.format(barrier="bar.sync 0;"), units) == [77] * THREADS
    with pytest.raises(Wrong, match=r"race in shared|nothing was stored"):
        run(TELL.format(barrier=""), units)


def test_a_race_between_threads_is_found_in_whatever_order_they_run():
    """Each thread stores, then loads what its neighbour has stored."""
    body = """
	add.s64 	%rd4, %rd1, 4;
	add.s64 	%rd5, %rd4, %rd2;
	setp.lt.s32 	%p3, %r1, 63;
	st.global.b32 	[%rd3], %r1;
	{barrier}
	@%p3 ld.global.b32 %r2, [%rd5];
	bar.sync 0;
"""
    for units in (1, 2):
        assert run(body.format(barrier="bar.sync 0;"), units) == [*range(1, 64), 0]
        with pytest.raises(Wrong, match="race of a load and a store"):
            run(body.format(barrier=""), units)


def test_a_register_that_was_never_set_is_noticed():
    with pytest.raises(Wrong, match="never set"):
        run("\tadd.s32 %r2, %r7, 1;\n")


def test_a_loop_that_looks_at_nothing_hangs():
    with pytest.raises(Wrong, match="hang"):
        run("$L__1:\n\tbra.uni $L__1;\n")
