"""Memory and accuracy of a format: counted, and measured on the data that is given."""

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from blockscale.calibrate.errors import Rounding, RoundingSums
from blockscale.ops.tensor import QTensor
from blockscale.search.system.params import ParamsLike, QuantizationParams, create_optimal_params


def estimate_memory_savings(
    fmt: ParamsLike, shape: Sequence[int], dtype: torch.dtype = torch.float32
) -> float:
    """The share of a tensor's bytes in `dtype` that a format saves, 0.75 for a quarter left.

    Exact: codes as packed, scales and all else counted; below 0 where there is more than before.
    Raises ValueError for formats and blocks that do not fit.
    """
    before = prod(shape) * dtype.itemsize
    if not before:
        raise ValueError(f"a tensor of shape {tuple(shape)} has no elements to save anything of")
    return 1 - QuantizationParams.of(fmt).format.nbytes(tuple(shape)) / before


def estimate_accuracy_impact(fmt: ParamsLike, data: Tensor) -> Rounding:
    """What a format does to this data [...], measured: SQNR in dB, cosine, the largest error, the
    percent of elements that saturate and that become 0. Raises as `bs.quantize`."""
    params = QuantizationParams.of(fmt)
    q = params.quantize(data)
    sums = RoundingSums(q.format)
    sums.count(data.detach().float(), q.dequantize(), q.qparams)
    return sums.rounding()


def auto_quantize_tensor(data: Tensor, bits: int = 8) -> QTensor:
    """data [...] in the format of so many bits that keeps it best (create_optimal_params).

    Raises ValueError for a number of bits without formats, and as `bs.quantize`.
    """
    return create_optimal_params(data, bits).quantize(data)
