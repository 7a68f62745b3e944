"""Device code of linear layers with few rows: codes go from memory to registers, and nowhere else.

A thread reads 16 bytes of a row, four words that lie together, of the rows that the tensor core
wants of it. Which code meets which of the 16 columns of a product is free as long as x comes in the
same order (linear_few.ordered): so codes are decoded where they arrive, two of one word at a time,
and neither shared memory nor a barrier stands between loads and products.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import mma_v2

STEP: gl.constexpr = gl.constexpr(16)  # words along k: what a product of the tensor core takes


@gluon.constexpr_function
def bits(values, rank, at):
    """Bases of a layout: each of `values` in dimension `at`."""
    return [[v if d == at else 0 for d in range(rank)] for v in values]


@gluon.constexpr_function
def powers(first, last):
    """first, 2 first, 4 first … below last."""
    found = []
    while first < last:
        found.append(first)
        first *= 2
    return found


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
    """Pointers [BM, 4, COUNT / 8, 8] to the first step of x as linear_few.ordered leaves it: each
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
        found = (x.reshape([x.shape[0], x.shape[1]]),)
    else:
        a, b = gl.split(x.reshape([x.shape[0], x.shape[1], 2, COUNT // 2]).permute(0, 1, 3, 2))
        found = columns(a, COUNT // 2) + columns(b, COUNT // 2)
    return found


@gluon.jit
def factor(stored, R: gl.constexpr, FAST: gl.constexpr):
    """Stored scales of blocks -> bfloat16, exact."""
    if R.fold == "floats":
        found = stored.to(gl.bfloat16)
    else:
        PTX: gl.constexpr = R.pairs.fast_scale if FAST else R.decode_scale
        found = gl.inline_asm_elementwise(
            PTX, "=r,=r,r", [stored], dtype=gl.bfloat16, is_pure=True, pack=4
        )
    return found


@gluon.jit
def decoded(word, stored, offset, R: gl.constexpr, DTYPES: gl.constexpr, FAST: gl.constexpr):
    """Words [outputs, blocks, words] -> pairs of codes, for each pair of places in two words."""
    PTX: gl.constexpr = R.pairs.fast if FAST else R.pairs.program
    if R.fold != "":
        given = [word, factor(stored, R, FAST).expand_dims(2)]
    elif R.zero:
        value = (-offset - R.pairs.bias).to(gl.float32).to(gl.bfloat16)  # at most 8 bits
        given = [word, value.expand_dims(2)]
    else:
        given = [word]
    return gl.inline_asm_elementwise(
        PTX, R.pairs.registers, given, dtype=DTYPES, is_pure=True, pack=2
    )


@gluon.jit
def beside(scale, zero, own, block, k0, scale_count, R: gl.constexpr, WHOLE: gl.constexpr):
    """What is stored beside the words from k0 on, 0 for what is not: scales [outputs, blocks] that
    codes are multiplied by, those [outputs] of their sums, and zero points [outputs, 1].
    """
    first = k0 // R.words if R.words > 0 else 0
    stored, by, offset = 0, 0, 0
    if R.fold != "" and WHOLE:
        stored = gl.load(scale + own[1] + first)
    elif R.fold != "":
        present = (block < scale_count - first).expand_dims(0)
        stored = gl.load(scale + own[1] + first, mask=present, other=0)
    if R.per_block:
        first = gl.minimum(first, scale_count - 1)
        by = gl.load(scale + own[0] + first)
    if R.zero:
        offset = gl.load(zero + own[1] + first)
    return stored, by, offset


@gluon.jit
def fetched(
    at_w, scale, zero, own, word, block, k0, words, scale_count,
    R: gl.constexpr, UNROLL: gl.constexpr, WHOLE: gl.constexpr,
):  # fmt: skip
    """UNROLL times 16 words from k0 on, zeros where there are none, with what lies beside them."""
    found, scales = (), ()
    for u in gl.static_range(UNROLL):
        at = k0 + u * STEP
        if WHOLE:
            tile = gl.load(at_w + at, eviction_policy="evict_first")  # x is to stay
        else:
            tile = gl.load(
                at_w + at, mask=word < words - at, other=0, eviction_policy="evict_first"
            )
        found = found + (tile,)  # type: ignore[assignment]  # noqa: RUF005
        side = beside(scale, zero, own, block, at, scale_count, R, WHOLE)
        scales = scales + (side,)  # type: ignore[assignment]  # noqa: RUF005
    return found, scales


@gluon.jit
def fence(x):
    """Keeps ptxas from moving loads that were asked for before to where they are used."""
    gl.inline_asm_elementwise(
        "{ bar.warp.sync 0xffffffff; mov.b32 $0, $1; }", "=r,r", [x], dtype=gl.int32,
        is_pure=False, pack=1,
    )  # fmt: skip


@gluon.jit
def products(
    pairs, values, found, R: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr, SUMS: gl.constexpr
):
    """`found` + sums [outputs, rows] of decoded codes times x [rows, 16 * planes] in order."""
    COUNT: gl.constexpr = R.planes
    LEFT: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    RIGHT: gl.constexpr = gl.DotOperandLayout(1, SUMS, 2)
    values = values.reshape([BM, 4, 2, COUNT // 2, 2, 2]).permute(4, 1, 5, 0, 2, 3)
    meets = columns(values.reshape([STEP, BM, COUNT]), COUNT)
    for i in gl.static_range(COUNT):
        a = pairs[i].reshape([BN, 4, 2, 2]).permute(0, 2, 1, 3).reshape([BN, STEP])
        found = mma_v2(
            gl.convert_layout(a, LEFT, assert_trivial=True),
            gl.convert_layout(meets[i], RIGHT, assert_trivial=True), found,
        )  # fmt: skip
    return found


@gluon.jit
def turned(
    at_x, x_step, now, side, sums, most, R: gl.constexpr, DTYPES: gl.constexpr, BM: gl.constexpr,
    BN: gl.constexpr, UNROLL: gl.constexpr, FAST: gl.constexpr,
):  # fmt: skip
    """`sums` with the products of what was fetched, and the largest stored scales met."""
    SUMS: gl.constexpr = sums_layout(gl.num_warps())
    found = gl.zeros([BN, BM], gl.float32, SUMS)
    for u in gl.static_range(UNROLL):
        stored, by, offset = side[u]
        pairs = decoded(now[u], stored, offset, R, DTYPES, FAST)
        values = gl.load(at_x + u * STEP * x_step)
        found = products(pairs, values, found, R, BM, BN, SUMS)
        if R.per_block:
            sums += found * by.to(gl.float32).expand_dims(1)
            found = gl.zeros([BN, BM], gl.float32, SUMS)
        if FAST:
            most = gl.maximum(most, stored.to(gl.int32))
    if not R.per_block:
        sums += found
    return sums, most


@gluon.jit
def swept(
    at_x, x_step, at_w, scale, zero, own, word, block, k0, words, scale_count,
    R: gl.constexpr, DTYPES: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr,
    UNROLL: gl.constexpr, STEPS: gl.constexpr, WHOLE: gl.constexpr, FAST: gl.constexpr,
):  # fmt: skip
    """Sums [outputs, rows] of the words from k0 on, and the largest stored scales met.

    What the next turn needs is asked for before this one's is decoded.
    """
    sums = gl.zeros([BN, BM], gl.float32, sums_layout(gl.num_warps()))
    now, side = fetched(
        at_w, scale, zero, own, word, block, k0, words, scale_count, R, UNROLL, WHOLE
    )
    most = side[0][0].to(gl.int32) if FAST else 0
    for step in range(STEPS):
        at = at_x + k0 * x_step
        k0 += UNROLL * STEP * (step + 1 < STEPS)
        then, after = fetched(
            at_w, scale, zero, own, word, block, k0, words, scale_count, R, UNROLL, WHOLE
        )
        fence(step)
        sums, most = turned(at, x_step, now, side, sums, most, R, DTYPES, BM, BN, UNROLL, FAST)
        now, side = then, after
    return sums, most


@gluon.jit
def places(
    weight, n, weight_stride, scale_stride, pn, R: gl.constexpr, BN: gl.constexpr
):  # fmt: skip
    """Where a program's first words and scales lie: pointers, and offsets of the scales of sums and
    of codes; which words of a step and which blocks those are; and its rows of the weight."""
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
    in_row = (of_blocks(rn, R) * scale_stride).expand_dims(1) + block.expand_dims(0)
    down = pn * BN + gl.arange(0, BN, gl.SliceLayout(1, sums_layout(NW)))
    rs = gl.minimum(down, n - 1).to(gl.int64)
    return at_w, (of_blocks(rs, R) * scale_stride, in_row), word, block, rs


@gluon.jit(do_not_specialize=["rows"])
def multiply(
    x, weight, scale, zero, row, x_row, bias, out,
    rows, n, words, weight_stride, scale_stride, scale_count, row_stride,
    R: gl.constexpr, DTYPES: gl.constexpr, BM: gl.constexpr, BN: gl.constexpr,
    UNROLL: gl.constexpr, STEPS: gl.constexpr, WHOLE: gl.constexpr, LAST: gl.constexpr,
):  # fmt: skip
    """x in order (linear_few.ordered), words [n, words] -> out, as linear_tile.multiply.

    STEPS: turns of UNROLL times 16 words that one program sums up. Several programs along k need
        LAST = False
    WHOLE: the steps of all programs are the words exactly; x has zeros where they are not
    """
    FAST: gl.constexpr = R.pairs.limit > 0
    pn, pm, part = gl.program_id(0), gl.program_id(1), gl.program_id(2)
    at_x, x_step = x_places(x, rows, pm, BM, 4 * R.planes), rows * R.planes  # of a word
    at_w, own, word, block, rs = places(weight, n, weight_stride, scale_stride, pn, R, BN)
    k0 = part * (STEPS * UNROLL * STEP)
    sums, most = swept(
        at_x, x_step, at_w, scale, zero, own, word, block, k0, words, scale_count,
        R, DTYPES, BM, BN, UNROLL, STEPS, WHOLE, FAST,
    )  # fmt: skip
    if FAST:
        if gl.max(gl.max(most, 1), 0) > R.pairs.limit:
            sums, _ = swept(
                at_x, x_step, at_w, scale, zero, own, word, block, k0, words, scale_count,
                R, DTYPES, BM, BN, UNROLL, STEPS, WHOLE, False,
            )  # fmt: skip
    sums *= R.lift
    if row is not None:
        sums *= gl.load(row + rs * row_stride).expand_dims(1)
    write(sums, x_row, bias, out, pm, pn, rows, n, part, BM, BN, LAST)


@gluon.jit
def of_blocks(rn, R: gl.constexpr):
    """Rows of the weight -> rows of its scales."""
    if R.height == 1:
        found = rn
    elif R.height == 0:
        found = rn * 0
    else:
        found = rn // R.height
    return found


@gluon.jit
def write(
    sums, x_row, bias, out, pm, pn, rows, n, part,
    BM: gl.constexpr, BN: gl.constexpr, LAST: gl.constexpr,
):  # fmt: skip
    """As linear_tile.write."""
    SUMS: gl.constexpr = sums_layout(gl.num_warps())
    rn = (pn * BN + gl.arange(0, BN, gl.SliceLayout(1, SUMS))).expand_dims(1)
    rm = (pm * BM + gl.arange(0, BM, gl.SliceLayout(0, SUMS))).expand_dims(0)
    mask = (rm < rows) & (rn < n)
    index = rm.to(gl.int64) * n + rn
    if LAST:
        if x_row is not None:
            sums *= gl.load(x_row + rm, mask=rm < rows, other=0.0)
        if bias is not None:
            sums += gl.load(bias + rn, mask=rn < n, other=0.0).to(gl.float32)
        gl.store(out + index, sums.to(out.dtype.element_ty), mask=mask)
    else:
        gl.store(out + part * rows.to(gl.int64) * n + index, sums, mask=mask)
