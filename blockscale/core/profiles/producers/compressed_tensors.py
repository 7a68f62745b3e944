# SPDX-License-Identifier: BSD-3-Clause
"""compressed-tensors: `calculate_qparams` and `quantize` without observers' history (0.20.0).

What llm-compressor stores when it rounds to nearest. Scales are computed and stored in the weight's
dtype, and so are numbers of steps. Sources: quantization/utils/helpers.py (`calculate_qparams`,
`generate_gparam`), quantization/utils/mxfp_utils.py, quantization/lifecycle/forward_helpers.py.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from blockscale.core.format import Format
from blockscale.core.parse import parse
from blockscale.core.profiles.encoders import in_blocks, put_back, whole
from blockscale.core.profiles.knobs import Profile
from blockscale.core.reference import QParams, widen
from blockscale.core.rounding import nearest_even
from blockscale.core.scales import TwoLevel

_ZERO_E4M3 = 0.125  # the scale of blocks of zeros under nvfp4


def _nonzero(scale: Tensor) -> Tensor:
    """A scale of 0 becomes its dtype's eps."""
    return torch.where(scale == 0, torch.finfo(scale.dtype).eps, scale)


def _symmetric(x: Tensor, fmt: Format) -> tuple[Tensor, QParams]:
    """Integers and e4m3: half the range of codes is what the largest magnitude is divided by."""
    blocks, element = in_blocks(x, fmt), fmt.element
    low, high = element.limits(True)
    size = blocks.abs().amax(-1, keepdim=True)
    scale = _nonzero(size / whole(size, (high - low) / 2))
    steps = (blocks / scale + 0.0).clamp(low, high)  # a zero point of 0 is added: -0 is 0
    codes = element.encode(steps.float(), nearest_even, None, True)
    return put_back(x, fmt, codes, scale=scale)


def _asymmetric(x: Tensor, fmt: Format) -> tuple[Tensor, QParams]:
    """Codes and zero points are from -2^(bits - 1) on in its files; here from 0 on."""
    blocks, half = in_blocks(x, fmt), 2 ** (fmt.bits - 1)
    low = blocks.amin(-1, keepdim=True).clamp(max=0.0)
    high = blocks.amax(-1, keepdim=True).clamp(min=0.0)
    unsafe = (high - low) / whole(low, 2 * half - 1)
    zero = (-half - low / unsafe).clamp(-half, half - 1).round()
    zero = torch.where(zero.isnan(), 0.0, zero)
    codes = (blocks / _nonzero(unsafe) + zero).clamp(-half, half - 1).round()
    return put_back(x, fmt, codes + half, scale=_nonzero(unsafe), zero_point=zero + half)


def _nvfp4(x: Tensor, fmt: Format) -> tuple[Tensor, QParams]:
    """A stored reciprocal outer scale; block scales have no least but that of e4m3."""
    assert isinstance(fmt.scale, TwoLevel)
    blocks = in_blocks(x, fmt)
    size = blocks.abs().amax(-1, keepdim=True)
    top = size.amax() if size.numel() else size.new_zeros(())
    inverse = top.clamp(min=torch.finfo(x.dtype).tiny).reciprocal()  # as torch divides a number
    outer = widen(inverse * (fmt.scale.largest * fmt.levels.value))
    outer = torch.where(outer.isfinite(), outer, 1.0)
    target = outer * widen(size / whole(size, fmt.levels.value))
    inner = fmt.scale.inner.element
    codes = inner.encode(target.clamp(max=fmt.scale.largest), nearest_even, None, False)
    value = inner.decode(codes)
    least = inner.encode(whole(value, _ZERO_E4M3), nearest_even, None, False)
    codes = torch.where(value == 0, least, codes)
    step = torch.where(value == 0, _ZERO_E4M3, value) / outer
    steps = widen(blocks) / step + 0.0
    encoded = fmt.element.encode(steps, nearest_even, None, False)
    return put_back(x, fmt, encoded, scale=codes, outer=outer)


def _microscaling(x: Tensor, fmt: Format) -> tuple[Tensor, QParams]:
    """The exponent of the largest number, after a carry that depends on the element's mantissa."""
    blocks = in_blocks(x, fmt)
    size = blocks.abs().amax(-1, keepdim=True)
    bits, fraction = (torch.int32, 23) if x.dtype == torch.float32 else (torch.int16, 7)
    fraction = 10 if x.dtype == torch.float16 else fraction
    add = 1 << (fraction - (3 if fmt.bits == 6 else 1) - 1)
    power = ((size.view(bits) + add) >> fraction << fraction).view(x.dtype)
    exponent = widen(power).log2() - (8 if fmt.bits == 8 else 2)
    byte = (exponent + 127).clamp(0, 254)  # of 0 it is 0
    step = torch.ldexp(torch.ones_like(byte), (byte - 127).int()).to(x.dtype)
    byte = torch.where(step == 0, 127, byte)  # float16 has no 2^-127: it becomes 1
    steps = widen(blocks / torch.where(step == 0, 1.0, step) + 0.0)
    codes = fmt.element.encode(steps, nearest_even, None, False)
    return put_back(x, fmt, codes, scale=byte)


def _profiles() -> Iterator[Profile]:
    for bits in (4, 8):
        yield _profile(f"int{bits}", f"int{bits}:group128:fp32:full", _symmetric)
        yield _profile(f"uint{bits}", f"uint{bits}:group128:fp32:asym", _asymmetric)
    yield _profile("fp8", "e4m3:channel0:fp32", _symmetric)
    yield _profile("nvfp4", "e2m1:group16:e4m3/inv", _nvfp4, scale_type="format", blocks=())
    for name, element in (("mxfp4", "e2m1"), ("mxfp6", "e2m3"), ("mxfp8", "e4m3")):
        yield _profile(
            name, f"{element}:group32:e8m0/given", _microscaling, scale_type="format", blocks=()
        )


def _profile(name: str, spelling: str, encoder: object, **more: object) -> Profile:
    usual = {"scale_type": "input", "blocks": ("group", "channel0", "tensor")} | more
    return Profile(
        name=f"compressed_tensors.{name}",
        version="0.20.0",
        format=parse(spelling),
        encoder=encoder,  # type: ignore[arg-type]
        whole_blocks=True,
        **usual,  # type: ignore[arg-type]
    )


PROFILES = tuple(_profiles())
