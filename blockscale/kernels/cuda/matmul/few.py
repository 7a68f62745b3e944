# SPDX-License-Identifier: BSD-3-Clause
"""The way "few": for few rows of x, codes are decoded in the registers that memory fills.

It needs a Hopper (hopper/available.py). The device code is hopper/few.py; for small blocks that
have float scales, hopper/few_small_blocks.py; for 6-bit codes, hopper/few_six_bits.py.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton.language as tl
from torch import Tensor

from blockscale.kernels.cuda.matmul import fused
from blockscale.kernels.cuda.matmul.finish import NO_ENDS, Ends, result
from blockscale.kernels.cuda.matmul.operands import (
    OutputFactors,
    ProductCall,
    Weight,
    as_words,
    columns,
    output_factors,
    scale_stride,
    tile_rows,
)
from blockscale.kernels.cuda.matmul.order import PARTS, for_few
from blockscale.kernels.cuda.matmul.reading import WORD, Reading
from blockscale.kernels.cuda.relaunch import cdiv, direct, power_of_2


class FewSettings(NamedTuple):
    """rows, outputs: of x and of the weight that a program has
    words: of a row of the weight that a program reads at a time
    warps: of a program
    split_k: programs that divide k among them
    """

    rows: int
    outputs: int
    words: int
    warps: int
    split_k: int = 1

    @classmethod
    def read(cls, numbers: Sequence[int]) -> "FewSettings":
        """The settings of a table's entry, in which two numbers say nothing here."""
        rows, outputs, words, warps, _, split_k, _ = columns(numbers)
        return cls(rows, outputs, words, warps, split_k)

    def entry(self) -> tuple[int, ...]:
        """The numbers that a table has of them."""
        return (*self[:4], 0, self.split_k, 1)


_TO_MEASURE = tuple(FewSettings(*each) for each in (
    *((8, 32, 32, 2, 1), (8, 32, 32, 2, 4), (8, 16, 32, 1, 4), (8, 32, 64, 2, 1)),
    *((8, 32, 64, 2, 2), (8, 16, 64, 1, 1), (8, 32, 48, 2, 1), (8, 32, 48, 2, 4)),
    *((16, 32, 32, 2, 1), (16, 32, 32, 2, 4), (16, 64, 32, 2, 2), (16, 64, 32, 4, 2)),
    *((16, 32, 64, 2, 2), (16, 32, 48, 2, 2), (16, 32, 48, 2, 4)),
    *((32, 32, 32, 2, 4), (32, 64, 32, 2, 2), (32, 64, 32, 4, 2), (32, 32, 48, 2, 4)),
))  # fmt: skip


def usual_words(r: Reading) -> int:
    """Words that a program takes at a time where nothing else was measured: a line of memory."""
    return 48 if r.six_bits else 32


def takes(r: Reading, words: int) -> bool:
    """Whether steps of so many words go with the blocks of the weight."""
    if r.small_blocks:
        return r.words in (4, 8) and words <= 32 and (not r.zero or r.planes > 4)
    if r.six_bits:
        return words == usual_words(r)
    return r.planes > 0 and words in (16, 32, 64) and r.words != 1


def fits(call: ProductCall, r: Reading, settings: FewSettings) -> bool:
    """Whether the GPU runs the kernel, and the blocks of the weight allow the steps."""
    return call.fused and takes(r, settings.words)


def best(call: ProductCall, r: Reading) -> bool:
    """Whether the call has so few rows that the rule takes this way.

    Small blocks that only "few" and "blocks" read have nothing better up to 64 rows: "blocks"
    takes 3.7 times the bfloat16 layer's time there, two rows of tiles of "few" twice 1.06 times.
    """
    most = 64 if r.small_blocks and not fused.takes(r) else 32
    return call.rows <= most and takes(r, usual_words(r))


def usual(call: ProductCall, r: Reading) -> FewSettings:
    """What is taken where nothing was measured: enough programs for an H200's 132 processors six
    times, of at least four turns each."""
    words, split_k = usual_words(r), 1
    size = call.k * r.element.bits // WORD
    while cdiv(call.n, 32) * split_k < 792 and size >= 8 * words * split_k:
        split_k *= 2
    return FewSettings(min(tile_rows(call.rows, 8), 32), 32, words, 2, split_k)


def to_measure(call: ProductCall, r: Reading) -> list[FewSettings]:
    """What `tune` measures for a call."""
    if call.rows > 32:
        return []
    rows = tile_rows(call.rows, 8)
    return [s for s in _TO_MEASURE if s.rows == rows and fits(call, r, s)]


def few(
    x: Tensor,
    weight: Weight,
    fmt: str,
    r: Reading,
    ends: Ends,
    settings: FewSettings,
    dtype: torch.dtype,
) -> Tensor:
    """x [rows, k] @ weight.T -> [rows, n] of dtype."""
    n, step = weight.codes.shape[0], settings.words
    words, parts = x.shape[1] * r.element.bits // WORD, PARTS[x.dtype]
    steps = cdiv(words, settings.split_k * step)
    split_k = cdiv(words, steps * step)
    y = result(x, n, split_k * parts, dtype)
    ready = for_few(x, r, split_k * steps * step)
    now = ends if y.whole else NO_ENDS
    factors = output_factors(weight, fmt, r)
    _launch(ready, weight, factors, r, now, settings, (steps, split_k), y.sums, y.whole)
    return y.finish(ends)


def _launch(
    x: Tensor, weight: Weight, factors: OutputFactors, r: Reading, ends: Ends,
    settings: FewSettings, split: tuple[int, int], out: Tensor, whole: bool,
) -> None:  # fmt: skip
    """x as `for_few` gives it @ weight.T -> out: finished with `ends` if `whole`, else in parts.

    split: steps of settings.words words that a program sums up, and programs along k
    """
    from blockscale.kernels.cuda.matmul.hopper import few, few_six_bits, few_small_blocks

    codes: Any = as_words(weight.codes)
    rows, (n, words), (steps, split_k) = x.shape[1], codes.shape, split
    height = min(settings.rows, max(8, power_of_2(rows)))
    grid = (cdiv(n, settings.outputs), cdiv(rows, height), split_k)
    scale, zero, own = weight.scale, weight.zero_point, factors.values
    shape = (rows, n, words, codes.stride(0), scale_stride(weight), scale.shape[-1])
    to = (ends.x_row, ends.bias, out, *shape)
    options: dict[str, Any] = {
        "R": r, "DTYPES": (tl.bfloat16,) * (r.planes or 16), "BM": height, "BN": settings.outputs,
        "STEPS": steps, "WHOLE": words == split_k * steps * settings.words, "LAST": whole,
        "num_warps": settings.warps,
    }  # fmt: skip
    if r.six_bits:
        direct(few_six_bits.multiply)[grid](x, codes, scale, own, *to, factors.stride, **options)
    elif r.small_blocks:
        options["UNROLL"] = settings.words // few_small_blocks.STEP.value
        direct(few_small_blocks.multiply)[grid](x, codes, scale, zero, *to, **options)
    else:
        options["UNROLL"] = settings.words // few.STEP.value
        direct(few.multiply)[grid](x, codes, scale, zero, own, *to, factors.stride, **options)
