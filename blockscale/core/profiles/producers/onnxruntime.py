# SPDX-License-Identifier: BSD-3-Clause
"""onnxruntime's quantizers of weights: MatMulNBits in blocks, and QDQ integers by row.

Sources, all of 1.31.1: mlas/lib/q4_dq.cpp (`BlockwiseQuantizer`, as the Python package has it) and
quantization/quant_utils.py (`compute_scale_zp`). A weight is given as its layer has it, [out, in],
of which MatMulNBits stores B; MatMul's own weight is the transpose.
"""

import torch
from torch import Tensor

from blockscale.core.format import Format
from blockscale.core.parse import parse
from blockscale.core.profiles.encoders import in_blocks, put_back, whole
from blockscale.core.profiles.knobs import Encoder, Profile
from blockscale.core.reference import QParams, widen
from blockscale.core.rounding import nearest_away


def _inverse(scale: Tensor) -> Tensor:
    return torch.where(scale == 0, 0.0, scale.reciprocal())


def _symmetric(x: Tensor, fmt: Format) -> tuple[Tensor, QParams]:
    """The end of larger magnitude is the code -2^(bits - 1), by the sign of the scale."""
    blocks, half = in_blocks(widen(x), fmt), 2 ** (fmt.bits - 1)
    low = blocks.amin(-1, keepdim=True)
    high = blocks.amax(-1, keepdim=True)
    low = torch.where(low == 0, blocks[:, :1].clamp(max=0.0), low)  # of 0 and -0 the first
    end = torch.where(high.abs() > low.abs(), high, low)
    scale = end / whole(end, -half)
    codes = nearest_away(blocks * _inverse(scale) + half).clamp(0, 2 * half - 1)
    return put_back(x, fmt, codes - half, scale=scale)


def _asymmetric(x: Tensor, fmt: Format) -> tuple[Tensor, QParams]:
    blocks, levels = in_blocks(widen(x), fmt), 2**fmt.bits - 1
    low = blocks.amin(-1, keepdim=True).clamp(max=0.0)
    high = blocks.amax(-1, keepdim=True).clamp(min=0.0)
    scale = (high - low) / whole(low, levels)
    zero = nearest_away(torch.where(scale == 0, low, -low / scale)).clamp(0, levels)
    codes = nearest_away(blocks * _inverse(scale) + zero).clamp(0, levels)
    return put_back(x, fmt, codes, scale=scale, zero_point=zero)


def _rows(x: Tensor, fmt: Format) -> tuple[Tensor, QParams]:
    """Rows of zeros, and of subnormal scales, have a scale of 1."""
    blocks = in_blocks(widen(x), fmt)
    size = blocks.abs().amax(-1, keepdim=True)
    scale = size / whole(size, 127.0)
    scale = torch.where(scale < torch.finfo(scale.dtype).tiny, 1.0, scale)
    return put_back(x, fmt, (blocks / scale).round().clamp(-127, 127), scale=scale)


def _profile(name: str, spelling: str, encoder: Encoder) -> Profile:
    grouped = name.startswith("matmul")
    return Profile(
        name=f"onnxruntime.{name}",
        version="1.31.1",
        format=parse(spelling),
        blocks=("group",) if grouped else (),
        encoder=encoder,
        whole_blocks=grouped,
    )


PROFILES = (
    *(_profile(f"matmul_int{bits}", f"int{bits}:group32:fp32:full", _symmetric) for bits in (4, 8)),
    *(
        _profile(f"matmul_uint{bits}", f"uint{bits}:group32:fp32:asym", _asymmetric)
        for bits in (4, 8)
    ),
    _profile("qdq_int8", "int8:channel0:fp32", _rows),
)
