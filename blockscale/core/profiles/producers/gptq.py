# SPDX-License-Identifier: BSD-3-Clause
"""GPTQ's quantizer: scales and zero points of AutoGPTQ, GPTQModel and what came from them.

Rounding to nearest, which a layer gets whose Hessian says nothing; GPTQ's own updates of later
columns are `bs.calibrate`. Source: AutoGPTQ 0.7.1, quantization/quantizer.py (`find_params`),
without `mse`. Scales are stored in float16, and codes are made with them in float32.
"""

import torch
from torch import Tensor

from blockscale.core.format import Format
from blockscale.core.parse import parse
from blockscale.core.profiles.encoders import in_blocks, put_back, whole
from blockscale.core.profiles.knobs import Encoder, Profile
from blockscale.core.reference import QParams, widen


def _ranges(x: Tensor, fmt: Format) -> tuple[Tensor, Tensor, Tensor]:
    """The numbers in blocks, and their ends, which hold 0; of zeros they are -1 and 1."""
    blocks = in_blocks(widen(x), fmt)
    low = blocks.amin(-1, keepdim=True).clamp(max=0.0)
    high = blocks.amax(-1, keepdim=True).clamp(min=0.0)
    zeros = (low == 0) & (high == 0)
    return blocks, torch.where(zeros, -1.0, low), torch.where(zeros, 1.0, high)


def _codes(x: Tensor, fmt: Format, scale: Tensor, zero: Tensor) -> tuple[Tensor, QParams]:
    blocks = in_blocks(widen(x), fmt)
    codes = ((blocks / scale).round() + zero).clamp(0, 2**fmt.bits - 1)
    return put_back(x, fmt, codes, scale=scale, zero_point=zero)


def _symmetric(x: Tensor, fmt: Format) -> tuple[Tensor, QParams]:
    """The middle is 0. A group without negative numbers gets half the range, and is cut off."""
    _, low, high = _ranges(x, fmt)
    high = torch.maximum(-low, high)
    low = torch.where(low < 0, -high, low)
    scale = (high - low) / whole(high, 2**fmt.bits - 1)
    return _codes(x, fmt, scale, whole(scale, 2 ** (fmt.bits - 1)))


def _asymmetric(x: Tensor, fmt: Format) -> tuple[Tensor, QParams]:
    _, low, high = _ranges(x, fmt)
    scale = (high - low) / whole(high, 2**fmt.bits - 1)
    return _codes(x, fmt, scale, (-low / scale).round())


def _profile(name: str, bits: int, encoder: Encoder) -> Profile:
    return Profile(
        name=f"gptq.{name}{bits}",
        version="0.7.1",
        format=parse(f"uint{bits}:group128:fp16:asym"),
        blocks=("group", "channel0"),
        encoder=encoder,
        whole_blocks=True,
    )


PROFILES = (
    *(_profile("int", bits, _symmetric) for bits in (2, 3, 4, 8)),
    *(_profile("uint", bits, _asymmetric) for bits in (2, 3, 4, 8)),
)
