# SPDX-License-Identifier: BSD-3-Clause
"""Device code that the Triton kernels share: elements, scales, tiles, lanes, random numbers.

Words that mean the same in all of it:

    code       the bit pattern of an element, in the low bits of an int32; bits above are undefined
    step       what an element of 1 is worth: number = element times step (numerics.md, 1.3)
    in steps   a number divided by its block's step, which is what is rounded to a code
    stored     a block's scale as it is kept in memory; the step is computed from it
    outer      the scale of a two-level format's inner scales
    zero       a zero point, which is added to a number in steps: int32, after rounding, or float32,
               before it; 0 where the format has none
    block      the elements that share a scale; `poisoned` if one of them is NaN or infinite
    box        a block over k and over several dimensions before it that do not merge (tile.py)
    tile       the elements of one program, [rows, columns]; and what a kernel is compiled for
               beside the format (primitives.tiling.Tile)
    unit       a part of a block that lies in one tile, and a whole block where its scale is chosen
    program    one instance of a kernel, as Triton has it: several warps of 32 threads
    pair       two neighbours of 16 bits in one int32, the first in its low half (lanes.py)
    lane       a half of a pair
    ordinary   of a block: all its numbers are finite, and its step is far enough from both ends of
               float32's range that no quotient overflows, underflows or needs a case of its own. A
               parameter `ordinary` says that this code is compiled for such blocks alone. Only a
               kernel that chooses the scales can know it, from the largest magnitudes.
    finite     of a block: all its numbers are finite, whatever its step; so every ordinary one is
    bounded    of numbers in steps: they round to no more than the element's limits without clamping
    u          the random number of stochastic rounding, times 2^24; unused with other roundings

`spec` is a spec.Spec and `element` a core.element.ElementNumbers: Triton compiles once for each.
Where a shape is given, `units` are those of one tile, and [...] is any shape.
"""
