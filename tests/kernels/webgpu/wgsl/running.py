# SPDX-License-Identifier: BSD-3-Clause
"""One part of shaders on arrays: what goes in and what comes out are words."""

from dataclasses import dataclass

import torch
from torch import Tensor

from blockscale.kernels.webgpu.gpu.launch import launch
from blockscale.kernels.webgpu.gpu.memory import allocate, download, upload
from blockscale.kernels.webgpu.gpu.probe import DeviceArithmetic
from blockscale.kernels.webgpu.gpu.shader import Shader, ShaderKernel
from blockscale.kernels.webgpu.spec import Coding, shader_of
from tests.support.same import bits


@dataclass(frozen=True)
class ProbeCode(ShaderKernel, part="kernels/probe/code"):
    """Codes and values of four numbers with a step."""

    coding: Coding


@dataclass(frozen=True)
class ProbeChoose(ShaderKernel, part="kernels/probe/choose"):
    """Scales of extremes."""

    coding: Coding


@dataclass(frozen=True)
class ProbeRandom(ShaderKernel, part="kernels/probe/random"):
    """Random numbers."""

    random: str
    device: DeviceArithmetic


@dataclass(frozen=True)
class ProbeMeans(ShaderKernel, part="kernels/probe/means"):
    """Means, and floats of 16 bits. float: memory/float/{float}"""

    float: str
    device: DeviceArithmetic


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
        bake=False,
    )
    return download(result, (count, columns), torch.int32)


def shader(kernel: type[ProbeCode] | type[ProbeChoose], fmt: str, hardware: str) -> Shader:
    """The shader of a kernel for a format, on a device that computes so."""
    roles, constants = shader_of(fmt)
    return Shader(kernel(Coding(roles, DeviceArithmetic(hardware=hardware))), constants)


def same_bits(found: Tensor, expected: Tensor) -> Tensor:
    """int32 words against float32: bool, every NaN alike."""
    return bits(found.view(torch.float32)) == bits(expected)
