# SPDX-License-Identifier: BSD-3-Clause
"""What the products of hopper/fused.py read: tiles in shared memory, codes decoded in registers.

Arguments that go together are named tuples, which are below. Beside them:

T: fused_work.Work, what all of this is compiled for
FROM, OUT: which of the tile's outputs a group of warps has: the first, and how many
step: number of a step along k, counted from the program's first; HALF: a turn of it, 0 or 1
The other terms: the glossary in matmul/__init__.py.
"""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma

WORDS: gl.constexpr = gl.constexpr(16)  # words of a row in a step: what a tensor core takes


class Ring(NamedTuple):
    """A ring of stages in shared memory; a stage holds what one step along k needs.

    x_tiles: bfloat16 [stages, rows, codes of a step]; [stages * shares, share_rows, codes] if split
    w_tiles: int32 [stages, outputs, 16]; x_tiles again, unused, where codes are 6 bits
    full, empty: barriers [stages] that are passed when a stage was filled, and when all are done
        with it
    alternate: barriers [2] by which two groups of warps keep half a product apart; full again,
        unused, where they do not
    """

    x_tiles: gl.shared_memory_descriptor
    w_tiles: gl.shared_memory_descriptor
    full: gl.shared_memory_descriptor
    empty: gl.shared_memory_descriptor
    alternate: gl.shared_memory_descriptor


class WeightMemory(NamedTuple):
    """What lies in global memory of the weight.

    weight: descriptor of the tiles of its words; a pointer to them where codes are 6 bits
    word_stride, words: words from one row to the next, and in a row
    scale, zero: as they are stored, [blocks of rows, count]; zero None where there is none
    scale_stride: from one row of these to the next, 0 where there is one
    count: scales of a row
    """

    weight: gl.tensor
    word_stride: gl.tensor
    words: gl.tensor
    scale: gl.tensor
    zero: gl.tensor
    scale_stride: gl.tensor
    count: gl.tensor


class Target(NamedTuple):
    """Where sums go, and what finishes them.

    factors, factor_stride: of the outputs; x_row: of the rows of x; bias: each may be None
    factor_height: outputs that share a factor, where T.grouped
    out: [rows, n], or partial sums
    parts: partial sums of tiles of the last wave; part: number of the program among those of such
        tiles, negative if it has none
    """

    factors: gl.tensor
    factor_stride: gl.tensor
    factor_height: gl.tensor
    x_row: gl.tensor
    bias: gl.tensor
    out: gl.tensor
    parts: gl.tensor
    part: gl.tensor


class TileTask(NamedTuple):
    """What a program computes: its tile, and its steps.

    rows: the row of x after the last that the tile may have; n: outputs
    first_row: the tile's first; output_tile: its number among those of outputs
    first, steps: the first step along k, and how many there are
    """

    ring: Ring
    memory: WeightMemory
    target: Target
    rows: gl.tensor
    n: gl.tensor
    first_row: gl.tensor
    output_tile: gl.tensor
    first: gl.tensor
    steps: gl.tensor


class Copies(NamedTuple):
    """What the warp of the copies needs: descriptors of x and of words; the rest as TileTask.

    weight_row: the tile's first row of the weight
    """

    x: gl.tensor
    weight: gl.tensor
    ring: Ring
    first_row: gl.tensor
    weight_row: gl.tensor
    first: gl.tensor
    steps: gl.tensor


class Side(NamedTuple):
    """What lies beside the words of some outputs: their scales and zero points.

    scale_at, zero_at: where each output's are in a row of `scale` and `zero`, int64 [outputs], in
        the layouts of those who load them
    first: the program's first step; count: scales of a row
    """

    scale: gl.tensor
    scale_at: gl.tensor
    zero: gl.tensor
    zero_at: gl.tensor
    first: gl.tensor
    count: gl.tensor


class StepRegs(NamedTuple):
    """What a group of warps has of a step in registers.

    words: int32 [outputs, 16]; factors: bfloat16 likewise, of scales that are folded into codes;
    offset: zero points [outputs, 1]. A dummy stands for what there is not.
    """

    words: gl.tensor
    factors: gl.tensor
    offset: gl.tensor


