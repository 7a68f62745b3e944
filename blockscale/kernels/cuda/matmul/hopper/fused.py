# SPDX-License-Identifier: BSD-3-Clause
"""Device code of the way "fused", for dozens of rows of x and more, in Gluon, on a Hopper.

The copy engine brings codes to shared memory. From there they go to registers, in the layout of the
tensor core's left operand, and are decoded (ptx.py) while the tensor cores multiply those before. x
lies in shared memory, in the order that order.for_fused gave it. Triton itself would wait for each
product before it decodes the next codes; Gluon, the level below, leaves that to us.
Arguments are named as in fused_operands.py; the terms: the glossary in matmul/__init__.py.

Legend of `multiply`
x_at: descriptor of tiles [T.box, T.codes] of x, bfloat16 [rows, k] as order.for_fused leaves it
w_at: descriptor of tiles [T.outputs, 16] of the weight's words, int32 [n, words]; where codes are
    6 bits, a pointer to them
scale, zero: as they are stored, [blocks of rows, count], rows scale_stride apart; zero or None
factors: float32 [n] or [1] of the outputs, factor_stride apart, or None
x_row: float32 [rows] or None; bias: [n] or None
out: [rows, n] in the result's dtype; in mode 1 float32 partial sums [pieces, rows, n]
parts: in mode 2 float32 partial sums [pieces, tail, T.rows, T.outputs], else None
table: where T.grouped, of each tile of rows the matrix, the first row and the row after the last
    (grouped.tile_table), int32 [tiles, 3]; else None
rows: of x, counting its parts; words: of a row, word_stride from one row to the next
steps: along k that a program sums up, T.codes codes each
whole, tail, all_steps: of mode 2
matrices: of a stack, which lie below each other in w_at; matrix `matrices` is nobody's rows, which
    become zeros, and a larger one no rows. scale_matrix, factor_matrix: from the scales and factors
    of one to the next one's; factor_height: outputs that share a factor
T: fused_work.Work. T.mode is 0 where a program sums up the whole of k; 1 where `steps` are a piece
    of it, by the second grid axis; 2 where only the `tail` tiles from tile `whole` on are divided
    so, and the programs before have one tile each and all_steps steps
Grid: tiles of the result, in mode 2 with `tail` for each piece; pieces of k in mode 1.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from blockscale.kernels.cuda.matmul.finish import finish_sums, times_outputs
from blockscale.kernels.cuda.matmul.hopper.few import of_blocks
from blockscale.kernels.cuda.matmul.hopper.fused_operands import (
    Copies,
    Side,
    Target,
    TileTask,
    WeightMemory,
    copies,
    free,
    left_operand,
    open_step,
    product,
    right_of,
    ring_of,
    stored_at,
    stored_layout,
    turn,
)
from blockscale.kernels.cuda.matmul.hopper.fused_six_bits import by_six_bits
from blockscale.kernels.cuda.matmul.hopper.fused_slots import by_slots
from blockscale.kernels.cuda.matmul.tile import place


@gluon.jit
def by_halves(
    ring, side, regs, stored, lhs, sums, steps,
    T: gl.constexpr, FROM: gl.constexpr, OUT: gl.constexpr,
):  # fmt: skip
    """Sums over all steps of 4-bit codes, which take two turns each.

    Left operands have two names by turns, so that none is written while a product reads it; and a
    turn is decoded before one waits for the product before the last.
    """
    token = warpgroup_mma(lhs, right_of(ring, 0, 0, T), sums, is_async=True)
    for step in range(steps - 1):
        back = turn(regs, 1, T, OUT)
        token = warpgroup_mma(back, right_of(ring, step, 1, T), token, is_async=True)
        lhs = warpgroup_mma_wait(1, deps=(lhs,))
        regs, stored = open_step(ring, side, step + 1, stored, T, FROM, OUT)
        lhs = turn(regs, 0, T, OUT)
        token = warpgroup_mma(lhs, right_of(ring, step + 1, 0, T), token, is_async=True)
        back = warpgroup_mma_wait(1, deps=(back,))
        free(ring, step, T)
    back = turn(regs, 1, T, OUT)
    token = warpgroup_mma(back, right_of(ring, steps - 1, 1, T), token, is_async=True)
    sums, lhs, back = warpgroup_mma_wait(0, deps=(token, lhs, back))
    return sums


@gluon.jit
def by_steps(
    ring, side, stored, lhs, sums, steps,
    T: gl.constexpr, FROM: gl.constexpr, OUT: gl.constexpr,
):  # fmt: skip
    """Sums over all steps of 8-bit codes, which are a turn each; an even number of them."""
    token = warpgroup_mma(lhs, right_of(ring, 0, 0, T), sums, is_async=True)
    for step in range(1, steps - 1, 2):
        regs, stored = open_step(ring, side, step, stored, T, FROM, OUT)
        back = turn(regs, 0, T, OUT)
        token = warpgroup_mma(back, right_of(ring, step, 0, T), token, is_async=True)
        lhs = warpgroup_mma_wait(1, deps=(lhs,))
        free(ring, step - 1, T)
        regs, stored = open_step(ring, side, step + 1, stored, T, FROM, OUT)
        lhs = turn(regs, 0, T, OUT)
        token = warpgroup_mma(lhs, right_of(ring, step + 1, 0, T), token, is_async=True)
        back = warpgroup_mma_wait(1, deps=(back,))
        free(ring, step, T)
    regs, stored = open_step(ring, side, steps - 1, stored, T, FROM, OUT)
    back = turn(regs, 0, T, OUT)
    token = warpgroup_mma(back, right_of(ring, steps - 1, 0, T), token, is_async=True)
    sums, lhs, back = warpgroup_mma_wait(0, deps=(token, lhs, back))
    return sums


@gluon.jit
def one_step(
    ring, side, regs, stored, lhs, part, step, steps, more,
    T: gl.constexpr, FROM: gl.constexpr, OUT: gl.constexpr,
):  # fmt: skip
    """A step added to `part`, or in its place unless `more`; and what the next begins with."""
    if T.halves == 2:
        if OUT < T.outputs:
            OWN: gl.constexpr = FROM // OUT
            mbarrier.wait(ring.alternate.index(OWN), (step & 1) ^ (1 - OWN))
        token = warpgroup_mma(lhs, right_of(ring, step, 0, T), part, use_acc=more, is_async=True)
        back = turn(regs, 1, T, OUT)
        token = warpgroup_mma(back, right_of(ring, step, 1, T), token, is_async=True)
        token, lhs = warpgroup_mma_wait(1, deps=(token, lhs))
        if OUT < T.outputs:  # half a product apart: else all would scale at once
            mbarrier.arrive(ring.alternate.index(1 - FROM // OUT), count=1)
    else:
        token = warpgroup_mma(lhs, right_of(ring, step, 0, T), part, use_acc=more, is_async=True)
    regs, stored = open_step(ring, side, gl.minimum(step + 1, steps - 1), stored, T, FROM, OUT)
    after = turn(regs, 0, T, OUT)
    part, lhs = warpgroup_mma_wait(0, deps=(token, lhs))
    free(ring, step, T)
    return regs, stored, after, part


@gluon.jit
def by_blocks(
    ring, side, at_b, regs, stored, lhs, sums, steps,
    T: gl.constexpr, FROM: gl.constexpr, OUT: gl.constexpr,
):  # fmt: skip
    """Sums over all steps; those of each T.block meet their scale, if any, on their own."""
    for block in range(steps // T.block):
        if T.reading.per_block:
            at = gl.minimum(side.first // T.block + block, side.count - 1)
            scales = gl.load(side.scale + at_b + at).to(gl.float32)
        part = sums
        for inner in range(T.block):
            regs, stored, lhs, part = one_step(
                ring, side, regs, stored, lhs, part, block * T.block + inner, steps, inner > 0,
                T, FROM, OUT,
            )  # fmt: skip
        if T.reading.per_block:
            part *= scales[:, None]
        sums += part
    return sums


@gluon.jit
def by_planes(task, base, T: gl.constexpr, FROM: gl.constexpr, OUT: gl.constexpr):
    """Sums [outputs, rows] of the outputs from `base` on, of codes that are read plane by plane."""
    ring, memory, n, steps = task.ring, task.memory, task.n, task.steps
    MMA: gl.constexpr = product(T, OUT)
    R: gl.constexpr = T.reading
    BM: gl.constexpr = T.rows
    own = base + gl.arange(0, OUT, layout=gl.SliceLayout(1, stored_layout(T, OUT)))
    at_s = of_blocks(gl.minimum(own, n - 1).to(gl.int64), R) * memory.scale_stride
    own = base + gl.arange(0, OUT, layout=gl.SliceLayout(1, left_operand(T, OUT)))
    at_z = of_blocks(gl.minimum(own, n - 1).to(gl.int64), R) * memory.scale_stride
    side = Side(memory.scale, at_s, memory.zero, at_z, task.first, memory.count)
    regs, stored = open_step(ring, side, 0, stored_at(side, 0, T, OUT), T, FROM, OUT)
    lhs = turn(regs, 0, T, OUT)
    sums = gl.zeros([OUT, BM], gl.float32, MMA)
    if T.block > 0:
        own = base + gl.arange(0, OUT, layout=gl.SliceLayout(1, MMA))
        at_b = of_blocks(gl.minimum(own, n - 1).to(gl.int64), R) * memory.scale_stride
        sums = by_blocks(ring, side, at_b, regs, stored, lhs, sums, steps, T, FROM, OUT)
    elif T.halves == 2:
        sums = by_halves(ring, side, regs, stored, lhs, sums, steps, T, FROM, OUT)
    else:
        sums = by_steps(ring, side, stored, lhs, sums, steps, T, FROM, OUT)
    return sums


@gluon.jit
def sums_of(task, T: gl.constexpr, FROM: gl.constexpr, OUT: gl.constexpr):
    """The warps that multiply OUT outputs from FROM on, from the first step to what is written."""
    target = task.target
    base = task.output_tile * T.outputs + FROM
    if T.slots:
        shares = by_slots(task, base, T, FROM, OUT)
    elif T.six_bits:
        shares = (by_six_bits(task, base, T, OUT),)
    else:
        shares = (by_planes(task, base, T, FROM, OUT),)
    own = base + gl.arange(0, OUT, layout=gl.SliceLayout(1, product(T, OUT)))
    own = gl.minimum(own, task.n - 1)
    if T.grouped:
        own //= target.factor_height
    own = own.to(gl.int64)
    SHARES: gl.constexpr = T.shares
    for i in gl.static_range(SHARES):
        sums = shares[i] * T.reading.lift
        sums = times_outputs(sums, target.factors, own, target.factor_stride)
        row = i * T.share_rows
        write_sums(sums, task, task.first_row + row, row, base, T, FROM)


@gluon.jit
def write_sums(sums, task, first_row, local, first_output, T: gl.constexpr, FROM: gl.constexpr):
    """Sums [outputs, rows] of the rows and outputs from these on -> where they belong by T.mode.

    local, FROM: the same within the tile
    """
    target, rows, n = task.target, task.rows, task.n
    BM: gl.constexpr = T.rows
    BN: gl.constexpr = T.outputs
    if T.mode == 0:
        finish(sums, target, rows, n, first_row, first_output)
    elif T.mode == 1:
        at = target.out + gl.program_id(1).to(gl.int64) * rows * n
        store(sums, at, rows, n, n, first_row, first_output)
    elif target.part < 0:
        finish(sums, target, rows, n, first_row, first_output)
    else:
        at = target.parts + target.part.to(gl.int64) * BM * BN
        store(sums, at, BM, BN, BN, local, FROM)


@gluon.jit
def finish(sums, target, rows, n, first_row, first_output):
    """Sums [outputs, rows] with their factors and bias -> out [rows, n], in lines of memory."""
    MMA: gl.constexpr = sums.type.layout
    OUT: gl.constexpr = sums.shape[0]
    out = target.out
    rm = first_row + gl.arange(0, sums.shape[1], layout=gl.SliceLayout(0, MMA))
    rn = first_output + gl.arange(0, OUT, layout=gl.SliceLayout(1, MMA))
    sums = finish_sums(sums, target.x_row, target.bias, rm, rn, rows, n, 1)
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


@gluon.jit
def clear(out, first_row, rows, n, first_output, T: gl.constexpr):
    """Zeros for a tile of rows of nobody."""
    OUT: gl.constexpr = T.outputs // T.groups
    LINES: gl.constexpr = gl.BlockedLayout([8, 1], [OUT // 8, 256 // OUT], [1, OUT // 16], [0, 1])
    ROWS: gl.constexpr = T.box if T.split else T.rows
    GROUPS: gl.constexpr = T.groups
    SHARES: gl.constexpr = T.rows // ROWS
    zeros = gl.zeros([OUT, ROWS], out.dtype.element_ty, LINES)
    for group in gl.static_range(GROUPS):
        for share in gl.static_range(SHARES):
            row, output = first_row + share * ROWS, first_output + group * OUT
            store(zeros, out, rows, n, n, row, output)


@gluon.jit
def piece_of(steps, whole, tail, all_steps, T: gl.constexpr):
    """Which tile is the program's, its first step, how many there are, and Target.part."""
    pid = gl.program_id(0)
    first = gl.program_id(1) * steps
    part = pid - whole
    if T.mode == 2:
        if part < 0:
            steps = all_steps
        else:
            first = part // tail * steps
            pid = whole + part % tail
    return pid, first, steps, part


