# SPDX-License-Identifier: BSD-3-Clause
"""AWQ's quantizer, in float16 whatever the weight was (AutoAWQ 0.2.9, quantize/quantizer.py).

`pseudo_quantize_tensor` with zero points, and without. Its search for scales of inputs, which comes
before, is `bs.calibrate`.
"""

import torch
from torch import Tensor

from blockscale.core.format import Format
from blockscale.core.parse import parse
from blockscale.core.profiles.encoders import in_blocks, put_back, whole
from blockscale.core.profiles.knobs import Encoder, Profile
from blockscale.core.reference import QParams

_LEAST = 1e-5


def _asymmetric(x: Tensor, fmt: Format) -> tuple[Tensor, QParams]:
    """A range is not widened to hold 0, and a zero point is cut off at its ends."""
    blocks, levels = in_blocks(x.to(torch.float16), fmt), 2**fmt.bits - 1
    low, high = blocks.amin(-1, keepdim=True), blocks.amax(-1, keepdim=True)
    scale = (high - low).clamp(min=_LEAST) / whole(low, levels)
    zero = (-(low / scale).round()).clamp(0, levels)
    codes = ((blocks / scale).round() + zero).clamp(0, levels)
    return put_back(x, fmt, codes, scale=scale, zero_point=zero)


def _symmetric(x: Tensor, fmt: Format) -> tuple[Tensor, QParams]:
    blocks, largest = in_blocks(x.to(torch.float16), fmt), 2 ** (fmt.bits - 1) - 1
    size = blocks.abs().amax(-1, keepdim=True).clamp(min=_LEAST)
    scale = size / whole(size, largest)
    codes = (blocks / scale).round().clamp(-largest - 1, largest)
    return put_back(x, fmt, codes, scale=scale)


def _profile(name: str, spelling: str, encoder: Encoder) -> Profile:
    return Profile(
        name=f"awq.{name}",
        version="0.2.9",
        format=parse(spelling),
        blocks=("group", "channel0"),
        encoder=encoder,
        whole_blocks=True,
    )


PROFILES = (
    _profile("uint4", "uint4:group128:fp16:asym", _asymmetric),
    _profile("int4", "int4:group128:fp16:full", _symmetric),
)
