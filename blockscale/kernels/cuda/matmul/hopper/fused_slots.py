# SPDX-License-Identifier: BSD-3-Clause
"""Device code of "fused" for blocks with float scales, whose sums meet their scale on their own.

A slot is four words, one for each of the four threads that share a row of the tensor core's left
operand: with 4 bits they are 32 codes, with 8 bits 16. So what is multiplied at a time is of one
block. The rows of x are two or three shares that take turns: while the sums of one meet their
scales, another's are multiplied, and the next codes are decoded meanwhile. Arguments are named as
in fused_operands.py; the terms: the glossary in matmul/__init__.py.

Legend of `several` and what it calls
regs: words [outputs, .] of the first step's turns; lhs: bfloat16 [outputs, codes], the first
    turn's codes; both come back as the next steps'
parts: float32 [outputs, share_rows], the sums of a block that are being added up, of two shares
sums: likewise, those that have met their scales, of all shares
own: StepScales of the steps; zero: zero points [outputs] of the turn that follows
TURN: a turn of T.unroll steps, counted from their first; JOB: likewise a turn and a share of it
"""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from blockscale.kernels.cuda.matmul.hopper.few import bits, columns, of_blocks, powers
from blockscale.kernels.cuda.matmul.hopper.fused_operands import (
    WORDS,
    Side,
    free,
    left_operand,
    product,
)


@gluon.constexpr_function
def slots_layout(outputs):
    """Words [outputs, 16]: a thread's two rows are eight apart and lie side by side."""
    return gl.DistributedLinearLayout(
        reg_bases=bits([8], 2, 0) + bits([4, 8], 2, 1),
        lane_bases=bits([1, 2], 2, 1) + bits([1, 2, 4], 2, 0),
        warp_bases=bits(powers(16, outputs), 2, 0), block_bases=[], shape=[outputs, 16],
    )  # fmt: skip


