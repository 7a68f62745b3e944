"""Linear layers of 6-bit codes: 32 of them lie in six words, which the copy engine's tiles are not.

So words go from memory to registers, two steps ahead. A thread reads six that lie together, of two
rows: 32 codes of one scale, of which it multiplies 16 in a turn. Arguments as in operands.py.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from blockscale.kernels.cuda.matmul.hopper.few import bits, of_blocks, powers
from blockscale.kernels.cuda.matmul.hopper.linear_slots import together, types
from blockscale.kernels.cuda.matmul.hopper.operands import free, left_operand, product, right_of


@gluon.constexpr_function
def words_layout(outputs):
    """Words [outputs, 4, 2]: two that lie together, of the four threads that share a row."""
    return gl.DistributedLinearLayout(
        reg_bases=bits([1], 3, 2) + bits([8], 3, 0),
        lane_bases=bits([1, 2], 3, 1) + bits([1, 2, 4], 3, 0),
        warp_bases=bits(powers(16, outputs), 3, 0), block_bases=[], shape=[outputs, 4, 2],
    )  # fmt: skip


@gluon.jit
def fetched(side, step, T: gl.constexpr):
    """Of a step six words [outputs, 4] and the stored scales [outputs, 4] of each thread's codes;
    zeros where there are none."""
    at_w, words, scale, at_s, thread, first, count = side
    found = ()
    k0 = (first + step) * 24
    for j in gl.static_range(3):
        at = k0 + 2 * j
        there = thread * 6 < words - at  # rows are whole pairs
        tile = gl.load(at_w + at, mask=there.expand_dims(2), other=0)
        found = found + gl.split(tile)
    stored = thread
    if T.reading.fold != "":
        block = ((first + step) * 128 + thread * 32) // T.reading.width
        stored = gl.load(scale + at_s + block, mask=block < count, other=0)
    return found, stored


@gluon.jit
def factor(stored, T: gl.constexpr):
    """Stored scales [outputs, 4] -> bfloat16, exact."""
    if T.reading.fold == "floats":
        found = stored.to(gl.bfloat16)
    else:  # the program takes four
        found, _ = gl.split(
            gl.inline_asm_elementwise(
                T.reading.decode_scale, "=r,=r,r", [gl.join(stored, stored)],
                dtype=gl.bfloat16, is_pure=True, pack=4,
            )
        )  # fmt: skip
    return found


@gluon.jit
def turn(held, HALF: gl.constexpr, T: gl.constexpr, OUT: gl.constexpr):
    """The first or last eight codes of each three words -> bfloat16 [outputs, 64]."""
    DECODE: gl.constexpr = T.back if HALF else T.front
    words, stored = held
    given = [words[0], words[1], words[2], words[3], words[4], words[5]]
    if T.reading.fold != "":
        by = factor(stored, T)
        given = [words[0], words[1], words[2], words[3], words[4], words[5], by]
    found = gl.inline_asm_elementwise(DECODE, T.asm, given, dtype=types(16), is_pure=True, pack=2)
    both = gl.join(together(found, 0, 8, 1), together(found, 8, 8, 1))
    both = both.reshape([OUT // 16, 2, 8, 4, 4, 2, 2]).permute(0, 6, 2, 4, 5, 3, 1)
    return gl.convert_layout(both.reshape([OUT, 64]), left_operand(T, OUT), assert_trivial=True)


@gluon.jit
def ready(ring, step, T: gl.constexpr):
    """Wait for a step's x."""
    STAGES: gl.constexpr = T.stages
    mbarrier.wait(ring[2].index(step % STAGES), step // STAGES & 1)


@gluon.jit
def summed(ring, side, sums, begin, end, T: gl.constexpr, OUT: gl.constexpr):
    """`sums` with the steps from `begin` to `end`. As linear.by_halves."""
    now = fetched(side, begin, T)
    then = fetched(side, begin + 1, T)
    ready(ring, begin, T)
    left = turn(now, 0, T, OUT)
    token = warpgroup_mma(left, right_of(ring, begin, 0, T), sums, is_async=True)
    for step in range(begin, end - 1):
        back = turn(now, 1, T, OUT)
        token = warpgroup_mma(back, right_of(ring, step, 1, T), token, is_async=True)
        now = then
        then = fetched(side, step + 2, T)
        left = warpgroup_mma_wait(1, deps=(left,))
        ready(ring, step + 1, T)
        left = turn(now, 0, T, OUT)
        token = warpgroup_mma(left, right_of(ring, step + 1, 0, T), token, is_async=True)
        back = warpgroup_mma_wait(1, deps=(back,))
        free(ring, step, T)
    back = turn(now, 1, T, OUT)
    token = warpgroup_mma(back, right_of(ring, end - 1, 1, T), token, is_async=True)
    sums, left, back = warpgroup_mma_wait(0, deps=(token, left, back))
    free(ring, end - 1, T)
    return sums


@gluon.jit
def by_six(given, base, T: gl.constexpr, OUT: gl.constexpr):
    """Sums of the outputs from `base` on."""
    ring, n, first, steps = given[0], given[4], given[7], given[8]
    scale, _, scale_stride, count = given[1]
    weight, word_stride, words = given[9]
    R: gl.constexpr = T.reading
    BM: gl.constexpr = T.rows
    BLOCK: gl.constexpr = T.block
    WORDS: gl.constexpr = words_layout(OUT)
    PAIR: gl.constexpr = gl.SliceLayout(2, WORDS)
    rn = base + gl.arange(0, OUT, layout=gl.SliceLayout(1, PAIR))
    rn = gl.minimum(rn, n - 1).to(gl.int64)[:, None]
    thread = gl.arange(0, 4, layout=gl.SliceLayout(0, PAIR))[None, :]
    inside = gl.arange(0, 2, layout=gl.SliceLayout(0, gl.SliceLayout(1, WORDS)))
    word = thread.expand_dims(2) * 6 + inside.expand_dims(0).expand_dims(1)
    at_w = weight + (rn * word_stride).expand_dims(2) + word
    at_s = of_blocks(rn, R) * scale_stride
    side = (at_w, words, scale, at_s, thread, first, count)
    sums = gl.zeros([OUT, BM], gl.float32, product(T, OUT))
    if BLOCK == 0:
        sums = summed(ring, side, sums, 0, steps, T, OUT)
    else:
        for block in range(steps // BLOCK):
            part = gl.zeros([OUT, BM], gl.float32, product(T, OUT))
            sums += summed(ring, side, part, block * BLOCK, (block + 1) * BLOCK, T, OUT)
    return sums
