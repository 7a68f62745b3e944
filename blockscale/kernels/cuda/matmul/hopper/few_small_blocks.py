# SPDX-License-Identifier: BSD-3-Clause
"""Device code of "few" for blocks of 4 or 8 words with a float scale each.

As few.py, but what meets in one product of the tensor core is of one block, whose sums get its
scale: the four threads that share a row read one word each (or two) of the block.
"""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

from blockscale.kernels.cuda.matmul.hopper.few import (
    ScaleMemory,
    bits,
    columns,
    fence,
    of_blocks,
    powers,
    sums_layout,
    write_tile,
    x_places,
)

STEP: gl.constexpr = gl.constexpr(8)  # words at a time, two of a thread


@gluon.constexpr_function
def words_layout(bn, warps, each):
    """Words [bn, 8]: of blocks of 4, one of each in a thread, or two of one block of 8."""
    word = [[0, p] for p in ([4, 1, 2] if each == 4 else [1, 2, 4])]
    return gl.DistributedLinearLayout(
        reg_bases=word[:1] + bits([8], 2, 0) + bits(powers(16 * warps, bn), 2, 0),
        lane_bases=word[1:] + bits([1, 2, 4], 2, 0),
        warp_bases=bits(powers(16, 16 * warps), 2, 0), block_bases=[], shape=[bn, 8],
    )  # fmt: skip


@gluon.constexpr_function
def scales_layout(bn, warps, count):
    """Scales [bn, count]: all of a row in each of the threads that have its sums."""
    return gl.DistributedLinearLayout(
        reg_bases=bits(powers(1, count), 2, 1) + bits([8], 2, 0)
        + bits(powers(16 * warps, bn), 2, 0),
        lane_bases=bits([0, 0], 2, 0) + bits([1, 2, 4], 2, 0),
        warp_bases=bits(powers(16, 16 * warps), 2, 0), block_bases=[], shape=[bn, count],
    )  # fmt: skip


