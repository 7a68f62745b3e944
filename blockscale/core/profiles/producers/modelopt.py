# SPDX-License-Identifier: BSD-3-Clause
"""NVIDIA ModelOpt's quantized tensors, as they are exported (0.47.0, torch/quantization/qtensor).

`NVFP4QTensor`, `MXFP4QTensor`, `MXFP8QTensor` and `FP8QTensor`, each by its own `quantize`, on a
CPU. Logarithms are those of float32, rounded correctly.
"""

import torch
from torch import Tensor

from blockscale.core.format import Format
from blockscale.core.parse import parse
from blockscale.core.profiles.encoders import in_blocks, put_back, whole
from blockscale.core.profiles.knobs import Encoder, Profile
from blockscale.core.reference import QParams, widen
from blockscale.core.rounding import nearest_even
from blockscale.core.scales import TwoLevel

_LEAST_E4M3 = 2.0**-9
_MIDDLES = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)  # between the magnitudes of e2m1


def _nvfp4(x: Tensor, fmt: Format) -> tuple[Tensor, QParams]:
    """Block scales of at least 2^-9, and 1 in blocks of zeros."""
    assert isinstance(fmt.scale, TwoLevel)
    blocks = in_blocks(x, fmt)
    size = widen(blocks.abs().amax(-1, keepdim=True))
    top = size.amax() if size.numel() else torch.zeros((), device=x.device)
    outer = top / whole(top, fmt.scale.largest * fmt.levels.value)
    scale = size / (outer * fmt.levels.value)
    scale = torch.where(scale == 0, 1.0, scale).clamp(_LEAST_E4M3, fmt.scale.largest)
    inner = fmt.scale.inner.element
    codes = inner.encode(scale, nearest_even, None, False)
    step = inner.decode(codes) * outer
    steps = widen(blocks) / step
    places = fmt.element.encode(steps.abs(), nearest_even, None, False)
    return put_back(x, fmt, places + 8 * (steps < 0), scale=codes, outer=outer)


def _exponent(size: Tensor, largest: float) -> Tensor:
    """The byte of ceil(log2(size / largest)), 0 for zeros."""
    target = size / whole(size, largest)
    logarithm = target.double().log2().to(torch.float32).ceil()
    return torch.where(target > 0, logarithm, -127.0).clamp(-127, 127) + 127


def _mxfp4(x: Tensor, fmt: Format) -> tuple[Tensor, QParams]:
    """Numbers in the middle go to zero, and 0 becomes -0."""
    blocks = in_blocks(widen(x), fmt)
    byte = _exponent(blocks.abs().amax(-1, keepdim=True), fmt.levels.value)
    steps = blocks / torch.ldexp(torch.ones_like(byte), (byte - 127).int())
    middles = torch.tensor(_MIDDLES, device=x.device)
    places = torch.bucketize(steps.abs().contiguous(), middles)
    return put_back(x, fmt, places + 8 * (steps <= 0), scale=byte)


def _mxfp8(x: Tensor, fmt: Format) -> tuple[Tensor, QParams]:
    blocks = in_blocks(widen(x), fmt)
    byte = _exponent(blocks.abs().amax(-1, keepdim=True), fmt.levels.value)
    steps = torch.ldexp(blocks, (127 - byte).int())
    return put_back(x, fmt, fmt.element.encode(steps, nearest_even, None, False), scale=byte)


def _profile(name: str, spelling: str, encoder: Encoder | None = None, **rules: object) -> Profile:
    return Profile(
        name=f"modelopt.{name}",
        version="0.47.0",
        format=parse(spelling),
        encoder=encoder,
        whole_blocks=True,
        **rules,  # type: ignore[arg-type]
    )


PROFILES = (
    _profile("nvfp4", "e2m1:group16:e4m3", _nvfp4),
    _profile("mxfp4", "e2m1:group32:e8m0/given", _mxfp4),
    _profile("mxfp8", "e4m3:group32:e8m0/given", _mxfp8),
    _profile(
        "fp8",
        "e4m3:tensor:fp32",
        scale_type="input",
        scale_arithmetic="input",
        code_arithmetic="input",
        least=0.0,
        blocks=("channel0",),
    ),
)
