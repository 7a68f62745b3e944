# SPDX-License-Identifier: BSD-3-Clause
"""Device code of "few" for codes of 6 bits: as few.py, but 16 codes lie in three words, so a thread
reads twelve words that lie together, which are 64 codes."""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

from blockscale.kernels.cuda.matmul.finish import times_outputs
from blockscale.kernels.cuda.matmul.hopper.few import (
    bits,
    columns,
    factor,
    fence,
    of_blocks,
    powers,
    sums_layout,
    write_tile,
    x_places,
)

STEP: gl.constexpr = gl.constexpr(48)  # words at a time, twelve of a thread
CODES: gl.constexpr = gl.constexpr(256)  # in them


@gluon.constexpr_function
def words_layout(bn, warps, last):
    """Words [bn, 4, 2, last]: those of each of the four threads of a row in its registers."""
    return gl.DistributedLinearLayout(
        reg_bases=bits(powers(1, last), 4, 3) + bits(powers(1, 4 // last), 4, 2)
        + bits([8], 4, 0) + bits(powers(16 * warps, bn), 4, 0),
        lane_bases=bits([1, 2], 4, 1) + bits([1, 2, 4], 4, 0),
        warp_bases=bits(powers(16, 16 * warps), 4, 0), block_bases=[],
        shape=[bn, 4, 4 // last, last],
    )  # fmt: skip


class Places(NamedTuple):
    """Where a program's first step lies, and what of it.

    weight: pointers [outputs, 4, 4] to each thread's first words; word: which of the step those are
    scale: as it is stored; in_codes: where the outputs' scales are, [outputs, 1, 1]
    code: the first code of each thread's two halves of a step, [1, 4, 2]
    words, scale_count: of a row
    """

    weight: gl.tensor
    word: gl.tensor
    scale: gl.tensor
    in_codes: gl.tensor
    code: gl.tensor
    words: gl.tensor
    scale_count: gl.tensor


@gluon.jit
def fetch(places, k0, R: gl.constexpr, BN: gl.constexpr, WHOLE: gl.constexpr):
    """Three tensors [outputs, 4, 2, 2] of words from k0 on, and scales [outputs, 4, 2]."""
    words = ()
    WORDS: gl.constexpr = words_layout(BN, gl.num_warps(), 2)
    for j in gl.static_range(3):
        at = places.weight + k0 + 4 * j
        if WHOLE:
            tile = gl.load(at, eviction_policy="evict_first")
        else:
            tile = gl.load(at, mask=places.word + 4 * j < places.words - k0, other=0)
        tile = gl.convert_layout(tile.reshape([BN, 4, 2, 2]), WORDS, assert_trivial=True)
        words = words + (tile,)  # type: ignore[assignment]  # noqa: RUF005
    stored = 0
    if R.fold != "":
        block = (places.code + k0 // STEP * CODES) // R.width
        at = places.scale + places.in_codes + block
        stored = gl.load(at, mask=block < places.scale_count, other=0)
    return words, stored


@gluon.jit
def decoded(now, stored, R: gl.constexpr, DTYPES: gl.constexpr):
    """Words -> 16 tensors [outputs, 4, 2, 2]: four codes of a thread for a product each."""
    inputs = [now[0], now[1], now[2]]
    if R.fold != "":
        inputs = [now[0], now[1], now[2], factor(stored, R, False).expand_dims(3)]
    return gl.inline_asm_elementwise(
        R.pairs.program, R.pairs.registers, inputs, dtype=DTYPES, is_pure=True, pack=4
    )


@gluon.jit
def products(pairs, values, sums, BM: gl.constexpr, BN: gl.constexpr, SUMS: gl.constexpr):
    """`sums` + those [outputs, rows] of decoded codes times x [rows, 256] in order."""
    LEFT: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, SUMS, 2)
    values = values.reshape([BM, 4, 16, 2, 2]).permute(3, 1, 4, 0, 2)
    meets = columns(values.reshape([16, BM, 16]), 16)
    for i in gl.static_range(16):
        a = pairs[i].permute(0, 2, 1, 3).reshape([BN, 16])
        sums = mma_v2(
            gl.convert_layout(a, LEFT, assert_trivial=True),
            gl.convert_layout(meets[i], RIGHT, assert_trivial=True), sums,
        )  # fmt: skip
    return sums


@gluon.jit
def coordinates(first, n, BN: gl.constexpr, COUNT: gl.constexpr, LAYOUT: gl.constexpr):
    """Of [BN, 4, COUNT], what each dimension counts: rows of the weight, threads, their values."""
    down = gl.arange(0, BN, gl.SliceLayout(1, gl.SliceLayout(2, LAYOUT)))
    rn = gl.minimum(first + down, n - 1).to(gl.int64).expand_dims(1).expand_dims(2)
    thread = gl.arange(0, 4, gl.SliceLayout(0, gl.SliceLayout(2, LAYOUT)))
    inside = gl.arange(0, COUNT, gl.SliceLayout(0, gl.SliceLayout(1, LAYOUT)))
    return rn, thread.expand_dims(0).expand_dims(2), inside.expand_dims(0).expand_dims(1)


@gluon.jit(do_not_specialize=["rows"])
def multiply(
    x, weight, scale, factors, x_row, bias, out,
    rows, n, words, weight_stride, scale_stride, scale_count, factor_stride,
    R: gl.constexpr, DTYPES: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr,
    STEPS: gl.constexpr, WHOLE: gl.constexpr, LAST: gl.constexpr,
):  # fmt: skip
    """x @ weight.T of codes that are decoded as memory delivers them: as few.multiply.

    DTYPES: 16 times bfloat16; STEPS: of 48 words that one program sums up. All else: as there.
    """
    NW: gl.constexpr = gl.num_warps()
    SUMS: gl.constexpr = sums_layout(NW)
    WORDS: gl.constexpr = gl.SliceLayout(2, words_layout(BN, NW, 4))
    SCALES: gl.constexpr = gl.SliceLayout(3, words_layout(BN, NW, 2))
    pn, pm, part = gl.program_id(0), gl.program_id(1), gl.program_id(2)
    rn, thread, inside = coordinates(pn * BN, n, BN, 4, WORDS)
    word = thread * 12 + inside
    at_w = weight + rn * weight_stride + word
    rn, thread, inside = coordinates(pn * BN, n, BN, 2, SCALES)
    code = thread * 64 + inside * 32
    in_codes = of_blocks(rn, R) * scale_stride
    places = Places(at_w, word, scale, in_codes, code, words, scale_count)
    at_x = x_places(x, rows, pm, BM, 64)
    k0 = part * (STEPS * STEP)
    now, stored = fetch(places, k0, R, BN, WHOLE)
    sums = gl.zeros([BN, BM], gl.float32, SUMS)
    for step in range(STEPS):
        k1 = k0 + STEP * (step + 1 < STEPS)
        then, after = fetch(places, k1, R, BN, WHOLE)
        fence(step)
        values = gl.load(at_x + k0 // STEP * (rows * CODES))
        pairs = decoded(now, stored, R, DTYPES)
        sums += products(pairs, values, gl.zeros([BN, BM], gl.float32, SUMS), BM, BN, SUMS)
        now, stored, k0 = then, after, k1
    sums *= R.lift
    rs = gl.minimum(pn * BN + gl.arange(0, BN, gl.SliceLayout(1, SUMS)), n - 1)
    sums = times_outputs(sums, factors, rs, factor_stride)
    write_tile(sums, x_row, bias, out, pm, pn, rows, n, part, BM, BN, LAST)
