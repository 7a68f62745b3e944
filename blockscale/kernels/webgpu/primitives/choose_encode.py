# SPDX-License-Identifier: BSD-3-Clause
"""Codes and values of numbers that choose their scales, the way that `plan` says."""

import torch
from torch import Tensor

from blockscale.kernels.webgpu.gpu.memory import Memory
from blockscale.kernels.webgpu.primitives import encode, one_pass
from blockscale.kernels.webgpu.primitives.choose import choose
from blockscale.kernels.webgpu.primitives.encode import begins_four, seed_memory
from blockscale.kernels.webgpu.primitives.form import Form, Parts
from blockscale.kernels.webgpu.primitives.plan import TwoPasses, plan

Shape = tuple[int, ...]


def codes(
    f: Form, x: Memory, dtype: torch.dtype, shape: Shape, seed: Tensor | None
) -> tuple[Memory, Parts]:
    """Packed codes of numbers [*shape], of which there are some, and their scales."""
    seed_words = seed_memory(f, seed)
    passes = plan(f, dtype, shape, "codes", fours=begins_four(seed))
    if not isinstance(passes, TwoPasses):
        return one_pass.codes(f, x, dtype, shape, passes, seed_words)
    parts = choose(f, x, dtype, shape)
    return encode.codes(f, x, dtype, shape, parts, seed_words), parts


def values(f: Form, x: Memory, dtype: torch.dtype, shape: Shape, seed: Tensor | None) -> Memory:
    """Numbers [*shape], of which there are some, after a round trip, in their dtype."""
    seed_words = seed_memory(f, seed)
    passes = plan(f, dtype, shape, "values", fours=begins_four(seed))
    if not isinstance(passes, TwoPasses):
        return one_pass.values(f, x, dtype, shape, passes, seed_words)
    parts = choose(f, x, dtype, shape)
    return encode.values(f, x, dtype, shape, parts, seed_words)
