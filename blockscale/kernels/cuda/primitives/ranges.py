# SPDX-License-Identifier: BSD-3-Clause
"""The range of each block, from which its scale is chosen, and the kernels that pass over it alone.

x are numbers [rows, columns] of one dtype, or pairs of it as int32 (lanes.py); `tile` counts as x
does.
"""

import triton
import triton.language as tl

from blockscale.kernels.cuda.device.division import chooses_means
from blockscale.kernels.cuda.device.lanes import read, takes_pairs
from blockscale.kernels.cuda.device.numerics import EXPONENT, bits_of, narrow
from blockscale.kernels.cuda.device.scale import (
    block_offset,
    choose_step,
    narrow_scale,
    numerator,
    step_of,
    zero_point,
)
from blockscale.kernels.cuda.primitives.extremes import as_range, extremes, finite_extremes
from blockscale.kernels.cuda.primitives.means import means


@triton.jit
def ranges(
    x, found, mask, finite: tl.constexpr, dtype: tl.constexpr, spec: tl.constexpr,
    tile: tl.constexpr,
):  # fmt: skip
    """A tile of whole blocks -> the `low` and `high` of each, float32 [units], low <= 0 <= high
    unless blocks have offsets.

    found: its Extremes; mask: bool, which elements or pairs exist; finite: all elements are
    """
    if chooses_means(spec):
        high = means(x, found, mask, finite, dtype, spec, tile)
        low = 0.0 - high
    else:
        up, down = found.high, found.low
        if not finite:
            up, down = finite_extremes(x, mask, dtype, spec, tile)
        low, high = as_range(up, down, spec)
    return low, high


@triton.jit
def largest_numerator(
    x_at, work, row, extents,
    spec: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """The largest numerator of blocks that are not poisoned, merged into `work`.

    x_at: float32, bfloat16 or float16 [batch, m, k], contiguous
    work: int32 [outer scales], 0 before: the bits of the largest numerator of each
    row: how many scales in order share an outer one, where tile.outers; else all do
    extents: a tiling.Extents
    """
    dtype: tl.constexpr = x_at.dtype.element_ty
    as_read: tl.constexpr = tile.in_pairs if takes_pairs(dtype, tile) else tile
    seen = read(x_at, extents, tile)
    found = extremes(seen.x, seen.mask, dtype, spec, as_read)
    finite: tl.constexpr = spec.poisons and not chooses_means(spec)  # others are left out
    low, high = ranges(seen.x, found, seen.mask, finite, dtype, spec, as_read)
    present = seen.present
    if spec.poisons:
        present = present & (found.top < EXPONENT)
    a = tl.where(present, numerator(low, high, spec), 0.0)
    if tile.outers:
        tl.atomic_max(work + seen.index // row, bits_of(a), mask=seen.present, sem="relaxed")
    else:
        tl.atomic_max(work, tl.max(bits_of(a)), sem="relaxed")


@triton.jit
def merge_extremes(
    x_at, work, count, extents,
    spec: tl.constexpr, tile: tl.constexpr,
):  # fmt: skip
    """The extremes of parts of blocks, merged by atomic maxima, whose order does not matter.

    x_at: float32, bfloat16 or float16 [batch, m, k], contiguous
    work: int32 [3, count], 0 before, with offsets -2^31: the `high`, `low` and `top` of each block,
          as Extremes has them; `low` and `top` only for formats that ask for them
    count: how many blocks there are
    extents: a tiling.Extents
    """
    dtype: tl.constexpr = x_at.dtype.element_ty
    as_read: tl.constexpr = tile.in_pairs if takes_pairs(dtype, tile) else tile
    seen = read(x_at, extents, tile)
    high, low, top = extremes(seen.x, seen.mask, dtype, spec, as_read)
    if tl.max(top) >= EXPONENT:
        high, low = finite_extremes(seen.x, seen.mask, dtype, spec, as_read)
    at = work + seen.index
    tl.atomic_max(at, high, mask=seen.present, sem="relaxed")
    if spec.statistic == "range":
        tl.atomic_max(at + count, low, mask=seen.present, sem="relaxed")
    if spec.poisons:
        tl.atomic_max(at + 2 * count, top, mask=seen.present, sem="relaxed")


@triton.jit
def finish(work, scale, zero, offset, count, spec: tl.constexpr, columns: tl.constexpr):
    """What `merge_extremes` left -> stored scales, and zero points or offsets.

    work: int32 [3, count]; count: how many blocks there are
    scale: [count], as stored; zero: int32 or floats [count], offset: floats [count]; None
        where the format has none
    columns: blocks of one program
    """
    index = tl.program_id(0).to(tl.int64) * columns + tl.arange(0, columns)
    present = index < count
    high = tl.load(work + index, mask=present, other=0)
    low = tl.load(work + count + index, mask=present, other=0)
    low, high = as_range(high, low, spec)
    poisoned = high != high
    if spec.poisons:
        poisoned = tl.load(work + 2 * count + index, mask=present, other=0) >= EXPONENT
    stored = choose_step(low, high, poisoned, 1.0, False, spec)
    tl.store(scale + index, narrow_scale(stored, scale.dtype.element_ty), mask=present)
    if spec.asym:
        zeros = zero_point(low, step_of(stored, 1.0, spec), spec)
        tl.store(zero + index, narrow(zeros, zero.dtype.element_ty), mask=present)
    if spec.offset != "":
        added = block_offset(low, step_of(stored, 1.0, spec), spec)
        tl.store(offset + index, narrow(added, offset.dtype.element_ty), mask=present)
