"""Linear layers whose blocks have float scales: the sums of each block meet its scale on their own.

A slot is four words, one for each of the four threads that share a row of the tensor core's left
operand: with 4 bits they are 32 codes, with 8 bits 16. So what is multiplied at a time is of one
block. The rows of x are two parts that take turns: while the sums of one meet their scales, the
other's are multiplied, and the next codes are decoded meanwhile. Arguments as in operands.py.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from blockscale.kernels.cuda.matmul.hopper.few import bits, columns, of_blocks, powers
from blockscale.kernels.cuda.matmul.hopper.operands import WORDS, free, left_operand, product


@gluon.constexpr_function
def slots_layout(outputs):
    """Words [outputs, 16]: a thread's two rows are eight apart and lie side by side."""
    return gl.DistributedLinearLayout(
        reg_bases=bits([8], 2, 0) + bits([4, 8], 2, 1),
        lane_bases=bits([1, 2], 2, 1) + bits([1, 2, 4], 2, 0),
        warp_bases=bits(powers(16, outputs), 2, 0), block_bases=[], shape=[outputs, 16],
    )  # fmt: skip


@gluon.jit
def opened(ring, step, T: gl.constexpr, FROM: gl.constexpr, OUT: gl.constexpr):
    """Words [outputs, 16 / turns] of a step, once they are there, for each of its turns."""
    STAGES: gl.constexpr = T.stages
    TURNS: gl.constexpr = T.turns
    LAYOUT: gl.constexpr = slots_layout(OUT)
    slot = step % STAGES
    mbarrier.wait(ring[2].index(slot), step // STAGES & 1)
    words = ring[1].index(slot).slice(FROM, OUT).load(LAYOUT)
    return columns(words.reshape([OUT, TURNS, 16 // TURNS]).permute(0, 2, 1), TURNS)


@gluon.jit
def together(found, FIRST: gl.constexpr, COUNT: gl.constexpr, STEP: gl.constexpr):
    """COUNT tensors, STEP apart, as one with more dimensions of 2, in their order."""
    if COUNT == 1:
        both = found[FIRST]
    else:
        a = together(found, FIRST, COUNT // 2, STEP * 2)
        both = gl.join(a, together(found, FIRST + STEP, COUNT // 2, STEP * 2))
    return both


@gluon.constexpr_function
def types(count):
    """What the asm of `operand` gives."""
    return (gl.bfloat16,) * count


@gluon.jit
def operand(words, zero, T: gl.constexpr, OUT: gl.constexpr):
    """The words [outputs, .] of a turn -> bfloat16 [outputs, codes], as linear_work.order has x,
    without the zero points [outputs] if there are any.

    A register takes words of two rows and gives pairs of codes of one.
    """
    PLANES: gl.constexpr = T.reading.planes
    HALF: gl.constexpr = PLANES // 2
    TURN: gl.constexpr = T.turn
    SLOTS: gl.constexpr = TURN // (4 * PLANES)
    ROWS: gl.constexpr = gl.SliceLayout(1, words.type.layout)
    if T.reading.zero:
        given = [words, gl.convert_layout(zero, ROWS, assert_trivial=True)[:, None]]
    else:
        given = [words]
    found = gl.inline_asm_elementwise(
        T.front, T.asm, given, dtype=types(PLANES), is_pure=True, pack=2
    )
    both = gl.join(together(found, 0, HALF, 1), together(found, HALF, HALF, 1))
    both = both.reshape([OUT // 16, 2, 8, SLOTS, 4, HALF // 2, 2, 2])
    both = both.permute(0, 7, 2, 3, 5, 6, 4, 1).reshape([OUT, TURN])
    return gl.convert_layout(both, left_operand(T, OUT), assert_trivial=True)


@gluon.jit
def rows_of(ring, step, TURN: gl.constexpr, PART: gl.constexpr, T: gl.constexpr):
    """What of x [codes, rows] a turn and a part multiply."""
    STAGES: gl.constexpr = T.stages
    ROWS: gl.constexpr = T.part
    CODES: gl.constexpr = T.turn
    if T.split:
        tile = ring[0].index(step % STAGES * T.parts + PART)
    else:
        tile = ring[0].index(step % STAGES).slice(PART * ROWS, ROWS, dim=0)
    return tile.slice(TURN * CODES, CODES, dim=1).permute((1, 0))


@gluon.jit
def beside(values, at, first, count, step, T: gl.constexpr):
    """Scales or zero points [outputs] of the blocks that a step begins; 0 where there are none."""
    EACH: gl.constexpr = T.reading.words if T.reading.words > 0 else 1 << 30
    COUNT: gl.constexpr = T.columns if T.reading.per_block else 1
    found = ()
    for i in gl.static_range(COUNT):
        block = (first + step) * WORDS // EACH + i
        value = gl.load(values + at + block, mask=at * 0 + block < count, other=0)
        found = found + (value,)  # type: ignore[assignment]  # noqa: RUF005
    return found


@gluon.jit
def stored(side, step, T: gl.constexpr):
    """Scales and zero points (of those a dummy where there are none) of a step."""
    scale, at_s, zero, at_z, first, count = side
    scales = (at_s,)
    if T.reading.per_block:
        scales = beside(scale, at_s, first, count, step, T)
    zeros = scales
    if T.reading.zero:
        zeros = beside(zero, at_z, first, count, step, T)
    return scales, zeros


@gluon.jit
def added(part, scale, sums, T: gl.constexpr):
    """part * scale + sums, here and not later: LLVM would move it to where the result is needed,
    and copy what the next product overwrites."""
    if T.reading.per_block:
        given = [part, scale.to(gl.float32)[:, None], sums]
        found = gl.inline_asm_elementwise(
            "fma.rn.f32 $0, $1, $2, $3;", "=f,f,f,f", given, dtype=gl.float32, is_pure=False, pack=1
        )
    else:
        found = sums + part
    return found


@gluon.jit
def with_one(values, INDEX: gl.constexpr, value, COUNT: gl.constexpr):
    """COUNT values with another at INDEX."""
    found = ()
    for i in gl.static_range(COUNT):
        if i == INDEX:
            found = found + (value,)  # type: ignore[assignment]  # noqa: RUF005
        else:
            found = found + (values[i],)  # type: ignore[assignment]  # noqa: RUF005
    return found


@gluon.constexpr_function
def ends(turn, t, last):
    """Whether a block ends with a turn of `several`; with the last one by `last`."""
    each = t.turns // t.columns
    return turn % each == each - 1 and (turn < t.turns * t.deep - 1 or last)


@gluon.jit
def begun(ring, by, part, step, more, JOB: gl.constexpr, T: gl.constexpr):
    """The product under way of one turn and one part of the rows: those are counted by JOB."""
    PARTS: gl.constexpr = T.parts
    TURNS: gl.constexpr = T.turns
    TURN: gl.constexpr = JOB // PARTS
    x = rows_of(ring, step + TURN // TURNS, TURN % TURNS, JOB % PARTS, T)
    return warpgroup_mma(by, x, part, use_acc=more, is_async=True)


@gluon.jit
def decoded(
    ring, held, own, zero, step, steps,
    TURN: gl.constexpr, T: gl.constexpr, FROM: gl.constexpr, OUT: gl.constexpr,
):  # fmt: skip
    """The words of a turn's step, and its codes. TURN: as `several` counts them."""
    TURNS: gl.constexpr = T.turns
    EACH: gl.constexpr = TURNS // T.columns
    if TURN % TURNS == 0:
        held = opened(ring, gl.minimum(step + TURN // TURNS, steps - 1), T, FROM, OUT)
    if TURN < TURNS * T.deep:
        zero = own[TURN // TURNS][1][TURN % TURNS // EACH]
    return held, operand(held[TURN % TURNS], zero, T, OUT)


@gluon.jit
def several(
    ring, held, left, parts, sums, own, zero, step, steps, more,
    T: gl.constexpr, FROM: gl.constexpr, OUT: gl.constexpr, LAST: gl.constexpr,
):  # fmt: skip
    """`sums` with those of T.deep steps; the last turn ends a block if LAST, the first goes on with
    one if `more`. Two products are under way at a time: of a turn, of one part of the rows each.

    held: words of the first step; left: codes of its first turn; both come back as the next one's
    parts: sums of a block that are being added up; own: scales and zero points of each step
    zero: of the turn that follows
    """
    PARTS: gl.constexpr = T.parts
    TURNS: gl.constexpr = T.turns
    EACH: gl.constexpr = TURNS // T.columns  # turns of a block
    JOBS: gl.constexpr = TURNS * T.deep * PARTS
    parts = (
        begun(ring, left, parts[0], step, more, 0, T), begun(ring, left, parts[1], step, more, 1, T)
    )  # fmt: skip
    then = left
    for j in gl.static_range(JOBS):
        if (j + 2) % PARTS == 0:  # what comes into line begins a turn
            held, then = decoded(ring, held, own, zero, step, steps, (j + 2) // PARTS, T, FROM, OUT)
        if j % PARTS == PARTS - 1:  # the last product of `left`
            done, left = warpgroup_mma_wait(1 if j < JOBS - 1 else 0, deps=(parts[j % 2], left))
        else:
            done = warpgroup_mma_wait(1, deps=(parts[j % 2],))
        if ends(j // PARTS, T, LAST):
            scale = own[j // PARTS // TURNS][0][j // PARTS % TURNS // EACH]
            sums = with_one(sums, j % PARTS, added(done, scale, sums[j % PARTS], T), PARTS)
        if j % PARTS == PARTS - 1:
            left = then
            if j // PARTS % TURNS == TURNS - 1:
                free(ring, step + j // PARTS // TURNS, T)
        if j + 2 < JOBS:
            more = not ends((j + 2) // PARTS - 1, T, LAST)
            by = left if (j + 2) // PARTS == j // PARTS else then
            done = begun(ring, by, done, step, more, j + 2, T)
        parts = with_one(parts, j % 2, done, 2)
    return held, left, parts, sums


@gluon.jit
def sides(side, step, T: gl.constexpr):
    """What `stored` gives of each of T.deep steps."""
    COUNT: gl.constexpr = T.deep
    found = ()
    for i in gl.static_range(COUNT):
        found = found + (stored(side, step + i, T),)  # type: ignore[assignment]  # noqa: RUF005
    return found


@gluon.jit
def nothing(T: gl.constexpr, OUT: gl.constexpr, COUNT: gl.constexpr):
    """COUNT parts of zeros."""
    PART: gl.constexpr = T.part
    found = ()
    for _ in gl.static_range(COUNT):
        zero = gl.zeros([OUT, PART], gl.float32, product(T, OUT))
        found = found + (zero,)  # type: ignore[assignment]  # noqa: RUF005
    return found


@gluon.jit
def swept(
    ring, side, held, left, now, steps, T: gl.constexpr, FROM: gl.constexpr, OUT: gl.constexpr
):  # fmt: skip
    """Sums over all steps. held: words of the first, left: its first turn's codes, now: `sides`."""
    PARTS: gl.constexpr = T.parts
    BLOCK: gl.constexpr = T.block
    DEEP: gl.constexpr = T.deep
    parts, sums = nothing(T, OUT, 2), nothing(T, OUT, PARTS)
    if BLOCK == 0:
        for step in range(steps):
            held, left, parts, sums = several(
                ring, held, left, parts, sums, now, now[0][1][0], step, steps, True,
                T, FROM, OUT, False,
            )  # fmt: skip
        sums = parts
    else:
        for group in range(steps // (BLOCK * DEEP)):
            step = group * BLOCK * DEEP
            then = sides(side, step + BLOCK * DEEP, T)
            for inner in range(BLOCK - 1):
                held, left, parts, sums = several(
                    ring, held, left, parts, sums, now, now[0][1][0], step + inner, steps,
                    inner > 0, T, FROM, OUT, False,
                )  # fmt: skip
            held, left, parts, sums = several(
                ring, held, left, parts, sums, now, then[0][1][0], step + BLOCK - 1, steps,
                BLOCK > 1, T, FROM, OUT, True,
            )  # fmt: skip
            now = then
    return sums


@gluon.jit
def by_slots(given, base, T: gl.constexpr, FROM: gl.constexpr, OUT: gl.constexpr):
    """Sums of the outputs from `base` on, of all parts of the rows."""
    ring, n, first, steps = given[0], given[4], given[7], given[8]
    scale, zero, scale_stride, count = given[1]
    R: gl.constexpr = T.reading
    own = base + gl.arange(0, OUT, layout=gl.SliceLayout(1, product(T, OUT)))
    at_s = of_blocks(gl.minimum(own, n - 1).to(gl.int64), R) * scale_stride
    own = base + gl.arange(0, OUT, layout=gl.SliceLayout(1, slots_layout(OUT)))
    at_z = of_blocks(gl.minimum(own, n - 1).to(gl.int64), R) * scale_stride
    side = (scale, at_s, zero, at_z, first, count)
    now = sides(side, 0, T)
    held = opened(ring, 0, T, FROM, OUT)
    left = operand(held[0], now[0][1][0], T, OUT)
    return swept(ring, side, held, left, now, steps, T, FROM, OUT)
