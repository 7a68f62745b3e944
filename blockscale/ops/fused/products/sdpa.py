"""Scaled dot product attention."""

import torch
import torch.nn.functional as F
from torch import Tensor

from blockscale.ops.fused.define import fused
from blockscale.ops.fused.values import widened

_PATTERN = "scaled_dot_product_attention.default query key value mask ! causal scale enable_gqa"


@fused(ulps=64, aten=(_PATTERN,), wide=True)
def sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """query [..., m, k], key [..., n, k], value [..., n, v] -> [..., m, v].

    mask: bool, what is seen, or floats that are added, that broadcasts with [..., m, n]
    causal: position i sees positions up to i
    scale: of the products; None is 1 / sqrt(k)
    enable_gqa: several heads of the query share one of key and value
    """
    added = None if mask is None else widened(mask, torch.float32)
    return F.scaled_dot_product_attention(
        query, key, value, added, 0.0, causal, scale=scale, enable_gqa=enable_gqa
    )
