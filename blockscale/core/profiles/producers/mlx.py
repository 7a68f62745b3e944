# SPDX-License-Identifier: BSD-3-Clause
"""MLX's `quantize` on a CPU: affine with the end of larger magnitude exact, and microscaling.

Source: MLX 0.32.4, mlx/ops.cpp (`affine_quantize`, `fp_quantize`). Arithmetic is
float32; affine scales and biases are then cast to the weight's dtype, and codes are not affected.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from blockscale.core.format import Format
from blockscale.core.parse import parse
from blockscale.core.profiles.codes import first_of_equals
from blockscale.core.profiles.encoders import in_blocks, put_back, whole
from blockscale.core.profiles.knobs import Profile
from blockscale.core.reference import QParams, widen
from blockscale.core.rounding import nearest_even
from blockscale.core.scales import TwoLevel

_VERSION = "0.32.4"
_LEAST = 1e-7


def _affine(x: Tensor, fmt: Format) -> tuple[Tensor, QParams]:
    """Scales are negative where the smallest number is not the larger in magnitude."""
    blocks, levels = in_blocks(widen(x), fmt), 2**fmt.bits - 1
    low, high = blocks.amin(-1, keepdim=True), blocks.amax(-1, keepdim=True)
    below = low.abs() > high.abs()
    scale = ((high - low) / whole(low, levels)).clamp(min=_LEAST)
    scale = torch.where(below, scale, -scale)
    edge = torch.where(below, low, high)
    first = (edge / scale).round()
    is_given = first != 0
    scale = torch.where(is_given, edge / first, scale)
    bias = torch.where(is_given, edge, 0.0)
    codes = ((blocks - bias) / scale).round().clamp(0, levels)
    return put_back(x, fmt, codes, scale=scale, offset=bias)


def _nvfp4(x: Tensor, fmt: Format) -> tuple[Tensor, QParams]:
    """Block scales are e4m3 of largest / 6, without an outer scale: it is 1."""
    assert isinstance(fmt.scale, TwoLevel)
    blocks = in_blocks(widen(x), fmt)
    size = blocks.abs().amax(-1, keepdim=True)
    inner = fmt.scale.inner.element
    codes = inner.encode(size / whole(size, fmt.levels.value), nearest_even, None, False)
    step = inner.decode(codes)
    table, rest = first_of_equals(fmt.element)
    places = table.encode(blocks / step, nearest_even, None, False).long()
    result = torch.where(step == 0, 0, torch.tensor(rest, device=x.device)[places])
    return put_back(x, fmt, result, scale=codes, outer=torch.ones((), device=x.device))


def _profiles() -> Iterator[Profile]:
    for bits in (2, 3, 4, 5, 6, 8):
        yield _profile(
            f"affine{bits}",
            f"uint{bits}:group64:fp32:offset",
            encoder=_affine,
            scale_type="input",
            blocks=("group",),
        )
    mxfp4 = {"search": "first_nearest", "negative_zero": False}
    yield _profile("mxfp4", "e2m1:group32:e8m0/rceil", zero_scale=1.0, **mxfp4)
    yield _profile("mxfp8", "e4m3:group32:e8m0/rceil", zero_scale=1.0)
    yield _profile("nvfp4", "e2m1:group16:e4m3", encoder=_nvfp4)


def _profile(name: str, spelling: str, **rules: object) -> Profile:
    return Profile(
        name=f"mlx.{name}",
        version=_VERSION,
        format=parse(spelling),
        whole_blocks=True,
        **rules,  # type: ignore[arg-type]
    )


PROFILES = tuple(_profiles())
