# SPDX-License-Identifier: BSD-3-Clause
"""bitsandbytes on a CPU: `quantize_4bit` in blocks of the flattened tensor, and LLM.int8()'s rows.

Sources, all of 0.50.2: backends/default/ops.py (`quantize_4bit`, `int8_vectorwise_quant`). Scales
that are quantized in their turn (double quantization) are no profile: their offset is a mean, whose
last bits depend on the device.
"""

from functools import cache

import torch
from torch import Tensor

from blockscale.core.element import Element
from blockscale.core.format import Format
from blockscale.core.parse import parse
from blockscale.core.profiles.encoders import in_blocks, put_back
from blockscale.core.profiles.knobs import Profile
from blockscale.core.reference import QParams, widen

_VERSION = "0.50.2"
_LEAST = 1e-38  # of what numbers are divided by
_STEP = 7.874015718698502e-3  # 1 / 127 in float32, by which codes and largest values are decoded


@cache
def _sorted(element: Element) -> tuple[Tensor, Tensor]:
    """The middles between neighbours of a table in float32, and its codes by value, 0 before -0."""
    values = element.decode(torch.arange(2**element.bits, dtype=torch.uint8))
    order = torch.sort(values, stable=True).indices
    sorted_values = values[order]
    return (sorted_values[:-1] + sorted_values[1:]) / 2, order


def _four_bits(x: Tensor, fmt: Format) -> tuple[Tensor, QParams]:
    """Numbers in the middle go down; of fp4, small ones above 0 become -0."""
    blocks = in_blocks(widen(x), fmt)
    largest = blocks.abs().amax(-1, keepdim=True)
    y = (blocks * largest.clamp(min=_LEAST).reciprocal()).clamp(-1, 1).contiguous()
    middles, order = (each.to(x.device) for each in _sorted(fmt.element))
    return put_back(x, fmt, order[torch.bucketize(y, middles)], scale=largest)


def _rows(x: Tensor, fmt: Format) -> tuple[Tensor, QParams]:
    """Codes of x * (127 * (1 / largest)); a file has largest values, of which a scale is 1/127."""
    blocks = in_blocks(x, fmt)
    largest = widen(blocks.abs().amax(-1, keepdim=True))
    codes = (blocks * (largest.reciprocal() * 127.0)).round()
    codes = torch.where(largest == 0, 0.0, codes)
    return put_back(x, fmt, codes, scale=largest * _STEP)


PROFILES = (
    *(
        Profile(
            name=f"bnb.{name}",
            version=_VERSION,
            format=parse(f"{name}:flat64:fp32"),
            blocks=("flat",),
            encoder=_four_bits,
            whole_blocks=True,
        )
        for name in ("nf4", "fp4")
    ),
    Profile(
        name="bnb.int8",
        version=_VERSION,
        format=parse("int8:channel0:fp32:full"),
        encoder=_rows,
    ),
)