@gluon.constexpr_function
def product(t, outputs):
    """The layout of sums [outputs, rows]: 16 outputs for each of the warps."""
    return gl.NVMMADistributedLayout([3, 0], [outputs // 16, 1], [16, t.share_rows, 16])


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
    """Shared memory, and barriers that nothing has passed.

    No barrier is made that nobody waits for: Triton gives memory that is read no more to others,
    and what a GPU holds of a barrier may still be written there, when other programs begin on its
    processor (PTX ISA, mbarrier.inval: a barrier's memory serves nothing else before that).
    """
    STAGES: gl.constexpr = T.stages
    K: gl.constexpr = T.codes
    if T.split:
        x_tiles = gl.allocate_shared_memory(
            gl.bfloat16, [STAGES * T.shares, T.share_rows, K], x_at.layout
        )
    else:
        x_tiles = gl.allocate_shared_memory(gl.bfloat16, [STAGES, T.rows, K], x_at.layout)
    w_tiles = x_tiles
    if not T.six_bits:
        w_tiles = gl.allocate_shared_memory(gl.int32, [STAGES, T.outputs, WORDS], w_at.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=T.groups)
    alternate = full
    if T.alternates:
        alternate = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
        for i in gl.static_range(2):
            mbarrier.init(alternate.index(i), count=1)
    fence_async_shared()
    return Ring(x_tiles, w_tiles, full, empty, alternate)


@gluon.jit
def copies(source, T: gl.constexpr):
    """The warp that starts the copies of each step, once all are done with what lay there.

    source: Copies
    """
    ring = source.ring
    SHARES: gl.constexpr = T.shares
    K: gl.constexpr = T.codes
    STAGES: gl.constexpr = T.stages
    for step in range(source.steps):
        stage = step % STAGES
        mbarrier.wait(ring.empty.index(stage), (step // STAGES & 1) ^ 1)
        bar = ring.full.index(stage)
        at = source.first + step
        if T.six_bits:
            mbarrier.expect(bar, T.rows * K * 2)
        else:
            mbarrier.expect(bar, T.rows * K * 2 + T.outputs * WORDS * 4)
            tile = ring.w_tiles.index(stage)
            corner = [source.weight_row, at * WORDS]
            tma.async_copy_global_to_shared(source.weight, corner, bar, tile)
        row = source.first_row
        if T.split:
            for i in gl.static_range(SHARES):
                tile = ring.x_tiles.index(stage * SHARES + i)
                corner = [row + i * T.share_rows, at * K]
                tma.async_copy_global_to_shared(source.x, corner, bar, tile)
        else:
            tile = ring.x_tiles.index(stage)
            tma.async_copy_global_to_shared(source.x, [row, at * K], bar, tile)


@gluon.jit
def stored_at(side, step, T: gl.constexpr, OUT: gl.constexpr):
    """The stored scales [outputs, blocks] of a step's words; a dummy where none are folded in."""
    if T.reading.fold != "":
        column = gl.arange(0, T.columns, layout=gl.SliceLayout(0, stored_layout(T, OUT)))
        block = (side.first + step) * WORDS // T.reading.words + column
        at = gl.minimum(block, side.count - 1)
        stored = gl.load(side.scale + side.scale_at[:, None] + at[None, :])
    else:
        stored = side.scale_at
    return stored


@gluon.jit
def offset_at(side, step, T: gl.constexpr):
    """The zero points [outputs, 1] of a step's words as bfloat16; a dummy where there are none."""
    at = side.zero_at
    if T.reading.zero:
        if T.reading.words > 0:
            at += gl.minimum((side.first + step) * WORDS // T.reading.words, side.count - 1)
        offset = gl.load(side.zero + at).to(gl.bfloat16)[:, None]
    else:
        offset = at
    return offset


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
def open_step(ring, side, step, stored, T: gl.constexpr, FROM: gl.constexpr, OUT: gl.constexpr):
    """Held of a step, once its words are there, and the next step's stored scales.

    stored: this step's scales, loaded before
    """
    STAGES: gl.constexpr = T.stages
    offset = offset_at(side, step, T)
    stage = step % STAGES
    mbarrier.wait(ring.full.index(stage), step // STAGES & 1)
    words = ring.w_tiles.index(stage).slice(FROM, OUT).load(left_operand(T, OUT))
    return StepRegs(words, factors(stored, T, OUT), offset), stored_at(side, step + 1, T, OUT)


@gluon.jit
def turn(regs, HALF: gl.constexpr, T: gl.constexpr, OUT: gl.constexpr):
    """The first or last four codes of each word -> bfloat16 [outputs, 4 * 16], plane by plane."""
    DECODE: gl.constexpr = T.back if HALF else T.front
    p0, p1, p2, p3 = gl.inline_asm_elementwise(
        DECODE, "=r,=r,=r,=r,r,r", [regs.words],
        dtype=(gl.bfloat16, gl.bfloat16, gl.bfloat16, gl.bfloat16), is_pure=True, pack=2,
    )  # fmt: skip
    if T.reading.zero:
        offset = regs.offset
        p0, p1, p2, p3 = p0 - offset, p1 - offset, p2 - offset, p3 - offset
    if T.reading.fold != "":
        by = regs.factors
        p0, p1, p2, p3 = p0 * by, p1 * by, p2 * by, p3 * by
    codes = gl.join(gl.join(p0, p2), gl.join(p1, p3))
    codes = gl.permute(gl.reshape(codes, [OUT, WORDS, 4]), [0, 2, 1])
    codes = gl.reshape(codes, [OUT, 4 * WORDS])
    return gl.convert_layout(codes, left_operand(T, OUT), assert_trivial=True)


@gluon.jit
def right_of(ring, step, HALF: gl.constexpr, T: gl.constexpr):
    """The part [64, rows] of x that a turn multiplies."""
    STAGES: gl.constexpr = T.stages
    x_tile = ring.x_tiles.index(step % STAGES)
    if T.halves == 2:
        x_tile = x_tile.slice(HALF * 64, 64, dim=1)
    return x_tile.permute((1, 0))


@gluon.jit
def free(ring, step, T: gl.constexpr):
    """Say that a step's tiles are not needed any more."""
    STAGES: gl.constexpr = T.stages
    mbarrier.arrive(ring.empty.index(step % STAGES), count=1)
