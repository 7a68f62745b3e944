# SPDX-License-Identifier: BSD-3-Clause
"""One part of shaders on arrays: what goes in and what comes out are words."""

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from blockscale.kernels.webgpu.gpu.launch import launch
from blockscale.kernels.webgpu.gpu.memory import allocate, download, upload
from blockscale.kernels.webgpu.gpu.shader import Shader
from blockscale.kernels.webgpu.spec import shader_of
from tests.support.same import bits


def words(*columns: Tensor) -> Tensor:
    """Tensors [n] of float32, or of integers of any dtype -> int32 [n, columns]."""
    cut = [c if c.dtype == torch.float32 else c.to(torch.int64) & 0xFFFFFFFF for c in columns]
    return torch.stack([_word(c) for c in torch.broadcast_tensors(*cut)], 1)


def _word(x: Tensor) -> Tensor:
    if x.dtype == torch.float32:
        return x.contiguous().view(torch.int32)
    return torch.where(x >= 2**31, x - 2**32, x).to(torch.int32)


def run(shader: Shader, names: tuple[str, str], asked: Tensor, columns: int) -> Tensor:
    """int32 [n, questions] -> what the shader writes, int32 [n, columns]."""
    count = asked.shape[0]
    result = allocate(count * columns * 4)
    launch(
        shader,
        {names[0]: upload(asked), names[1]: result},
        {"count": count},
        -(-count // 64),
        baked=False,
    )
    return download(result, (count, columns), torch.int32)


def shader(kernel: str, fmt: str, **choices: str) -> Shader:
    """The shader of a kernel for a format, with other choices for some roles."""
    chosen, constants = shader_of(fmt)
    return Shader(kernel, tuple((dict(chosen) | choices).items()), constants)


def with_choices(made: Shader, choices: Mapping[str, str]) -> Shader:
    """A shader with other choices."""
    return replace(made, choices=tuple((dict(made.choices) | dict(choices)).items()))


def same_bits(found: Tensor, expected: Tensor) -> Tensor:
    """int32 words against float32: bool, every NaN alike."""
    return bits(found.view(torch.float32)) == bits(expected)
