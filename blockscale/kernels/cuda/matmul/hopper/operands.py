"""What the products of hopper.linear read: tiles in shared memory, codes decoded in registers.

Arguments that go together are tuples:
ring: tiles of x [stages, rows, 16 * planes] and of words [stages, outputs, 16] in shared memory,
    barriers of stages that are full and that are empty, and of two groups of warps that take turns
side: scales, where each output's are, zero points, where each output's are, the first step, the
    number of scales of a row
T: linear_work.Work; FROM, OUT: which of the tile's outputs a group of warps has, and how many
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

WORDS: gl.constexpr = gl.constexpr(16)  # words of a row in a step: what a tensor core takes


@gluon.constexpr_function
def product(t, outputs):
    """The layout of sums [outputs, rows]: 16 outputs for each of the warps."""
    return gl.NVMMADistributedLayout([3, 0], [outputs // 16, 1], [16, t.part, 16])


@gluon.constexpr_function
def left_operand(t, outputs):
    """The layout of what is decoded."""
    return gl.DotOperandLayout(0, product(t, outputs), 2)


@gluon.constexpr_function
def stored_layout(t, outputs):
    """The layout of a step's scales [outputs, blocks], which become words' by repetition."""
    each = 16 // t.columns

    def at(word):
        return [0, word // each, word % each]

    words = gl.DistributedLinearLayout(
        reg_bases=[at(1), [8, 0, 0], at(8)],
        lane_bases=[at(2), at(4), [1, 0, 0], [2, 0, 0], [4, 0, 0]],
        warp_bases=[[16, 0, 0], [32, 0, 0], [64, 0, 0]][: 2 if outputs == 64 else 3],
        block_bases=[],
        shape=[outputs, t.columns, each],
    )
    return gl.SliceLayout(2, words)


@gluon.jit
def ring_of(x_at, w_at, T: gl.constexpr):
    """Shared memory, and barriers that nothing has passed."""
    STAGES: gl.constexpr = T.stages
    K: gl.constexpr = T.codes
    if T.split:
        x_tiles = gl.allocate_shared_memory(gl.bfloat16, [STAGES * T.parts, T.part, K], x_at.layout)
    else:
        x_tiles = gl.allocate_shared_memory(gl.bfloat16, [STAGES, T.rows, K], x_at.layout)
    w_tiles = x_tiles
    if not T.six:
        w_tiles = gl.allocate_shared_memory(gl.int32, [STAGES, T.outputs, WORDS], w_at.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    turns = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=T.shares)
    for i in gl.static_range(2):
        mbarrier.init(turns.index(i), count=1)
    fence_async_shared()
    return x_tiles, w_tiles, full, empty, turns


@gluon.jit
def copies(source, T: gl.constexpr):
    """The warp that starts the copies of each step, once all are done with what lay there."""
    x_at, w_at, ring, pm, pn, first, steps = source
    PARTS: gl.constexpr = T.parts
    K: gl.constexpr = T.codes
    STAGES: gl.constexpr = T.stages
    x_tiles, w_tiles, full, empty = ring[0], ring[1], ring[2], ring[3]
    for step in range(steps):
        slot = step % STAGES
        mbarrier.wait(empty.index(slot), (step // STAGES & 1) ^ 1)
        bar = full.index(slot)
        at = first + step
        if T.six:
            mbarrier.expect(bar, T.rows * K * 2)
        else:
            mbarrier.expect(bar, T.rows * K * 2 + T.outputs * WORDS * 4)
            tile = w_tiles.index(slot)
            tma.async_copy_global_to_shared(w_at, [pn * T.outputs, at * WORDS], bar, tile)
        if T.split:
            for i in gl.static_range(PARTS):
                tile = x_tiles.index(slot * PARTS + i)
                tma.async_copy_global_to_shared(x_at, [pm * T.rows + i * T.part, at * K], bar, tile)
        else:
            tma.async_copy_global_to_shared(x_at, [pm * T.rows, at * K], bar, x_tiles.index(slot))


@gluon.jit
def stored_at(side, step, T: gl.constexpr, OUT: gl.constexpr):
    """The stored scales [outputs, blocks] of a step's words; a dummy where none are folded in."""
    scale, at_s, first, count = side[0], side[1], side[4], side[5]
    if T.reading.fold != "":
        rs = gl.arange(0, T.columns, layout=gl.SliceLayout(0, stored_layout(T, OUT)))
        at = gl.minimum((first + step) * WORDS // T.reading.words + rs, count - 1)
        found = gl.load(scale + at_s[:, None] + at[None, :])
    else:
        found = at_s
    return found


@gluon.jit
def offset_at(side, step, T: gl.constexpr):
    """The zero points [outputs, 1] of a step's words as bfloat16; a dummy where there are none."""
    zero, at_z, first, count = side[2], side[3], side[4], side[5]
    if T.reading.zero:
        if T.reading.words > 0:
            at_z += gl.minimum((first + step) * WORDS // T.reading.words, count - 1)
        found = gl.load(zero + at_z).to(gl.bfloat16)[:, None]
    else:
        found = at_z
    return found


@gluon.jit
def factors(stored, T: gl.constexpr, OUT: gl.constexpr):
    """Stored scales -> bfloat16 [outputs, 16], one for each word; a dummy without scales."""
    if T.reading.fold == "":
        by = stored
    else:
        if T.reading.fold == "floats":
            by = stored.to(gl.bfloat16)
        else:
            by = gl.inline_asm_elementwise(
                T.reading.decode_scale, "=r,=r,r", [stored],
                dtype=gl.bfloat16, is_pure=True, pack=4,
            )  # fmt: skip
        by = by[:, :, None]
        COUNT: gl.constexpr = T.columns
        like = gl.full([OUT, COUNT, WORDS // COUNT], 0, gl.bfloat16, by.type.layout)
        by, like = gl.broadcast(by, like)
        by = gl.reshape(by, [OUT, WORDS])
        by = gl.convert_layout(by, left_operand(T, OUT), assert_trivial=True)
    return by


@gluon.jit
def opened(ring, side, step, stored, T: gl.constexpr, FROM: gl.constexpr, OUT: gl.constexpr):
    """(Words [outputs, 16] of a step, once they are there, their factors and zero points), stored.

    stored: the step's scales, loaded before; those that come back are the next step's
    """
    STAGES: gl.constexpr = T.stages
    w_tiles, full = ring[1], ring[2]
    offset = offset_at(side, step, T)
    slot = step % STAGES
    mbarrier.wait(full.index(slot), step // STAGES & 1)
    words = w_tiles.index(slot).slice(FROM, OUT).load(left_operand(T, OUT))
    return (words, factors(stored, T, OUT), offset), stored_at(side, step + 1, T, OUT)


@gluon.jit
def turn(held, HALF: gl.constexpr, T: gl.constexpr, OUT: gl.constexpr):
    """The first or last four codes of each word -> bfloat16 [outputs, 4 * 16], plane by plane."""
    DECODE: gl.constexpr = T.back if HALF else T.front
    words, by, offset = held
    p0, p1, p2, p3 = gl.inline_asm_elementwise(
        DECODE, "=r,=r,=r,=r,r,r", [words],
        dtype=(gl.bfloat16, gl.bfloat16, gl.bfloat16, gl.bfloat16), is_pure=True, pack=2,
    )  # fmt: skip
    if T.reading.zero:
        p0, p1, p2, p3 = p0 - offset, p1 - offset, p2 - offset, p3 - offset
    if T.reading.fold != "":
        p0, p1, p2, p3 = p0 * by, p1 * by, p2 * by, p3 * by
    found = gl.join(gl.join(p0, p2), gl.join(p1, p3))
    found = gl.permute(gl.reshape(found, [OUT, WORDS, 4]), [0, 2, 1])
    found = gl.reshape(found, [OUT, 4 * WORDS])
    return gl.convert_layout(found, left_operand(T, OUT), assert_trivial=True)


@gluon.jit
def right_of(ring, step, HALF: gl.constexpr, T: gl.constexpr):
    """The part [64, rows] of x that a turn multiplies."""
    STAGES: gl.constexpr = T.stages
    x_tile = ring[0].index(step % STAGES)
    if T.halves == 2:
        x_tile = x_tile.slice(HALF * 64, 64, dim=1)
    return x_tile.permute((1, 0))


@gluon.jit
def free(ring, step, T: gl.constexpr):
    """Say that a step's tiles are not needed any more."""
    STAGES: gl.constexpr = T.stages
    mbarrier.arrive(ring[3].index(step % STAGES), count=1)
