# SPDX-License-Identifier: BSD-3-Clause
"""Kernels for a format, and how numbers of a dtype are read and written."""

from collections.abc import Mapping

import torch

from blockscale.kernels.webgpu.gpu.device import gpu
from blockscale.kernels.webgpu.gpu.probe import arithmetic
from blockscale.kernels.webgpu.gpu.shader import Constant, Shader
from blockscale.kernels.webgpu.primitives.form import DTYPES, Form
from blockscale.kernels.webgpu.spec import on_device, shader_of

Choices = dict[str, str]
Constants = dict[str, Constant]


def shader(
    kernel: str, f: Form, choices: Mapping[str, str], constants: Mapping[str, Constant]
) -> Shader:
    """A kernel for a format, with what else it chooses."""
    own, known = shader_of(f.format)
    return Shader(
        f"kernels/{kernel}",
        tuple((dict(own) | of_device() | dict(choices)).items()),
        tuple((dict(known) | dict(constants)).items()),
    )


def of_device() -> Choices:
    """What a device computes with where it can.

    Exact quotients of the device's own floats are its fastest way: no short cut comes before them.
    """
    own = on_device(gpu().features) | {"arithmetic": arithmetic()}
    return own | {"approximate": "none"} if own["arithmetic"] == "native" else own


def numbers(dtype: torch.dtype) -> Choices:
    """How numbers of a dtype are read and written."""
    halves = "words" if dtype == torch.float32 else "halves"
    return {"dtype": DTYPES[dtype], "load": halves, "store": halves}