@gluon.jit(do_not_specialize=["rows", "steps", "whole", "tail", "all_steps", "tiles"])
def multiply(
    x_at, w_at, scale, zero, factors, x_row, bias, out, parts, table,
    rows, n, scale_stride, count, factor_stride, word_stride, words, steps, whole, tail, all_steps,
    tiles, matrices, scale_matrix, factor_matrix, factor_height,
    T: gl.constexpr,
):  # fmt: skip
    """x @ weight.T of codes that are decoded beside the tensor cores; see the legend above."""
    BM: gl.constexpr = T.rows
    BN: gl.constexpr = T.outputs
    OUT: gl.constexpr = T.outputs // T.groups
    pid, first, steps, part = piece_of(steps, whole, tail, all_steps, T)
    pm, pn = place(pid, tiles * BM if T.grouped else rows, n, BM, BN)
    first_row, weight_row = pm * BM, pn * BN
    if T.grouped:
        matrix, first_row = gl.load(table + 3 * pm), gl.load(table + 3 * pm + 1)
        rows = gl.load(table + 3 * pm + 2)
        if matrix == matrices:
            clear(out, first_row, rows, n, weight_row, T)
        if matrix >= matrices:
            return
        weight_row += matrix * n
        which = matrix.to(gl.int64)
        scale += which * scale_matrix
        zero = zero if zero is None else zero + which * scale_matrix
        factors = factors if factors is None else factors + which * factor_matrix
        bias = bias if bias is None else bias + which * n
    memory = WeightMemory(w_at, word_stride, words, scale, zero, scale_stride, count)
    target = Target(factors, factor_stride, factor_height, x_row, bias, out, parts, part)
    ring = ring_of(x_at, w_at, T)
    task = TileTask(ring, memory, target, rows, n, first_row, pn, first, steps)
    source = Copies(x_at, w_at, ring, first_row, weight_row, first, steps)
    if T.groups == 1:
        gl.warp_specialize([(sums_of, (task, T, 0, OUT)), (copies, (source, T))], [1], [24])
    else:
        gl.warp_specialize(
            [(sums_of, (task, T, 0, OUT)), (sums_of, (task, T, OUT, OUT)), (copies, (source, T))],
            [4, 1], [240, 24],
        )  # fmt: skip