@gluon.jit
def open_step(ring, step, T: gl.constexpr, FROM: gl.constexpr, OUT: gl.constexpr):
    """Words [outputs, 16 / turns] of a step, once they are there, for each of its turns."""
    STAGES: gl.constexpr = T.stages
    TURNS: gl.constexpr = T.turns
    LAYOUT: gl.constexpr = slots_layout(OUT)
    stage = step % STAGES
    mbarrier.wait(ring.full.index(stage), step // STAGES & 1)
    words = ring.w_tiles.index(stage).slice(FROM, OUT).load(LAYOUT)
    return columns(words.reshape([OUT, TURNS, 16 // TURNS]).permute(0, 2, 1), TURNS)


@gluon.jit
def together(values, FIRST: gl.constexpr, COUNT: gl.constexpr, STEP: gl.constexpr):
    """COUNT tensors, STEP apart, as one with more dimensions of 2, in their order."""
    if COUNT == 1:
        both = values[FIRST]
    else:
        a = together(values, FIRST, COUNT // 2, STEP * 2)
        both = gl.join(a, together(values, FIRST + STEP, COUNT // 2, STEP * 2))
    return both


@gluon.constexpr_function
def types(count):
    """What the asm of `operand` gives."""
    return (gl.bfloat16,) * count


@gluon.jit
def operand(words, zero, T: gl.constexpr, OUT: gl.constexpr):
    """The words [outputs, .] of a turn -> bfloat16 [outputs, codes], as order.for_fused has x,
    without the zero points [outputs] if there are any.

    A register takes words of two rows and gives pairs of codes of one.
    """
    PLANES: gl.constexpr = T.reading.planes
    HALF: gl.constexpr = PLANES // 2
    TURN: gl.constexpr = T.turn
    SLOTS: gl.constexpr = TURN // (4 * PLANES)
    ROWS: gl.constexpr = gl.SliceLayout(1, words.type.layout)
    if T.reading.zero:
        inputs = [words, gl.convert_layout(zero, ROWS, assert_trivial=True)[:, None]]
    else:
        inputs = [words]
    pairs = gl.inline_asm_elementwise(
        T.front, T.asm, inputs, dtype=types(PLANES), is_pure=True, pack=2
    )
    both = gl.join(together(pairs, 0, HALF, 1), together(pairs, HALF, HALF, 1))
    both = both.reshape([OUT // 16, 2, 8, SLOTS, 4, HALF // 2, 2, 2])
    both = both.permute(0, 7, 2, 3, 5, 6, 4, 1).reshape([OUT, TURN])
    return gl.convert_layout(both, left_operand(T, OUT), assert_trivial=True)


@gluon.jit
def rows_of(ring, step, TURN: gl.constexpr, SHARE: gl.constexpr, T: gl.constexpr):
    """What of x [codes, rows] a turn and a share multiply."""
    STAGES: gl.constexpr = T.stages
    ROWS: gl.constexpr = T.share_rows
    CODES: gl.constexpr = T.turn
    if T.split:
        tile = ring.x_tiles.index(step % STAGES * T.shares + SHARE)
    else:
        tile = ring.x_tiles.index(step % STAGES).slice(SHARE * ROWS, ROWS, dim=0)
    return tile.slice(TURN * CODES, CODES, dim=1).permute((1, 0))


@gluon.jit
def beside(values, at, first, count, step, T: gl.constexpr):
    """Scales or zero points [outputs] of the blocks that a step begins; 0 where there are none."""
    EACH: gl.constexpr = T.reading.words if T.reading.words > 0 else 1 << 30
    COUNT: gl.constexpr = T.columns if T.reading.per_block else 1
    loads = ()
    for i in gl.static_range(COUNT):
        block = (first + step) * WORDS // EACH + i
        value = gl.load(values + at + block, mask=at * 0 + block < count, other=0)
        loads = loads + (value,)  # type: ignore[assignment]  # noqa: RUF005
    return loads


class StepScales(NamedTuple):
    """What lies beside the words of several steps: scales and zero points [outputs], as they are
    stored, of each block that a step begins, step by step. A dummy stands for what there is not."""

    scales: tuple
    zeros: tuple


@gluon.jit
def stored(side, step, T: gl.constexpr):
    """StepScales of T.unroll steps."""
    COUNT: gl.constexpr = T.unroll
    scales, zeros = (), ()
    for i in gl.static_range(COUNT):
        its_scales = (side.scale_at,)
        if T.reading.per_block:
            its_scales = beside(side.scale, side.scale_at, side.first, side.count, step + i, T)
        its_zeros = its_scales
        if T.reading.zero:
            its_zeros = beside(side.zero, side.zero_at, side.first, side.count, step + i, T)
        scales = scales + (its_scales,)  # type: ignore[assignment]  # noqa: RUF005
        zeros = zeros + (its_zeros,)  # type: ignore[assignment]  # noqa: RUF005
    return StepScales(scales, zeros)


@gluon.jit
def add_scaled(part, scale, sums, T: gl.constexpr):
    """part * scale + sums, here and not later: LLVM would move it to where the result is needed,
    and copy what the next product overwrites."""
    if T.reading.per_block:
        inputs = [part, scale.to(gl.float32)[:, None], sums]
        sums = gl.inline_asm_elementwise(
            "fma.rn.f32 $0, $1, $2, $3;",
            "=f,f,f,f",
            inputs,
            dtype=gl.float32,
            is_pure=False,
            pack=1,
        )
    else:
        sums = sums + part
    return sums


@gluon.jit
def with_one(values, INDEX: gl.constexpr, value, COUNT: gl.constexpr):
    """COUNT values with another at INDEX."""
    result = ()
    for i in gl.static_range(COUNT):
        if i == INDEX:
            result = result + (value,)  # type: ignore[assignment]  # noqa: RUF005
        else:
            result = result + (values[i],)  # type: ignore[assignment]  # noqa: RUF005
    return result


@gluon.constexpr_function
def ends(turn, t, last):
    """Whether a block ends with a turn of `several`; with the last one by `last`."""
    each = t.turns // t.columns
    return turn % each == each - 1 and (turn < t.turns * t.unroll - 1 or last)


@gluon.jit
def begin(ring, by, part, step, more, JOB: gl.constexpr, T: gl.constexpr):
    """The product under way of one turn and one share of the rows: those are counted by JOB."""
    SHARES: gl.constexpr = T.shares
    TURNS: gl.constexpr = T.turns
    TURN: gl.constexpr = JOB // SHARES
    x = rows_of(ring, step + TURN // TURNS, TURN % TURNS, JOB % SHARES, T)
    return warpgroup_mma(by, x, part, use_acc=more, is_async=True)


@gluon.jit
def decoded(
    ring, regs, own, zero, step, steps,
    TURN: gl.constexpr, T: gl.constexpr, FROM: gl.constexpr, OUT: gl.constexpr,
):  # fmt: skip
    """The words of a turn's step, and its codes. TURN: as `several` counts them."""
    TURNS: gl.constexpr = T.turns
    EACH: gl.constexpr = TURNS // T.columns
    if TURN % TURNS == 0:
        regs = open_step(ring, gl.minimum(step + TURN // TURNS, steps - 1), T, FROM, OUT)
    if TURN < TURNS * T.unroll:
        zero = own.zeros[TURN // TURNS][TURN % TURNS // EACH]
    return regs, operand(regs[TURN % TURNS], zero, T, OUT)


@gluon.jit
def several(
    ring, regs, lhs, parts, sums, own, zero, step, steps, more,
    T: gl.constexpr, FROM: gl.constexpr, OUT: gl.constexpr, LAST: gl.constexpr,
):  # fmt: skip
    """`sums` with those of T.unroll steps; the legend is at the top of the file.

    The last turn ends a block if LAST, the first goes on with one if `more`. Two products are under
    way at a time: of a turn, of one share of the rows each.
    """
    SHARES: gl.constexpr = T.shares
    TURNS: gl.constexpr = T.turns
    EACH: gl.constexpr = TURNS // T.columns  # turns of a block
    JOBS: gl.constexpr = TURNS * T.unroll * SHARES
    parts = (
        begin(ring, lhs, parts[0], step, more, 0, T), begin(ring, lhs, parts[1], step, more, 1, T)
    )  # fmt: skip
    then = lhs
    for j in gl.static_range(JOBS):
        if (j + 2) % SHARES == 0:  # what comes into line begins a turn
            regs, then = decoded(
                ring, regs, own, zero, step, steps, (j + 2) // SHARES, T, FROM, OUT
            )
        if j % SHARES == SHARES - 1:  # the last product of `lhs`
            ready, lhs = warpgroup_mma_wait(1 if j < JOBS - 1 else 0, deps=(parts[j % 2], lhs))
        else:
            ready = warpgroup_mma_wait(1, deps=(parts[j % 2],))
        if ends(j // SHARES, T, LAST):
            scale = own.scales[j // SHARES // TURNS][j // SHARES % TURNS // EACH]
            sums = with_one(sums, j % SHARES, add_scaled(ready, scale, sums[j % SHARES], T), SHARES)
        if j % SHARES == SHARES - 1:
            lhs = then
            if j // SHARES % TURNS == TURNS - 1:
                free(ring, step + j // SHARES // TURNS, T)
        if j + 2 < JOBS:
            more = not ends((j + 2) // SHARES - 1, T, LAST)
            by = lhs if (j + 2) // SHARES == j // SHARES else then
            ready = begin(ring, by, ready, step, more, j + 2, T)
        parts = with_one(parts, j % 2, ready, 2)
    return regs, lhs, parts, sums


@gluon.jit
def nothing(T: gl.constexpr, OUT: gl.constexpr, COUNT: gl.constexpr):
    """COUNT times zeros, for the sums of a share."""
    ROWS: gl.constexpr = T.share_rows
    zeros = ()
    for _ in gl.static_range(COUNT):
        zero = gl.zeros([OUT, ROWS], gl.float32, product(T, OUT))
        zeros = zeros + (zero,)  # type: ignore[assignment]  # noqa: RUF005
    return zeros


@gluon.jit
def swept(
    ring, side, regs, lhs, now, steps, T: gl.constexpr, FROM: gl.constexpr, OUT: gl.constexpr
):  # fmt: skip
    """Sums over all steps. regs: words of the first, lhs: its first turn's codes, now: scales."""
    SHARES: gl.constexpr = T.shares
    BLOCK: gl.constexpr = T.block
    UNROLL: gl.constexpr = T.unroll
    parts, sums = nothing(T, OUT, 2), nothing(T, OUT, SHARES)
    if BLOCK == 0:
        for step in range(steps):
            regs, lhs, parts, sums = several(
                ring, regs, lhs, parts, sums, now, now.zeros[0][0], step, steps, True,
                T, FROM, OUT, False,
            )  # fmt: skip
        sums = parts
    else:
        for group in range(steps // (BLOCK * UNROLL)):
            step = group * BLOCK * UNROLL
            then = stored(side, step + BLOCK * UNROLL, T)
            for inner in range(BLOCK - 1):
                regs, lhs, parts, sums = several(
                    ring, regs, lhs, parts, sums, now, now.zeros[0][0], step + inner, steps,
                    inner > 0, T, FROM, OUT, False,
                )  # fmt: skip
            regs, lhs, parts, sums = several(
                ring, regs, lhs, parts, sums, now, then.zeros[0][0], step + BLOCK - 1, steps,
                BLOCK > 1, T, FROM, OUT, True,
            )  # fmt: skip
            now = then
    return sums


@gluon.jit
def by_slots(task, base, T: gl.constexpr, FROM: gl.constexpr, OUT: gl.constexpr):
    """Sums [outputs, rows] of the outputs from `base` on, a tensor for each share of the rows."""
    ring, memory, n = task.ring, task.memory, task.n
    R: gl.constexpr = T.reading
    own = base + gl.arange(0, OUT, layout=gl.SliceLayout(1, product(T, OUT)))
    at_s = of_blocks(gl.minimum(own, n - 1).to(gl.int64), R) * memory.scale_stride
    own = base + gl.arange(0, OUT, layout=gl.SliceLayout(1, slots_layout(OUT)))
    at_z = of_blocks(gl.minimum(own, n - 1).to(gl.int64), R) * memory.scale_stride
    side = Side(memory.scale, at_s, memory.zero, at_z, task.first, memory.count)
    now = stored(side, 0, T)
    regs = open_step(ring, 0, T, FROM, OUT)
    lhs = operand(regs[0], now.zeros[0][0], T, OUT)
    return swept(ring, side, regs, lhs, now, task.steps, T, FROM, OUT)
