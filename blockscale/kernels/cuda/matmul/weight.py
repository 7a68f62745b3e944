# SPDX-License-Identifier: BSD-3-Clause
"""A quantized weight as the ways to multiply take it: as words, with factors of its outputs."""

import os
from typing import NamedTuple

import torch
from torch import Tensor

from blockscale.core import reference
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.kernels.cuda.matmul.reading import Reading


class Weight(NamedTuple):
    """A quantized weight [n, k] as the op gets it.

    codes: packed, [n, bytes], or [n, k] where a code fills whole bytes
    scale, zero_point: one for each block; outer: of scales that have scales of their own
    """

    codes: Tensor
    scale: Tensor
    zero_point: Tensor | None
    outer: Tensor | None


def exact_products() -> str | None:
    """What the environment says of products whose loss a bfloat16 result hides (docs/numerics.md,
    7): "exact" for none of them, or nothing."""
    return os.environ.get("BLOCKSCALE_WEIGHT_PRODUCTS")


def as_words(codes: Tensor) -> Tensor | None:
    """Packed codes [n, bytes] as int32 [n, words], or None where they do not lie so."""
    stride = codes.stride(0)
    if codes.stride(-1) != 1 or stride % 4 or codes.shape[-1] % 4 or codes.data_ptr() % 4:
        return None
    return codes.view(torch.int32)


def scale_stride(weight: Weight) -> int:
    """How far apart the scales of one row of blocks and the next are; 0 where there is one row."""
    return weight.scale.stride(0) if weight.scale.shape[0] > 1 else 0


class OutputFactors(NamedTuple):
    """What the sums of each output are multiplied by: float32 [n] or [1], or None for nothing.

    stride: from one output's factor to the next one's, 0 where all have the same
    """

    values: Tensor | None
    stride: int


def output_factors(weight: Weight, fmt: str, r: Reading) -> OutputFactors:
    """What of the scales is left for the sums when `r` has folded the rest into the codes."""
    if r.width:
        return OutputFactors(weight.outer, 0) if r.fold == "codes" else OutputFactors(None, 0)
    steps = reference.step_of(QParams(weight.scale, weight.outer, weight.zero_point), parse(fmt))
    if r.height > 1:
        steps = steps.repeat_interleave(r.height, 0)
    return OutputFactors(steps.reshape(-1), int(steps.numel() > 1))
