"""Device code of the linear kernel for dozens of rows of x and more, in Gluon, on a Hopper.

The copy engine brings codes to shared memory. From there they go to registers, in the layout of the
tensor core's left operand, and are decoded (linear_asm) while the tensor cores multiply those
before. x lies in shared memory, in the order that linear_work gave it. Triton itself would wait
for each product before it decodes the next codes; Gluon, the level below, leaves that to us.
Arguments are named as in operands.py.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from blockscale.kernels.cuda.matmul.hopper.few import of_blocks
from blockscale.kernels.cuda.matmul.hopper.linear_six import by_six
from blockscale.kernels.cuda.matmul.hopper.linear_slots import by_slots
from blockscale.kernels.cuda.matmul.hopper.operands import (
    copies,
    free,
    left_operand,
    opened,
    product,
    right_of,
    ring_of,
    stored_at,
    stored_layout,
    turn,
)

GROUP: gl.constexpr = gl.constexpr(8)  # blocks of rows that share what they read of the weight


@gluon.jit
def place(pid, rows, n, BM: gl.constexpr, BN: gl.constexpr):
    """As linear_tile.place."""
    down, across = gl.cdiv(rows, BM), gl.cdiv(n, BN)
    first = pid // (GROUP * across) * GROUP
    height = gl.minimum(down - first, GROUP)
    inside = pid % (GROUP * across)
    return first + inside % height, inside // height


@gluon.jit
def by_halves(
    ring, side, held, stored, left, sums, steps,
    T: gl.constexpr, FROM: gl.constexpr, OUT: gl.constexpr,
):  # fmt: skip
    """Sums over all steps of 4-bit codes, which take two turns each.

    Left operands have two names by turns, so that none is written while a product reads it; and a
    turn is decoded before one waits for the product before the last.
    """
    token = warpgroup_mma(left, right_of(ring, 0, 0, T), sums, is_async=True)
    for step in range(steps - 1):
        back = turn(held, 1, T, OUT)
        token = warpgroup_mma(back, right_of(ring, step, 1, T), token, is_async=True)
        left = warpgroup_mma_wait(1, deps=(left,))
        held, stored = opened(ring, side, step + 1, stored, T, FROM, OUT)
        left = turn(held, 0, T, OUT)
        token = warpgroup_mma(left, right_of(ring, step + 1, 0, T), token, is_async=True)
        back = warpgroup_mma_wait(1, deps=(back,))
        free(ring, step, T)
    back = turn(held, 1, T, OUT)
    token = warpgroup_mma(back, right_of(ring, steps - 1, 1, T), token, is_async=True)
    sums, left, back = warpgroup_mma_wait(0, deps=(token, left, back))
    return sums


@gluon.jit
def by_steps(
    ring, side, stored, left, sums, steps,
    T: gl.constexpr, FROM: gl.constexpr, OUT: gl.constexpr,
):  # fmt: skip
    """Sums over all steps of 8-bit codes, which are a turn each; an even number of them."""
    token = warpgroup_mma(left, right_of(ring, 0, 0, T), sums, is_async=True)
    for step in range(1, steps - 1, 2):
        held, stored = opened(ring, side, step, stored, T, FROM, OUT)
        back = turn(held, 0, T, OUT)
        token = warpgroup_mma(back, right_of(ring, step, 0, T), token, is_async=True)
        left = warpgroup_mma_wait(1, deps=(left,))
        free(ring, step - 1, T)
        held, stored = opened(ring, side, step + 1, stored, T, FROM, OUT)
        left = turn(held, 0, T, OUT)
        token = warpgroup_mma(left, right_of(ring, step + 1, 0, T), token, is_async=True)
        back = warpgroup_mma_wait(1, deps=(back,))
        free(ring, step, T)
    held, stored = opened(ring, side, steps - 1, stored, T, FROM, OUT)
    back = turn(held, 0, T, OUT)
    token = warpgroup_mma(back, right_of(ring, steps - 1, 0, T), token, is_async=True)
    sums, left, back = warpgroup_mma_wait(0, deps=(token, left, back))
    return sums


@gluon.jit
def one_step(
    ring, side, held, stored, left, part, step, steps, more,
    T: gl.constexpr, FROM: gl.constexpr, OUT: gl.constexpr,
):  # fmt: skip
    """A step added to `part`, or in its place unless `more`; and what the next begins with."""
    if T.halves == 2:
        if OUT < T.outputs:
            OWN: gl.constexpr = FROM // OUT
            mbarrier.wait(ring[4].index(OWN), (step & 1) ^ (1 - OWN))
        token = warpgroup_mma(left, right_of(ring, step, 0, T), part, use_acc=more, is_async=True)
        back = turn(held, 1, T, OUT)
        token = warpgroup_mma(back, right_of(ring, step, 1, T), token, is_async=True)
        token, left = warpgroup_mma_wait(1, deps=(token, left))
        if OUT < T.outputs:  # half a product apart: else all would scale at once
            mbarrier.arrive(ring[4].index(1 - FROM // OUT), count=1)
    else:
        token = warpgroup_mma(left, right_of(ring, step, 0, T), part, use_acc=more, is_async=True)
    held, stored = opened(ring, side, gl.minimum(step + 1, steps - 1), stored, T, FROM, OUT)
    after = turn(held, 0, T, OUT)
    part, left = warpgroup_mma_wait(0, deps=(token, left))
    free(ring, step, T)
    return held, stored, after, part


@gluon.jit
def by_blocks(
    ring, side, at_b, held, stored, left, sums, steps,
    T: gl.constexpr, FROM: gl.constexpr, OUT: gl.constexpr,
):  # fmt: skip
    """Sums over all steps; those of each T.block meet their scale, if any, on their own."""
    scale, first, count = side[0], side[4], side[5]
    for block in range(steps // T.block):
        if T.reading.per_block:
            at = gl.minimum(first // T.block + block, count - 1)
            scales = gl.load(scale + at_b + at).to(gl.float32)
        part = sums
        for inner in range(T.block):
            held, stored, left, part = one_step(
                ring, side, held, stored, left, part, block * T.block + inner, steps, inner > 0,
                T, FROM, OUT,
            )  # fmt: skip
        if T.reading.per_block:
            part *= scales[:, None]
        sums += part
    return sums


@gluon.jit
def by_planes(given, base, T: gl.constexpr, FROM: gl.constexpr, OUT: gl.constexpr):
    """Sums of the outputs from `base` on, of codes that are read plane by plane."""
    ring, scales, _, _, n, _, _, first, steps, _ = given
    scale, zero, scale_stride, count = scales
    MMA: gl.constexpr = product(T, OUT)
    R: gl.constexpr = T.reading
    BM: gl.constexpr = T.rows
    own = base + gl.arange(0, OUT, layout=gl.SliceLayout(1, stored_layout(T, OUT)))
    at_s = of_blocks(gl.minimum(own, n - 1).to(gl.int64), R) * scale_stride
    own = base + gl.arange(0, OUT, layout=gl.SliceLayout(1, left_operand(T, OUT)))
    at_z = of_blocks(gl.minimum(own, n - 1).to(gl.int64), R) * scale_stride
    side = (scale, at_s, zero, at_z, first, count)
    held, stored = opened(ring, side, 0, stored_at(side, 0, T, OUT), T, FROM, OUT)
    left = turn(held, 0, T, OUT)
    sums = gl.zeros([OUT, BM], gl.float32, MMA)
    if T.block > 0:
        own = base + gl.arange(0, OUT, layout=gl.SliceLayout(1, MMA))
        at_b = of_blocks(gl.minimum(own, n - 1).to(gl.int64), R) * scale_stride
        sums = by_blocks(ring, side, at_b, held, stored, left, sums, steps, T, FROM, OUT)
    elif T.halves == 2:
        sums = by_halves(ring, side, held, stored, left, sums, steps, T, FROM, OUT)
    else:
        sums = by_steps(ring, side, stored, left, sums, steps, T, FROM, OUT)
    return sums


@gluon.jit
def sums_of(given, T: gl.constexpr, FROM: gl.constexpr, OUT: gl.constexpr):
    """The warps that multiply OUT outputs from FROM on, from the first step to what is written."""
    ends, rows, n, pm, pn = given[2], given[3], given[4], given[5], given[6]
    base = pn * T.outputs + FROM
    if T.slots:
        found = by_slots(given, base, T, FROM, OUT)
    elif T.six:
        found = (by_six(given, base, T, OUT),)
    else:
        found = (by_planes(given, base, T, FROM, OUT),)
    own = base + gl.arange(0, OUT, layout=gl.SliceLayout(1, product(T, OUT)))
    own = gl.minimum(own, n - 1).to(gl.int64)
    PARTS: gl.constexpr = T.parts
    for i in gl.static_range(PARTS):
        sums = found[i] * T.reading.lift
        if ends[0] is not None:
            sums *= gl.load(ends[0] + own * ends[1])[:, None]
        written(sums, ends, rows, n, pm * T.rows + i * T.part, i * T.part, base, T, FROM)


@gluon.jit
def written(
    sums, ends, rows, n, first_row, local, first_output, T: gl.constexpr, FROM: gl.constexpr
):  # fmt: skip
    """Sums [outputs, rows] -> where they belong by T.mode."""
    x_row, bias, out, parts, cut = ends[2], ends[3], ends[4], ends[5], ends[6]
    BM: gl.constexpr = T.rows
    BN: gl.constexpr = T.outputs
    if T.mode == 0:
        finish(sums, x_row, bias, out, rows, n, first_row, first_output)
    elif T.mode == 1:
        at = out + gl.program_id(1).to(gl.int64) * rows * n
        store(sums, at, rows, n, n, first_row, first_output)
    elif cut < 0:
        finish(sums, x_row, bias, out, rows, n, first_row, first_output)
    else:
        store(sums, parts + cut.to(gl.int64) * BM * BN, BM, BN, BN, local, FROM)


@gluon.jit
def finish(sums, x_row, bias, out, rows, n, first_row, first_output):
    """Sums [outputs, rows] with their factors and bias -> out [rows, n], in lines of memory."""
    MMA: gl.constexpr = sums.type.layout
    OUT: gl.constexpr = sums.shape[0]
    rm = first_row + gl.arange(0, sums.shape[1], layout=gl.SliceLayout(0, MMA))
    rn = first_output + gl.arange(0, OUT, layout=gl.SliceLayout(1, MMA))
    if x_row is not None:
        sums *= gl.load(x_row + rm, mask=rm < rows, other=0.0)[None, :]
    if bias is not None:
        sums += gl.load(bias + rn, mask=rn < n, other=0.0).to(gl.float32)[:, None]
    if out.dtype.element_ty.primitive_bitwidth == 16:  # 8 make a line; of 32 bits they do anyway
        LINES: gl.constexpr = gl.BlockedLayout(
            [8, 1], [OUT // 8, 256 // OUT], [1, OUT // 16], [0, 1]
        )
        sums = gl.convert_layout(sums.to(out.dtype.element_ty), LINES)
    store(sums, out, rows, n, n, first_row, first_output)


@gluon.jit
def store(values, to, rows, n, stride, first_row, first_output):
    """Values [outputs, rows] -> to [rows, n], as they lie."""
    LAYOUT: gl.constexpr = values.type.layout
    rn = first_output + gl.arange(0, values.shape[0], layout=gl.SliceLayout(1, LAYOUT))
    rm = first_row + gl.arange(0, values.shape[1], layout=gl.SliceLayout(0, LAYOUT))
    at = to + rm[None, :].to(gl.int64) * stride + rn[:, None]
    gl.store(at, values, mask=(rm < rows)[None, :] & (rn < n)[:, None])


@gluon.jit(do_not_specialize=["rows", "steps", "whole", "tail", "all_steps"])
def multiply(
    x_at, w_at, scale, zero, row, x_row, bias, out, parts,
    rows, n, scale_stride, count, row_stride, word_stride, words, steps, whole, tail, all_steps,
    T: gl.constexpr,
):  # fmt: skip
    """x_at [rows, k] bfloat16, ordered; w_at words [n, k / planes] -> out, as linear_tile.multiply.

    T.mode: 0 where a program sums up the whole of k, which is `steps` times 16 words. 1 where
        `steps` are a part of it, by the second grid axis; `out` is then float32 [parts, rows, n].
        2 where tiles from `whole` on, `tail` in number, are divided so: their sums go to
        `parts` [pieces, tail, T.rows, T.outputs], all others' to `out`
    """
    BM: gl.constexpr = T.rows
    BN: gl.constexpr = T.outputs
    OUT: gl.constexpr = T.outputs // T.shares
    ring = ring_of(x_at, w_at, T)
    pid = gl.program_id(0)
    first = gl.program_id(1) * steps
    cut = pid - whole
    if T.mode == 2:
        if cut < 0:
            steps = all_steps
        else:
            first = cut // tail * steps
            pid = whole + cut % tail
    pm, pn = place(pid, rows, n, BM, BN)
    ends = (row, row_stride, x_row, bias, out, parts, cut)
    given = (ring, (scale, zero, scale_stride, count), ends, rows, n, pm, pn, first, steps,
             (w_at, word_stride, words))  # fmt: skip
    source = (x_at, w_at, ring, pm, pn, first, steps)
    if T.shares == 1:
        gl.warp_specialize([(sums_of, (given, T, 0, OUT)), (copies, (source, T))], [1], [24])
    else:
        gl.warp_specialize(
            [(sums_of, (given, T, 0, OUT)), (sums_of, (given, T, OUT, OUT)), (copies, (source, T))],
            [4, 1], [240, 24],
        )  # fmt: skip