@gluon.jit
def apart(value, COUNT: gl.constexpr):
    """[rows, COUNT] -> COUNT tensors [rows]."""
    if COUNT == 1:
        each = (value.reshape([value.shape[0]]),)
    else:
        a, b = gl.split(value.reshape([value.shape[0], 2, COUNT // 2]).permute(0, 2, 1))
        each = apart(a, COUNT // 2) + apart(b, COUNT // 2)
    return each


class Places(NamedTuple):
    """Where a program's first step lies, and what of it.

    weight: pointers [outputs, 8] to its words; word: which of the step those are
    in_sums: where the scales [outputs, blocks of a turn] are; block: which of the turn those are
    in_zeros: where the zero points [outputs, 1] of a row begin; zero_block: whose the words are
    """

    weight: gl.tensor
    word: gl.tensor
    in_sums: gl.tensor
    block: gl.tensor
    in_zeros: gl.tensor
    zero_block: gl.tensor


@gluon.jit
def words(memory, places, k0, UNROLL: gl.constexpr, WHOLE: gl.constexpr):
    """UNROLL tensors of words, from k0 on."""
    tiles = ()
    for u in gl.static_range(UNROLL):
        at = places.weight + k0 + u * STEP
        if WHOLE:
            tile = gl.load(at, eviction_policy="evict_first")
        else:
            there = (places.word < memory.words - k0 - u * STEP).expand_dims(0)
            tile = gl.load(at, mask=there, other=0)
        tiles = tiles + (tile,)  # type: ignore[assignment]  # noqa: RUF005
    return tiles


@gluon.jit
def beside(memory, places, k0, R: gl.constexpr, UNROLL: gl.constexpr):
    """Scales [outputs, blocks] of the words from k0 on, and UNROLL tensors of zero points."""
    first, count = k0 // R.words, memory.scale_count
    there = (places.block < count - first).expand_dims(0)
    by = gl.load(memory.scale + places.in_sums + first, mask=there, other=0)
    zeros = ()
    for u in gl.static_range(UNROLL):
        if R.zero:
            last = gl.minimum(places.zero_block + (first + u * STEP // R.words), count - 1)
            offset = gl.load(memory.zero + places.in_zeros + last)
        else:
            offset = 0
        zeros = zeros + (offset,)  # type: ignore[assignment]  # noqa: RUF005
    return by, zeros


@gluon.jit
def products(
    word,
    offset,
    meets,
    R: gl.constexpr,
    DTYPES: gl.constexpr,
    BN: gl.constexpr,
    BM: gl.constexpr,
    FIRST: gl.constexpr,
    LAST: gl.constexpr,
    SUMS: gl.constexpr,
):
    """Sums [outputs, rows] of the products FIRST ... LAST of a step: those of one block."""
    LEFT: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, SUMS, 2)
    inputs = [word, offset] if R.zero else [word]
    pairs = gl.inline_asm_elementwise(
        R.pairs.program, R.pairs.registers, inputs, dtype=DTYPES, is_pure=True, pack=2
    )
    sums = gl.zeros([BN, BM], gl.float32, SUMS)
    for i in gl.static_range(FIRST, LAST):
        a = gl.join(pairs[2 * i], pairs[2 * i + 1])
        if R.words == 4:
            a = a.reshape([BN, 2, 4, 2]).permute(0, 3, 2, 1)
        else:
            a = a.reshape([BN, 4, 2, 2]).permute(0, 3, 1, 2)
        sums = mma_v2(
            gl.convert_layout(a.reshape([BN, 16]), LEFT, assert_trivial=True),
            gl.convert_layout(meets[i], RIGHT, assert_trivial=True), sums,
        )  # fmt: skip
    return sums


@gluon.jit
def add_products(
    at_x, x_step, now, by, zeros, sums, R: gl.constexpr, DTYPES: gl.constexpr, BM: gl.constexpr,
    BN: gl.constexpr, UNROLL: gl.constexpr,
):  # fmt: skip
    """`sums` with the products of what was fetched, each block's times its scale."""
    PLANES: gl.constexpr = R.planes
    BLOCKS: gl.constexpr = STEP // R.words
    EACH: gl.constexpr = PLANES // 2 // BLOCKS  # products of a block
    SUMS: gl.constexpr = sums_layout(gl.num_warps())
    OWN: gl.constexpr = gl.SliceLayout(1, SUMS)
    each = apart(by.to(gl.float32), BLOCKS * UNROLL)
    for u in gl.static_range(UNROLL):
        values = gl.load(at_x + u * STEP * x_step)
        values = values.reshape([BM, 4, PLANES // 2, 2, 2]).permute(3, 1, 4, 0, 2)
        meets = columns(values.reshape([16, BM, PLANES // 2]), PLANES // 2)
        for b in gl.static_range(BLOCKS):
            part = products(
                now[u], zeros[u], meets, R, DTYPES, BN, BM, b * EACH, b * EACH + EACH, SUMS
            )
            own = gl.convert_layout(each[u * BLOCKS + b], OWN, assert_trivial=True)
            sums += part * own.expand_dims(1)
    return sums


@gluon.jit
def places_of(
    weight, n, weight_stride, scale_stride, pn,
    R: gl.constexpr, BN: gl.constexpr, COUNT: gl.constexpr,
):  # fmt: skip
    """Places of the program of the pn-th tile of outputs. COUNT: blocks of a turn"""
    WORDS: gl.constexpr = words_layout(BN, gl.num_warps(), R.words)
    SCALES: gl.constexpr = scales_layout(BN, gl.num_warps(), COUNT)
    rn = gl.minimum(pn * BN + gl.arange(0, BN, gl.SliceLayout(1, WORDS)), n - 1).to(gl.int64)
    word = gl.arange(0, STEP, gl.SliceLayout(0, WORDS))
    at_w = weight + (rn * weight_stride).expand_dims(1) + word.expand_dims(0)
    in_zeros = (of_blocks(rn, R) * scale_stride).expand_dims(1)
    zero_block = (word // R.words).expand_dims(0)
    rs = gl.minimum(pn * BN + gl.arange(0, BN, gl.SliceLayout(1, SCALES)), n - 1).to(gl.int64)
    block = gl.arange(0, COUNT, gl.SliceLayout(0, SCALES))
    in_sums = (of_blocks(rs, R) * scale_stride).expand_dims(1) + block.expand_dims(0)
    return Places(at_w, word, in_sums, block, in_zeros, zero_block)


@gluon.jit(do_not_specialize=["rows"])
def multiply(
    x, weight, scale, zero, x_row, bias, out,
    rows, n, limit, weight_stride, scale_stride, scale_count,
    R: gl.constexpr, DTYPES: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr,
    UNROLL: gl.constexpr, STEPS: gl.constexpr, WHOLE: gl.constexpr, LAST: gl.constexpr,
):  # fmt: skip
    """x @ weight.T of codes that are decoded as memory delivers them: as few.multiply.

    weight: int32 [n, limit], rows weight_stride words apart
    scale: float [blocks of rows, scale_count], rows scale_stride apart; zero: int32, likewise, or
        None. The outputs have no other factors
    STEPS: turns of UNROLL times 8 words that one program sums up
    All else: as few.multiply says.
    """
    COUNT: gl.constexpr = STEP // R.words * UNROLL  # blocks in a turn
    pn, pm, part = gl.program_id(0), gl.program_id(1), gl.program_id(2)
    memory = ScaleMemory(scale, zero, limit, scale_count)
    places = places_of(weight, n, weight_stride, scale_stride, pn, R, BN, COUNT)
    at_x, x_step = x_places(x, rows, pm, BM, 2 * R.planes), rows * R.planes  # of a word
    k0 = part * (STEPS * UNROLL * STEP)
    now = words(memory, places, k0, UNROLL, WHOLE)
    by, zeros = beside(memory, places, k0, R, UNROLL)
    sums = gl.zeros([BN, BM], gl.float32, sums_layout(gl.num_warps()))
    for step in range(STEPS):
        at = at_x + k0 * x_step
        k0 += UNROLL * STEP * (step + 1 < STEPS)
        then = words(memory, places, k0, UNROLL, WHOLE)
        after = beside(memory, places, k0, R, UNROLL)
        fence(step)
        sums = add_products(at, x_step, now, by, zeros, sums, R, DTYPES, BM, BN, UNROLL)
        now = then
        by, zeros = after
    write_tile(sums, x_row, bias, out, pm, pn, rows, n, part, BM, BN, LAST)
