# SPDX-License-Identifier: BSD-3-Clause
"""Whether a device's sums round where the kernels of the fast path want them to, asked of it once.

Beside 1.5 * 2^23 the neighbours of a float32 are whole: those kernels round numbers by adding that
and subtracting it again, which a compiler that takes liberties with floats may leave out.
"""

import warnings
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from blockscale.core.parse import parse
from blockscale.core.rounding import nearest_even
from blockscale.kernels.webgpu.gpu.device import gpu
from blockscale.kernels.webgpu.gpu.launch import launch
from blockscale.kernels.webgpu.gpu.memory import allocate, download, upload
from blockscale.kernels.webgpu.gpu.shader import Kernel, Shader
from blockscale.kernels.webgpu.primitives.choices import of_device
from blockscale.kernels.webgpu.spec import Coding, shader_of

_FORMATS = ("int8:group4:e8m0/floor", "e4m3:group4:e8m0/floor")  # of each way to round


@dataclass(frozen=True)
class ProbeFastPath(Kernel, part="kernels/probe_fast_path"):
    """What numbers are rounded to. family, scaled: as those of FastParts"""

    coding: Coding
    family: str
    scaled: str


@cache
def refusal() -> str | None:
    """Why numbers cannot be rounded by sums on this device, or None; said once, as a warning."""
    wrong = [fmt.split(":")[0] for fmt in _FORMATS if _wrong(fmt)]
    if not wrong:
        return None
    reason = (
        f"{gpu().name} leaves out sums by which kernels round to {', '.join(wrong)}: slower "
        f"kernels, which round by other means, compute instead"
    )
    warnings.warn(reason, stacklevel=2)
    return reason


def _wrong(fmt: str) -> bool:
    """Whether a number of the probe is rounded to another value than the reference's."""
    element, x = parse(fmt).element, _numbers()
    right = element.decode(element.encode(x, nearest_even, None, False))
    return not torch.equal(rounded(x, fmt), right)


def rounded(x: Tensor, fmt: str) -> Tensor:
    """float32 [4 n] -> values of the format's elements, in steps of one"""
    own, constants = shader_of(fmt)
    scaled = "shift_drawn" if "stochastic" in own.approximate else "shift"
    made = Shader(ProbeFastPath(Coding(own, of_device()), own.approximate, scaled), constants)
    values = allocate(4 * len(x))
    buffers = {"numbers": upload(x), "steps": upload(torch.ones(len(x) // 4)), "values": values}
    launch(made, buffers, {"count": len(x) // 4}, -(-len(x) // 256), baked=False)
    return download(values, (len(x),), torch.float32)


def _numbers() -> Tensor:
    """Ties, their neighbours, and what lies beyond the codes."""
    quarters = torch.arange(-600.0, 600.0) / 4
    small = torch.arange(-400.0, 400.0) / 4096
    x = torch.cat([quarters, small, torch.tensor([500.0, -500.0, 1e30, -1e30])])
    beside = torch.cat([x, x * (1 + 2.0**-20), x * (1 - 2.0**-20)])
    return beside[: len(beside) // 4 * 4]
