"""The kernel: one launch runs a rank's whole part in an all-reduce.

What it runs is a device program (``latecomer.verify.device.program``).

Legend (``latecomer.runtime.device.layout`` has the memory):

    rows       int32[length, 4]: action, peer, chunk, slot
    own        the user's tensor, ``numel`` elements; the slice of chunk c that block b has in piece
               p begins at ``((p * chunks + c) * blocks + b) * part``
    bases      int64[ranks]: the address of each rank's memory, as this device sees it
    received   how many slots of this rank the program fills

**Order of memory.** A put's data is stored by all threads of a block, and its flag by one; a
release orders only what its thread knows of. So there is a barrier of the block before each
release and after each acquire, both at system scope: the flag of a slot is never seen before its
data, across GPUs. A barrier after each receive lets all threads read what others have stored.

**Flags of slots that a program does not use** are brought up to the epoch by their owner, so that
none is ever more than two epochs old and the sign of the difference tells whether it has come.
Nobody else writes them then: a put of epoch e + 2 waits until this rank has ended e.

**Stop.** A kernel that waits gives up when its stop word is raised, and then puts nothing any more:
what others receive is always what the schedule says. Nor do the kernels that are launched already
and come after it: they look at the word, which stays raised, before they begin. (A put of theirs
could overwrite what somebody has still to take of the operation before the one that was given up.)
Each block that gives up marks what it leaves behind, which is no sum: the first of its elements is
NaN (streams go on with it: ``results``).

Data moves 16 bytes at a time: slices begin at multiples of 16 elements, and the mask of a tile is
the same for 16 in a row. The last elements of a tensor, fewer than 16, move one at a time. No
argument is specialised on, so that nothing is compiled but the dtypes and averages that
``latecomer.runtime.device.variants`` compiles before the first launch.
"""

# Annotations are read by triton, hence no postponed evaluation.

import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer

PUT = tl.constexpr(0)  # latecomer.verify.device.program.DeviceAction; else COPY
REDUCE = tl.constexpr(1)


@triton.jit
def signal(flag, epoch):
    """Raise a flag; all that this block has stored before is seen by whoever sees it."""
    # triton puts none before a release: the flag could overtake what other threads have stored
    tl.debug_barrier()
    tl.atomic_xchg(flag, epoch, sem="release", scope="sys")


@triton.jit
def is_raised(stop):
    """The stop word, read by one thread for all of the block."""
    return tl.atomic_add(stop, 0, sem="relaxed", scope="sys")


@triton.jit
def arrived(flag, epoch, stop):
    """Wait for a flag; whether it has come (the stop word was raised where not).

    Both are read by one thread for all: threads that saw different words would part at barriers.
    """
    ahead = tl.atomic_add(flag, 0, sem="acquire", scope="sys") - epoch
    stopped = 0
    while (ahead < 0) & (stopped == 0):
        stopped = is_raised(stop)
        ahead = tl.atomic_add(flag, 0, sem="acquire", scope="sys") - epoch
    # the acquire is one thread's: the others must not load before it
    tl.debug_barrier()
    return ahead >= 0


@triton.jit
def tile(into, left, right, offsets, inside, HOW: tl.constexpr):
    """One tile of :func:`moved`; sums and quotients are rounded once, as torch's are."""
    x = tl.load(left + offsets, mask=inside)
    if HOW == "sum":
        y = tl.load(right + offsets, mask=inside)
        if x.dtype.primitive_bitwidth == 16:
            x = (x.to(tl.float32) + y.to(tl.float32)).to(x.dtype)
        else:
            x = x + y
    elif HOW == "quotient":
        if x.dtype.primitive_bitwidth == 64:
            x = x / right
        else:
            x = tl.div_rn(x.to(tl.float32), right.to(tl.float32)).to(x.dtype)
    tl.store(into + offsets, x, mask=inside)


