# SPDX-License-Identifier: BSD-3-Clause
"""Attention over a cache in codes by the CUDA kernel, wherever it runs."""

from torch import Tensor

from blockscale.core.operand import Operand
from blockscale.kernels.cuda.cached_attention import PartSettings, _supports, attention
from tests.support.cuda_equal import DEVICE

SMALL = PartSettings(16, 2, 1, 2)  # parts of 32 tokens


def on_device(*of: Operand) -> list[Operand]:
    return [
        each._replace(**{
            name: part.to(DEVICE) for name in ("codes", "scale", "zero_point", "outer")
            if (part := getattr(each, name)) is not None
        })
        for each in of
    ]  # fmt: skip


def by_kernel(
    query: Tensor, keys: Operand, values: Operand, k: Tensor, v: Tensor,
    mask: Tensor | None, scaling: float, settings: PartSettings = SMALL,
    sinks: Tensor | None = None,
) -> Tensor:  # fmt: skip
    query, k, v = (x.to(DEVICE) for x in (query, k, v))
    keys, values = on_device(keys, values)
    mask = None if mask is None else mask.to(DEVICE)
    sinks = None if sinks is None else sinks.to(DEVICE)
    assert _supports((), (query, keys, values, k, v, mask, scaling, sinks))
    return attention(query, keys, values, (k, v), mask, scaling, settings, sinks).cpu()
