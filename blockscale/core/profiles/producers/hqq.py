# SPDX-License-Identifier: BSD-3-Clause
"""HQQ: `Quantizer.quantize` along rows, rounding to nearest and with its search for zero points.

Source: hqq 0.2.8.post1, core/quantize.py and core/optimize.py (`optimize_weights_proximal_legacy`,
the default), as on a CPU, in float32. The search takes means and powers as torch computes them, so
its zero points are the producer's on the same processor with the same torch: their last bits, and
codes that lie at a tie, may differ elsewhere.
"""

import torch
from torch import Tensor

from blockscale.core.format import Format
from blockscale.core.parse import parse
from blockscale.core.profiles.encoders import in_blocks, put_back
from blockscale.core.profiles.knobs import Encoder, Profile
from blockscale.core.reference import QParams, widen

_SMALLEST, _LARGEST = 1e-4, 2e4  # range of a block; inverse scale
_ROUNDS, _NORM, _BETA = 20, 0.7, 10.0


def _start(blocks: Tensor, levels: int) -> tuple[Tensor, Tensor]:
    """The inverse scale and the zero point of each block [blocks, 1]"""
    low, high = (
        ends.values for ends in (blocks.min(-1, keepdim=True), blocks.max(-1, keepdim=True))
    )
    extent = high - low
    inverse = extent.reciprocal() * levels  # as torch divides a number by a tensor
    inverse = torch.where(extent.abs() <= _SMALLEST, 1.0, inverse).clamp(max=_LARGEST)
    return inverse, -low * inverse


def _codes(blocks: Tensor, inverse: Tensor, zero: Tensor, levels: int) -> Tensor:
    return (blocks * inverse + zero).round().clamp(0, levels)


def _nearest(x: Tensor, fmt: Format) -> tuple[Tensor, QParams]:
    blocks, levels = in_blocks(widen(x), fmt), 2**fmt.bits - 1
    inverse, zero = _start(blocks, levels)
    codes = _codes(blocks, inverse, zero, levels)
    return put_back(x, fmt, codes, scale=inverse.reciprocal(), zero_point=zero)


def _search(x: Tensor, fmt: Format) -> tuple[Tensor, QParams]:
    """Zero points that leave few large errors: at most 20 rounds, until the mean error grows."""
    blocks, levels = in_blocks(widen(x), fmt), 2**fmt.bits - 1
    inverse, zero = _start(blocks, levels)
    best = torch.inf
    for _ in range(_ROUNDS):
        codes = _codes(blocks, inverse, zero, levels)
        values = (codes - zero) / inverse
        zero = (codes - (blocks - _shrunk(blocks - values)) * inverse).mean(-1, keepdim=True)
        error = float((blocks - values).abs().mean())
        if not error < best:
            break
        best = error
    codes = _codes(blocks, inverse, zero, levels)
    return put_back(x, fmt, codes, scale=inverse.reciprocal(), zero_point=zero)


def _shrunk(error: Tensor) -> Tensor:
    """Errors less what the norm's proximal operator takes, at least 0 in magnitude."""
    size = error.abs()
    return (size - (1 / _BETA) * size.pow(_NORM - 1)).clamp(min=0.0) * error.sign()


def _profile(bits: int, ending: str, encoder: Encoder) -> Profile:
    return Profile(
        name=f"hqq.uint{bits}{ending}",
        version="0.2.8.post1",
        format=parse(f"uint{bits}:group64:fp32:asym(fp32)"),
        blocks=("group",),
        encoder=encoder,
        whole_blocks=True,
    )


PROFILES = (
    *(_profile(bits, "", _search) for bits in (8, 4, 3, 2)),
    *(_profile(bits, "_rtn", _nearest) for bits in (8, 4, 3, 2)),
)
