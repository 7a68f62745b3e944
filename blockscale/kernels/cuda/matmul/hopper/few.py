# SPDX-License-Identifier: BSD-3-Clause
"""Device code of the way "few": codes go from memory to registers, and nowhere else.

A thread reads 16 bytes of a row, four words that lie together, of the rows that the tensor core
wants of it. Which code meets which of the 16 columns of a product is free as long as x comes in the
same order (order.for_few): so codes are decoded where they arrive, two of one word at a time, and
neither shared memory nor a barrier stands between loads and products.
The terms: the glossary in matmul/__init__.py.

Legend of `multiply`
x: bfloat16 [codes / 32, rows, 32], as order.for_few leaves it, with zeros beyond k
weight: int32 [n, words], rows weight_stride words apart
scale: as it is stored, [blocks of rows, scale_count], rows scale_stride apart; zero: int32,
    likewise, or None
factors: float32 [n] or [1] of the outputs, factor_stride apart, or None
x_row: float32 [rows] or None; bias: [n] or None
out: [rows, n], or float32 partial sums [programs along k, rows, n]
R: the weight's Reading; DTYPES: what its PTX gives, bfloat16 for each code of a word
BM, BN: rows of x and outputs of a program
STEPS: turns of UNROLL times 16 words that one program sums up
WHOLE: whether the steps of all programs are the words exactly
LAST: whether a program's sums are all there are, and become the result. Else x_row and bias are
    None, and `out` takes partial sums
Grid: tiles of outputs, tiles of rows, programs along k.
"""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

from blockscale.kernels.cuda.matmul.finish import times_outputs, write

STEP: gl.constexpr = gl.constexpr(16)  # words along k: what a product of the tensor core takes


@gluon.constexpr_function
def bits(values, rank, at):
    """Bases of a layout: each of `values` in dimension `at`."""
    return [[v if d == at else 0 for d in range(rank)] for v in values]


@gluon.constexpr_function
def powers(first, last):
    """first, 2 first, 4 first … below last."""
    each = []
    while first < last:
        each.append(first)
        first *= 2
    return each


