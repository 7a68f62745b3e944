# SPDX-License-Identifier: BSD-3-Clause
"""Device code of "fused" for 6-bit codes: 32 lie in six words, which no tile of the copy engine is.

So words go from memory to registers, two steps ahead. A thread reads six that lie together, of two
rows: 32 codes of one scale, of which it multiplies 16 in a turn. Arguments are named as in
fused_operands.py; the terms: the glossary in matmul/__init__.py.
"""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from blockscale.kernels.cuda.matmul.hopper.few import bits, of_blocks, powers
from blockscale.kernels.cuda.matmul.hopper.fused_operands import (
    free,
    left_operand,
    product,
    right_of,
)
from blockscale.kernels.cuda.matmul.hopper.fused_slots import together, types


class SixBitSide(NamedTuple):
    """Where a thread's codes and scales lie.

    weight: pointers to the first two of six words, [outputs, 4, 2]; words: of a row
    scale: as it is stored; scale_at: where each output's row of it is; count: scales of a row
    thread: number of a thread among the four of a row, [1, 4]
    first: the program's first step
    """

    weight: gl.tensor
    words: gl.tensor
    scale: gl.tensor
    scale_at: gl.tensor
    thread: gl.tensor
    first: gl.tensor
    count: gl.tensor


@gluon.constexpr_function
def words_layout(outputs):
    """Words [outputs, 4, 2]: two that lie together, of the four threads that share a row."""
    return gl.DistributedLinearLayout(
        reg_bases=bits([1], 3, 2) + bits([8], 3, 0),
        lane_bases=bits([1, 2], 3, 1) + bits([1, 2, 4], 3, 0),
        warp_bases=bits(powers(16, outputs), 3, 0), block_bases=[], shape=[outputs, 4, 2],
    )  # fmt: skip


@gluon.jit
def fetch(side, step, T: gl.constexpr):
    """Of a step six words [outputs, 4] and the stored scales [outputs, 4] of each thread's codes;
    zeros where there are none."""
    words = ()
    k0 = (side.first + step) * 24
    for j in gl.static_range(3):
        at = k0 + 2 * j
        there = side.thread * 6 < side.words - at  # rows are whole pairs
        tile = gl.load(side.weight + at, mask=there.expand_dims(2), other=0)
        words = words + gl.split(tile)
    stored = side.thread
    if T.reading.fold != "":
        block = ((side.first + step) * 128 + side.thread * 32) // T.reading.width
        stored = gl.load(side.scale + side.scale_at + block, mask=block < side.count, other=0)
    return words, stored


@gluon.jit
def factor(stored, T: gl.constexpr):
    """Stored scales [outputs, 4] -> bfloat16, exact."""
    if T.reading.fold == "floats":
        by = stored.to(gl.bfloat16)
    else:  # the program takes four
        by, _ = gl.split(
            gl.inline_asm_elementwise(
                T.reading.decode_scale, "=r,=r,r", [gl.join(stored, stored)],
                dtype=gl.bfloat16, is_pure=True, pack=4,
            )
        )  # fmt: skip
    return by


@gluon.jit
def turn(regs, HALF: gl.constexpr, T: gl.constexpr, OUT: gl.constexpr):
    """The first or last eight codes of each three words -> bfloat16 [outputs, 64]."""
    DECODE: gl.constexpr = T.back if HALF else T.front
    words, stored = regs
    inputs = [words[0], words[1], words[2], words[3], words[4], words[5]]
    if T.reading.fold != "":
        by = factor(stored, T)
        inputs = [words[0], words[1], words[2], words[3], words[4], words[5], by]
    pairs = gl.inline_asm_elementwise(DECODE, T.asm, inputs, dtype=types(16), is_pure=True, pack=2)
    both = gl.join(together(pairs, 0, 8, 1), together(pairs, 8, 8, 1))
    both = both.reshape([OUT // 16, 2, 8, 4, 4, 2, 2]).permute(0, 6, 2, 4, 5, 3, 1)
    return gl.convert_layout(both.reshape([OUT, 64]), left_operand(T, OUT), assert_trivial=True)


@gluon.jit
def ready(ring, step, T: gl.constexpr):
    """Wait for a step's x."""
    STAGES: gl.constexpr = T.stages
    mbarrier.wait(ring.full.index(step % STAGES), step // STAGES & 1)


@gluon.jit
def summed(ring, side, sums, begin, end, T: gl.constexpr, OUT: gl.constexpr):
    """`sums` with the steps from `begin` to `end`. As fused.by_halves."""
    now = fetch(side, begin, T)
    then = fetch(side, begin + 1, T)
    ready(ring, begin, T)
    lhs = turn(now, 0, T, OUT)
    token = warpgroup_mma(lhs, right_of(ring, begin, 0, T), sums, is_async=True)
    for step in range(begin, end - 1):
        back = turn(now, 1, T, OUT)
        token = warpgroup_mma(back, right_of(ring, step, 1, T), token, is_async=True)
        now = then
        then = fetch(side, step + 2, T)
        lhs = warpgroup_mma_wait(1, deps=(lhs,))
        ready(ring, step + 1, T)
        lhs = turn(now, 0, T, OUT)
        token = warpgroup_mma(lhs, right_of(ring, step + 1, 0, T), token, is_async=True)
        back = warpgroup_mma_wait(1, deps=(back,))
        free(ring, step, T)
    back = turn(now, 1, T, OUT)
    token = warpgroup_mma(back, right_of(ring, end - 1, 1, T), token, is_async=True)
    sums, lhs, back = warpgroup_mma_wait(0, deps=(token, lhs, back))
    free(ring, end - 1, T)
    return sums


@gluon.jit
def by_six_bits(task, base, T: gl.constexpr, OUT: gl.constexpr):
    """Sums [outputs, rows] of the outputs from `base` on. task: fused_operands.Task"""
    ring, memory, n, steps = task.ring, task.memory, task.n, task.steps
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
    at_w = memory.weight + (rn * memory.word_stride).expand_dims(2) + word
    at_s = of_blocks(rn, R) * memory.scale_stride
    side = SixBitSide(at_w, memory.words, memory.scale, at_s, thread, task.first, memory.count)
    sums = gl.zeros([OUT, BM], gl.float32, product(T, OUT))
    if BLOCK == 0:
        sums = summed(ring, side, sums, 0, steps, T, OUT)
    else:
        for block in range(steps // BLOCK):
            part = gl.zeros([OUT, BM], gl.float32, product(T, OUT))
            sums += summed(ring, side, part, block * BLOCK, (block + 1) * BLOCK, T, OUT)
    return sums
