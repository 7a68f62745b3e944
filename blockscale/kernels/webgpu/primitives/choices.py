# SPDX-License-Identifier: BSD-3-Clause
"""The roles that kernels of formats have in common, and their shaders."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from blockscale.kernels.webgpu.gpu.device import gpu
from blockscale.kernels.webgpu.gpu.probe import Device, arithmetic
from blockscale.kernels.webgpu.gpu.shader import Constant, Kernel, Roles, Shader
from blockscale.kernels.webgpu.primitives.form import DTYPES, Form
from blockscale.kernels.webgpu.spec import Coding, shader_of

Constants = dict[str, Constant]
HARDWARE = "plain"  # tests compute as devices that round divisions by ulps and flush subnormals


@dataclass(frozen=True)
class Numbers(Roles):
    """How numbers of a dtype are read and written.

    dtype: memory/float/{dtype}; load, store: memory/load/{load}, memory/store/{store}
    """

    dtype: str
    load: str
    store: str


def coding(f: Form) -> Coding:
    """A format on this process's device.

    Exact quotients of the device's own floats are its fastest way: no short cut comes before them.
    """
    own, device = shader_of(f.format)[0], of_device()
    native = device.arithmetic == "native"
    return Coding(replace(own, approximate="none") if native else own, device)


def of_device() -> Device:
    """What this process's device computes with where it can."""
    wide = "native" if "shader-int64" in gpu().features else "words"
    return Device(arithmetic(), HARDWARE, wide)


def numbers(dtype: torch.dtype) -> Numbers:
    """How numbers of a dtype are read and written."""
    halves = "words" if dtype == torch.float32 else "halves"
    return Numbers(DTYPES[dtype], halves, halves)


def shader(f: Form, kernel: Kernel, constants: Mapping[str, Constant]) -> Shader:
    """A kernel for a format: its constants are the format's, and these."""
    return Shader(kernel, tuple((dict(shader_of(f.format)[1]) | dict(constants)).items()))