@triton.jit
def moved(into, left, right, numel, HOW: tl.constexpr, TILE: tl.constexpr):
    """into[i] = left[i] (copy), left[i] + right[i] (sum), left[i] / the number right (quotient)."""
    most = tl.multiple_of(tl.maximum(numel, 0) // 16 * 16, 16)
    for at in range(0, most, TILE):
        offsets = tl.multiple_of(at, 16) + tl.arange(0, TILE)
        tile(into, left, right, offsets, offsets < most, HOW)
    if most < numel:
        offsets = most + tl.arange(0, 16)
        tile(into, left, right, offsets, offsets < numel, HOW)


@triton.jit
def refresh(flags, epoch, begin, end, stride):
    """Bring the flags ``begin .. end - 1`` up to the epoch."""
    for at in range(begin, end, 128):
        offsets = at + tl.arange(0, 128)
        tl.store(flags + offsets * stride, epoch, mask=offsets < end)


@triton.jit
def stamp(bases, at, ranks, mark, now):
    """Tell all ranks that this one has begun; they see it before they end."""
    for peer in range(ranks):
        words = (tl.load(bases + peer) + at).to(tl.pointer_type(tl.int64))
        tl.store(words + 1, now)
        tl.store(words, mark)


@triton.jit
def spoil(own, first, numel, is_sum):
    """Mark what is no sum: the first element of the block's first slice."""
    if own.dtype.element_ty.is_floating():
        tl.store(own + first, float("nan"), mask=(is_sum == 0) & (first < numel))


# Else triton would compile the kernel anew wherever one of these is 1 or a multiple of 16, in the
# midst of training, while the others wait.
INTEGERS = (
    *("length", "received", "numel", "part", "pieces", "chunks", "epoch", "rank", "ranks"),
    *("place", "mark", "now", "slots", "area", "flags_at", "stamps_at"),
)


@triton.jit(do_not_specialize=INTEGERS)
def all_reduce(
    rows,
    own,
    bases,
    stop,  # *int32
    length: tl.int32,
    received: tl.int32,
    numel: tl.int64,
    part: tl.int32,
    pieces: tl.int32,
    chunks: tl.int32,
    epoch: tl.int32,  # of the first piece
    rank: tl.int32,
    ranks: tl.int32,
    place: tl.int32,  # of the operation among the stamps
    mark: tl.int64,
    now: tl.int64,  # the time, unless the device has a clock
    slots: tl.int32,
    area: tl.int64,
    flags_at: tl.int64,
    stamps_at: tl.int64,
    SETS: tl.constexpr,
    AVERAGE: tl.constexpr,
    DEVICE_CLOCK: tl.constexpr,
    TILE: tl.constexpr,
):
    """Run the program on every piece."""
    block = tl.program_id(0)
    blocks = tl.num_programs(0)
    dtype = own.dtype.element_ty
    word = tl.pointer_type(tl.int32)
    if block == 0:
        if DEVICE_CLOCK:
            now = globaltimer()
        stamp(bases, stamps_at + (place * ranks + rank) * 16, ranks, mark, now)
    size = blocks.to(tl.int64) * part
    origin = block.to(tl.int64) * part
    going = is_raised(stop) == 0
    piece = 0
    while (piece < pieces) & going:
        parity = epoch & (SETS - 1)
        flags_of_set = flags_at + (parity * slots * blocks + block) * 4
        staging = (parity * blocks + block).to(tl.int64) * area
        fresh = (tl.load(bases + rank) + flags_of_set).to(word)
        refresh(fresh, epoch, received, slots, blocks)
        if AVERAGE:
            for chunk in range(chunks):
                begin = tl.multiple_of(origin + chunk * size, 16)
                mine = own + begin
                moved(mine, mine, ranks, tl.minimum(part, numel - begin), "quotient", TILE)
            tl.debug_barrier()
        at = 0
        while (at < length) & going:
            row = rows + at * 4
            action = tl.load(row)
            peer = tl.load(row + 1)
            chunk = tl.load(row + 2)
            slot = tl.load(row + 3)
            begin = tl.multiple_of(origin + chunk * size, 16)
            count = tl.minimum(part, numel - begin)
            mine = own + begin
            holder = tl.load(bases + tl.where(action == PUT, peer, rank))
            flag = (holder + flags_of_set + slot * blocks * 4).to(word)
            bytes_before = slot.to(tl.int64) * part * (dtype.primitive_bitwidth // 8)
            slot_data = (holder + staging + bytes_before).to(tl.pointer_type(dtype))
            slot_data = tl.multiple_of(slot_data, 16)  # which a pointer made of a number has lost
            if action == PUT:
                moved(slot_data, mine, mine, count, "copy", TILE)
                signal(flag, epoch)
            else:
                going = arrived(flag, epoch, stop)
                if going:
                    if action == REDUCE:
                        moved(mine, mine, slot_data, count, "sum", TILE)
                    else:
                        moved(mine, slot_data, slot_data, count, "copy", TILE)
                    tl.debug_barrier()
            at += 1
        origin += chunks * size
        epoch += 1
        piece += 1
    spoil(own, block.to(tl.int64) * part, numel, going)
