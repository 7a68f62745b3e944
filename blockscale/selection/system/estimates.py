# SPDX-License-Identifier: BSD-3-Clause
"""Memory and accuracy of a format: counted, and measured on data."""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from blockscale.calibration.errors import Rounding, RoundingSums
from blockscale.ops.tensor import QTensor
from blockscale.selection.system.params import (
    Data,
    ParamsLike,
    QuantizationParams,
    as_tensor,
    create_optimal_params,
)
from blockscale.selection.system.statistics import calibrated, recommended_method

# Rows and columns of a tensor without end: blocks of every common size divide it, and what is
# stored once a tensor or once a row is less than a float64 can tell.
_ENDLESS = 720720 << 40


def estimate_memory_savings(
    fmt: ParamsLike, shape: Sequence[int] | None = None, dtype: torch.dtype = torch.float32
) -> float:
    """The share of a tensor's bytes in `dtype` that a format saves, 0.75 for a quarter left.

    shape: counted exactly, codes as packed, scales and all else; below 0 where there is more than
        before. None: of a matrix without end, in which only what each block stores counts: 0.75 for
        "int8", 1 - 4.5 / 32 for 4-bit integers under a scale of 16 bits for 32 of them
    Raises ValueError for formats and blocks that do not fit.
    """
    form = QuantizationParams.of(fmt).format
    if shape is None:
        return 1 - form.bits_per_element((_ENDLESS, _ENDLESS)) / (8 * dtype.itemsize)
    before = prod(shape) * dtype.itemsize
    if not before:
        raise ValueError(
            f"a tensor of shape {tuple(shape)} has no elements, so there is nothing to save"
        )
    return 1 - form.nbytes(tuple(shape)) / before


def estimate_accuracy_impact(fmt: ParamsLike, data: Data | None = None) -> Rounding:
    """What a format does to this data [...], measured: SQNR in dB, cosine, the largest error, the
    percent of elements that saturate and that become 0.

    data: None for a weight as layers have them, [256, 1024] normal numbers whose rows differ in
        size by up to 16; always the same one. Raises as `bs.quantize`.
    """
    x = _weight() if data is None else as_tensor(data)
    params = QuantizationParams.of(fmt)
    q = params.quantize(x)
    sums = RoundingSums(q.format)
    sums.count(x.detach().float(), q.dequantize(), q.qparams)
    return sums.rounding()


def _weight() -> Tensor:
    drawn = torch.randn(256, 1024, generator=torch.Generator().manual_seed(0))
    return drawn * torch.logspace(-2, 2, 256, base=2.0)[:, None]


def auto_quantize_tensor(
    data: Data,
    target: int | ParamsLike = 8,
    shape: Sequence[int] | None = None,
    device: str | torch.device | None = None,
    *,
    bits: int | None = None,
) -> QTensor:
    """data quantized with what keeps it best.

    data: a tensor, or numbers, which become [shape] (None: as they are) on a device
    target: a number of bits: in the best of its formats (`create_optimal_params`). A format or its
        name, such as "int8": in that one, under the scale with the least squared error of
        those that the format itself and each observer choose (`recommended_method`), or under
        its own if it has one (QuantizationParams)
    bits: the same as a number for `target`
    Raises ValueError for a number of bits without formats, and as `bs.quantize`.
    """
    x = as_tensor(data, shape, device)
    wanted = target if bits is None else bits
    if isinstance(wanted, int):
        return create_optimal_params(x, wanted).quantize(x)
    params = QuantizationParams.of(wanted)
    own = params.quantize(x)
    if params.scale is not None or not x.isfinite().any() or params.format.unchosen is not None:
        return own
    method, errors = recommended_method([x], params.format)
    plain = torch.where(x.isfinite(), x.detach().float() - own.dequantize(), 0.0)
    if float(plain.double().square().mean()) <= errors[method]:
        return own
    return calibrated([x], params.format, method).quantize(x)
