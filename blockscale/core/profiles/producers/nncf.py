# SPDX-License-Identifier: BSD-3-Clause
"""NNCF's `compress_weights` of OpenVINO models, without data (3.4.0 with OpenVINO 2026.4.1).

Codes are chosen with float32 scales, which the file then stores as float16. Weights of 10,000
numbers and more, as all but toys have, go through a graph of OpenVINO's own; the rules are its.
Sources: openvino/optimized_functions/models.py (`_build_integer_quantization_model`,
`_build_float_quantization_model`) and quantization/algorithms/weight_compression/.
"""

import torch
from torch import Tensor

from blockscale.core.elements.codebook import Codebook
from blockscale.core.format import Format
from blockscale.core.parse import parse
from blockscale.core.profiles.encoders import in_blocks, put_back, whole
from blockscale.core.profiles.knobs import Encoder, Profile
from blockscale.core.reference import QParams, widen
from blockscale.core.rounding import nearest_even

_EPS = 2.0**-23  # in the place of smaller scales
_LARGEST_E4M3 = 448.0
_HALVES = parse("nf4:tensor:fp32").element  # what a file's table, in float16, was rounded from


def _at_least(scale: Tensor) -> Tensor:
    return torch.where(scale.abs() < _EPS, _EPS, scale)


def _symmetric(x: Tensor, fmt: Format) -> tuple[Tensor, QParams]:
    """The end of larger magnitude is the code -2^(bits - 1), by the sign of the scale."""
    blocks, half = in_blocks(widen(x), fmt), 2 ** (fmt.bits - 1)
    low, high = blocks.amin(-1, keepdim=True).abs(), blocks.amax(-1, keepdim=True)
    end = torch.where(low >= high, low, -high)
    scale = _at_least(end / whole(end, half))
    codes = (blocks / scale).round().clamp(-half, half - 1)
    return put_back(x, fmt, codes, scale=scale)


def _asymmetric(x: Tensor, fmt: Format) -> tuple[Tensor, QParams]:
    """The zero point is added before a number of steps is rounded."""
    blocks, levels = in_blocks(widen(x), fmt), 2**fmt.bits - 1
    low = blocks.amin(-1, keepdim=True).clamp(max=0.0)
    high = blocks.amax(-1, keepdim=True).clamp(min=0.0)
    scale = _at_least((high - low) / whole(low, levels))
    zero = (-(low / scale).round()).clamp(0, levels)
    codes = (blocks / scale + zero).round().clamp(0, levels)
    return put_back(x, fmt, codes, scale=scale, zero_point=zero)


def _steps(blocks: Tensor, largest: float) -> tuple[Tensor, Tensor]:
    """Numbers in steps, and the steps: what is too small to divide by is found before."""
    size = _at_least(blocks.abs().amax(-1, keepdim=True))
    scale = size / whole(size, largest)
    return blocks / scale, scale


def _encode(steps: Tensor, fmt: Format) -> Tensor:
    """Float32 becomes float16 on its way to eight bits (OpenVINO, `float8_e4m3`)."""
    if isinstance(fmt.element, Codebook):
        return _HALVES.encode(steps, nearest_even, None, False)
    if fmt.element.bits == 8:
        steps = steps.to(torch.float16).to(torch.float32)
    return fmt.element.encode(steps, nearest_even, None, False)


def _floats(x: Tensor, fmt: Format) -> tuple[Tensor, QParams]:
    steps, scale = _steps(in_blocks(widen(x), fmt), fmt.levels.value)
    return put_back(x, fmt, _encode(steps, fmt), scale=scale)


def _two_levels(x: Tensor, fmt: Format) -> tuple[Tensor, QParams]:
    """Scales as codes of e4m3 with one scale of their own; a step is their product as float16."""
    steps, scale = _steps(in_blocks(widen(x), fmt), fmt.levels.value)
    inner = parse("e4m3:tensor:fp32")
    largest = scale.amax() if scale.numel() else scale.new_zeros(())
    outer = _at_least(largest / whole(largest, _LARGEST_E4M3))
    step = inner.element.decode(_encode(scale / outer, inner)) * outer
    return put_back(x, fmt, _encode(steps, fmt), scale=step)


def _profile(name: str, spelling: str, encoder: Encoder) -> Profile:
    return Profile(
        name=f"nncf.{name}",
        version="3.4.0",
        format=parse(spelling),
        blocks=("group", "channel0"),
        encoder=encoder,
        whole_blocks=True,
    )


_TABLE = ",".join(
    f"{value:.9g}"
    for value in torch.tensor(_HALVES.decode(torch.arange(16)).tolist()).half().tolist()
)
PROFILES = (
    _profile("int8_sym", "int8:channel0:fp16:full", _symmetric),
    _profile("int8_asym", "uint8:channel0:fp16:asym", _asymmetric),
    _profile("int4_sym", "int4:group128:fp16:full", _symmetric),
    _profile("int4_asym", "uint4:group128:fp16:asym", _asymmetric),
    _profile("nf4", f"book({_TABLE}):group128:fp16", _floats),
    _profile("fp4", "e2m1:group128:fp16", _floats),
    _profile("fp8_e4m3", "e4m3:group128:fp16", _floats),
    _profile("nvfp4", "e2m1:group16:fp16", _two_levels),
)