@gluon.constexpr_function
def words_layout(bn, warps, each):
    """Words [bn, 16 / each, each] such that a thread has four that lie together.

    Its rows are those of the tensor core's left operand: lanes / 4, and 8 more.
    """

    def word(p):
        return [[0, q // each, q % each] for q in p]

    return gl.DistributedLinearLayout(
        reg_bases=word([1, 2]) + bits([8], 3, 0) + bits(powers(16 * warps, bn), 3, 0),
        lane_bases=word([4, 8]) + bits([1, 2, 4], 3, 0),
        warp_bases=bits(powers(16, 16 * warps), 3, 0), block_bases=[],
        shape=[bn, 16 // each, each],
    )  # fmt: skip


@gluon.constexpr_function
def x_layout(bm, count, warps):
    """x [bm, 4, count / 8, 8] such that a thread has the `count` values that its codes meet."""
    return gl.DistributedLinearLayout(
        reg_bases=bits([1, 2, 4], 4, 3) + bits(powers(1, count // 8), 4, 2)
        + bits(powers(8, bm), 4, 0),
        lane_bases=bits([1, 2], 4, 1) + bits([1, 2, 4], 4, 0),
        warp_bases=bits([0] * len(powers(1, warps)), 4, 0), block_bases=[],
        shape=[bm, 4, count // 8, 8],
    )  # fmt: skip


@gluon.jit
def x_places(x, rows, pm, BM: gl.constexpr, COUNT: gl.constexpr):
    """Pointers [BM, 4, COUNT / 8, 8] to the first step of x as order.for_few leaves it: each
    of COUNT / 8 loads of a warp, 16 bytes a thread, lies together."""
    X: gl.constexpr = x_layout(BM, COUNT, gl.num_warps())
    ROW: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, gl.SliceLayout(3, X)))
    THREAD: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(2, gl.SliceLayout(3, X)))
    LOAD: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(3, X)))
    LAST: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(2, X)))
    row = gl.minimum(pm * BM + gl.arange(0, BM, ROW), rows - 1) * 32
    row = row.expand_dims(1).expand_dims(2).expand_dims(3)
    thread = gl.arange(0, 4, THREAD).expand_dims(0).expand_dims(2).expand_dims(3) * 8
    load = gl.arange(0, COUNT // 8, LOAD).expand_dims(0).expand_dims(1).expand_dims(3)
    last = gl.arange(0, 8, LAST).expand_dims(0).expand_dims(1).expand_dims(2)
    return x + (load * (rows * 32) + row + thread + last)


@gluon.constexpr_function
def sums_layout(warps):
    """What the tensor core leaves."""
    return gl.NVMMADistributedLayout([2, 0], [warps, 1], [16, 8])


@gluon.jit
def columns(x, COUNT: gl.constexpr):
    """[k, rows, COUNT] -> COUNT tensors [k, rows]."""
    if COUNT == 1:
        each = (x.reshape([x.shape[0], x.shape[1]]),)
    else:
        a, b = gl.split(x.reshape([x.shape[0], x.shape[1], 2, COUNT // 2]).permute(0, 1, 3, 2))
        each = columns(a, COUNT // 2) + columns(b, COUNT // 2)
    return each


@gluon.jit
def factor(stored, R: gl.constexpr, FAST: gl.constexpr):
    """Stored scales of blocks -> bfloat16, exact."""
    if R.fold == "floats":
        by = stored.to(gl.bfloat16)
    else:
        PTX: gl.constexpr = R.pairs.fast_scale if FAST else R.decode_scale
        by = gl.inline_asm_elementwise(
            PTX, "=r,=r,r", [stored], dtype=gl.bfloat16, is_pure=True, pack=4
        )
    return by


@gluon.jit
def decoded(word, stored, offset, R: gl.constexpr, DTYPES: gl.constexpr, FAST: gl.constexpr):
    """Words [outputs, blocks, words] -> pairs of codes, for each pair of places in two words."""
    PTX: gl.constexpr = R.pairs.fast if FAST else R.pairs.program
    if R.fold != "":
        inputs = [word, factor(stored, R, FAST).expand_dims(2)]
    elif R.zero:
        value = (-offset - R.pairs.bias).to(gl.float32).to(gl.bfloat16)  # at most 8 bits
        inputs = [word, value.expand_dims(2)]
    else:
        inputs = [word]
    return gl.inline_asm_elementwise(
        PTX, R.pairs.registers, inputs, dtype=DTYPES, is_pure=True, pack=2
    )


class ScaleMemory(NamedTuple):
    """What lies beside the weight's words in memory.

    scale, zero: as they are stored; zero None where there is none
    words, scale_count: of a row
    """

    scale: gl.tensor
    zero: gl.tensor
    words: gl.tensor
    scale_count: gl.tensor


class Places(NamedTuple):
    """Where a program's first step lies, and what of it.

    weight: pointers [outputs, blocks, words] to its words; word: which of the step those are
    in_sums, in_codes: where the outputs' scales and zero points are, in the layout of the sums
        [outputs] and in that of the codes [outputs, blocks]
    block: which blocks of the step the latter are
    """

    weight: gl.tensor
    word: gl.tensor
    in_sums: gl.tensor
    in_codes: gl.tensor
    block: gl.tensor


class Beside(NamedTuple):
    """What is stored beside the words of a turn, one of each for each 16 words; 0 where there is
    none.

    stored: scales [outputs, blocks] that codes are multiplied by
    by: scales [outputs] that their sums are multiplied by
    offset: zero points [outputs, 1]
    """

    stored: tuple
    by: tuple
    offset: tuple


@gluon.jit
def beside(memory, places, k0, R: gl.constexpr, WHOLE: gl.constexpr):
    """What is stored beside 16 words from k0 on, as in Beside."""
    first = k0 // R.words if R.words > 0 else 0
    stored, by, offset = 0, 0, 0
    if R.fold != "" and WHOLE:
        stored = gl.load(memory.scale + places.in_codes + first)
    elif R.fold != "":
        present = (places.block < memory.scale_count - first).expand_dims(0)
        stored = gl.load(memory.scale + places.in_codes + first, mask=present, other=0)
    if R.per_block:
        first = gl.minimum(first, memory.scale_count - 1)
        by = gl.load(memory.scale + places.in_sums + first)
    if R.zero:
        offset = gl.load(memory.zero + places.in_codes + first)
    return stored, by, offset


@gluon.jit
def fetch(memory, places, k0, R: gl.constexpr, UNROLL: gl.constexpr, WHOLE: gl.constexpr):
    """UNROLL times 16 words from k0 on, zeros where there are none, and what is Beside them."""
    words, scales, factors, offsets = (), (), (), ()
    for u in gl.static_range(UNROLL):
        at = k0 + u * STEP
        if WHOLE:
            tile = gl.load(places.weight + at, eviction_policy="evict_first")  # x is to stay
        else:
            there = places.word < memory.words - at
            tile = gl.load(
                places.weight + at, mask=there, other=0, eviction_policy="evict_first"
            )  # fmt: skip
        words = words + (tile,)  # type: ignore[assignment]  # noqa: RUF005
        stored, by, offset = beside(memory, places, at, R, WHOLE)
        scales = scales + (stored,)  # type: ignore[assignment]  # noqa: RUF005
        factors = factors + (by,)  # type: ignore[assignment]  # noqa: RUF005
        offsets = offsets + (offset,)  # type: ignore[assignment]  # noqa: RUF005
    return words, Beside(scales, factors, offsets)


@gluon.jit
def fence(x):
    """Keeps ptxas from moving loads that were asked for before to where they are used."""
    gl.inline_asm_elementwise(
        "{ bar.warp.sync 0xffffffff; mov.b32 $0, $1; }", "=r,r", [x], dtype=gl.int32,
        is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def products(
    pairs, values, sums, R: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, SUMS: gl.constexpr
):
    """`sums` + those [outputs, rows] of decoded codes times x [rows, 16 * planes] in order."""
    COUNT: gl.constexpr = R.planes
    LEFT: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, SUMS, 2)
    values = values.reshape([BM, 4, 2, COUNT // 2, 2, 2]).permute(4, 1, 5, 0, 2, 3)
    meets = columns(values.reshape([STEP, BM, COUNT]), COUNT)
    for i in gl.static_range(COUNT):
        a = pairs[i].reshape([BN, 4, 2, 2]).permute(0, 2, 1, 3).reshape([BN, STEP])
        sums = mma_v2(
            gl.convert_layout(a, LEFT, assert_trivial=True),
            gl.convert_layout(meets[i], RIGHT, assert_trivial=True), sums,
        )  # fmt: skip
    return sums


@gluon.jit
def add_products(
    at_x, x_step, words, side, sums, most, R: gl.constexpr, DTYPES: gl.constexpr, BM: gl.constexpr,
    BN: gl.constexpr, UNROLL: gl.constexpr, FAST: gl.constexpr,
):  # fmt: skip
    """`sums` with the products of what was fetched, and the largest stored scales met."""
    SUMS: gl.constexpr = sums_layout(gl.num_warps())
    part = gl.zeros([BN, BM], gl.float32, SUMS)
    for u in gl.static_range(UNROLL):
        pairs = decoded(words[u], side.stored[u], side.offset[u], R, DTYPES, FAST)
        values = gl.load(at_x + u * STEP * x_step)
        part = products(pairs, values, part, R, BM, BN, SUMS)
        if R.per_block:
            sums += part * side.by[u].to(gl.float32).expand_dims(1)
            part = gl.zeros([BN, BM], gl.float32, SUMS)
        if FAST:
            most = gl.maximum(most, side.stored[u].to(gl.int32))
    if not R.per_block:
        sums += part
    return sums, most


@gluon.jit
def swept(
    at_x, x_step, memory, places, k0, R: gl.constexpr, DTYPES: gl.constexpr, BM: gl.constexpr,
    BN: gl.constexpr, UNROLL: gl.constexpr, STEPS: gl.constexpr, WHOLE: gl.constexpr,
    FAST: gl.constexpr,
):  # fmt: skip
    """Sums [outputs, rows] of the words from k0 on, and the largest stored scales met.

    What the next turn needs is asked for before this one's is decoded.
    """
    sums = gl.zeros([BN, BM], gl.float32, sums_layout(gl.num_warps()))
    words, side = fetch(memory, places, k0, R, UNROLL, WHOLE)
    most = side.stored[0].to(gl.int32) if FAST else 0
    for step in range(STEPS):
        at = at_x + k0 * x_step
        k0 += UNROLL * STEP * (step + 1 < STEPS)
        next_words, next_side = fetch(memory, places, k0, R, UNROLL, WHOLE)
        fence(step)
        sums, most = add_products(
            at, x_step, words, side, sums, most, R, DTYPES, BM, BN, UNROLL, FAST
        )
        words, side = next_words, next_side
    return sums, most


@gluon.jit
def places_of(
    weight, n, weight_stride, scale_stride, pn, R: gl.constexpr, BN: gl.constexpr
):  # fmt: skip
    """Places of the program of the pn-th tile of outputs, and its rows of the weight."""
    NW: gl.constexpr = gl.num_warps()
    EACH: gl.constexpr = min(R.words, STEP) if R.words > 0 else STEP
    WORDS: gl.constexpr = words_layout(BN, NW, EACH)
    STORED: gl.constexpr = gl.SliceLayout(2, WORDS)
    down = pn * BN + gl.arange(0, BN, gl.SliceLayout(1, STORED))
    rn = gl.minimum(down, n - 1).to(gl.int64)
    block = gl.arange(0, STEP // EACH, gl.SliceLayout(0, STORED))
    inside = gl.arange(0, EACH, gl.SliceLayout(0, gl.SliceLayout(1, WORDS)))
    word = block.expand_dims(0).expand_dims(2) * EACH + inside.expand_dims(0).expand_dims(1)
    at_w = weight + (rn * weight_stride).expand_dims(1).expand_dims(2) + word
    in_codes = (of_blocks(rn, R) * scale_stride).expand_dims(1) + block.expand_dims(0)
    down = pn * BN + gl.arange(0, BN, gl.SliceLayout(1, sums_layout(NW)))
    rs = gl.minimum(down, n - 1).to(gl.int64)
    return Places(at_w, word, of_blocks(rs, R) * scale_stride, in_codes, block), rs


@gluon.jit(do_not_specialize=["rows"])
def multiply(
    x, weight, scale, zero, factors, x_row, bias, out,
    rows, n, words, weight_stride, scale_stride, scale_count, factor_stride,
    R: gl.constexpr, DTYPES: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr,
    UNROLL: gl.constexpr, STEPS: gl.constexpr, WHOLE: gl.constexpr, LAST: gl.constexpr,
):  # fmt: skip
    """x @ weight.T of codes that are decoded as memory delivers them; see the legend above."""
    FAST: gl.constexpr = R.pairs.limit > 0
    pn, pm, part = gl.program_id(0), gl.program_id(1), gl.program_id(2)
    at_x, x_step = x_places(x, rows, pm, BM, 4 * R.planes), rows * R.planes  # of a word
    memory = ScaleMemory(scale, zero, words, scale_count)
    places, rs = places_of(weight, n, weight_stride, scale_stride, pn, R, BN)
    k0 = part * (STEPS * UNROLL * STEP)
    sums, most = swept(
        at_x, x_step, memory, places, k0, R, DTYPES, BM, BN, UNROLL, STEPS, WHOLE, FAST
    )
    if FAST:
        if gl.max(gl.max(most, 1), 0) > R.pairs.limit:
            sums, _ = swept(
                at_x, x_step, memory, places, k0, R, DTYPES, BM, BN, UNROLL, STEPS, WHOLE, False
            )
    sums *= R.lift
    sums = times_outputs(sums, factors, rs, factor_stride)
    write_tile(sums, x_row, bias, out, pm, pn, rows, n, part, BM, BN, LAST)


@gluon.jit
def of_blocks(rn, R: gl.constexpr):
    """Rows of the weight -> rows of its scales."""
    if R.height == 1:
        block = rn
    elif R.height == 0:
        block = rn * 0
    else:
        block = rn // R.height
    return block


@gluon.jit
def write_tile(
    sums, x_row, bias, out, pm, pn, rows, n, part,
    BM: gl.constexpr, BN: gl.constexpr, LAST: gl.constexpr,
):  # fmt: skip
    """Sums [outputs, rows] of the tile pn, pm -> out, as finish.write says."""
    SUMS: gl.constexpr = sums_layout(gl.num_warps())
    rn = pn * BN + gl.arange(0, BN, gl.SliceLayout(1, SUMS))
    rm = pm * BM + gl.arange(0, BM, gl.SliceLayout(0, SUMS))
    write(sums, x_row, bias, out, rm, rn, rows, n, part, LAST)
