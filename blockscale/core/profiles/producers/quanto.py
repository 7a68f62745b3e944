# SPDX-License-Identifier: BSD-3-Clause
"""optimum-quanto: `quantize_weight` with its default optimizers, in the arithmetic of the weight.

Sources, all of 0.2.7: tensor/optimizers (`AbsmaxOptimizer`, `MaxOptimizer`) and
library/quantize.py. HQQ, which it offers as an optimizer, is in the profiles of hqq.
"""

import torch
from torch import Tensor

from blockscale.core.format import Format
from blockscale.core.parse import parse
from blockscale.core.profiles.encoders import in_blocks, put_back, whole
from blockscale.core.profiles.knobs import Profile
from blockscale.core.reference import QParams

_VERSION = "0.2.7"


def _integers(x: Tensor, fmt: Format) -> tuple[Tensor, QParams]:
    """Rows of zeros have a scale of 0."""
    blocks = in_blocks(x, fmt)
    largest = blocks.abs().amax(-1, keepdim=True)
    scale = largest / whole(largest, 127.0)
    codes = _without_nan((blocks / scale).round()).clamp(-128, 127)
    return put_back(x, fmt, codes, scale=scale)


def _with_offsets(x: Tensor, fmt: Format) -> tuple[Tensor, QParams]:
    """Steps above the smallest number, which is not widened to hold 0."""
    blocks = in_blocks(x, fmt)
    low, high = blocks.amin(-1, keepdim=True), blocks.amax(-1, keepdim=True)
    levels = 2**fmt.bits - 1
    scale = (high - low) / whole(low, levels)
    codes = _without_nan(((blocks - low) / scale).round()).clamp(0, levels)
    return put_back(x, fmt, codes, scale=scale, offset=low)


def _without_nan(steps: Tensor) -> Tensor:
    """0 / 0 becomes the code 0."""
    return torch.where(steps.isnan(), 0.0, steps)


PROFILES = (
    Profile(
        name="quanto.qint8",
        version=_VERSION,
        format=parse("int8:channel0:fp32:full"),
        scale_type="input",
        encoder=_integers,
    ),
    *(
        Profile(
            name=f"quanto.qint{bits}",
            version=_VERSION,
            format=parse(f"uint{bits}:group128:fp32:offset"),
            blocks=("group",),
            scale_type="input",
            encoder=_with_offsets,
            whole_blocks=True,
        )
        for bits in (4, 2)
    ),
    *(
        Profile(
            name=f"quanto.{name}",
            version=_VERSION,
            format=parse(f"{element}:channel0:fp32"),
            scale_type="input",
            scale_arithmetic="input",
            code_arithmetic="input",
            least=0.0,
        )
        for name, element in (("qfloat8", "e4m3"), ("qfloat8_e5m2", "e5m2"))
    ),
)
