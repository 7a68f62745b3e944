# SPDX-License-Identifier: BSD-3-Clause
"""Attention of new tokens over a cache whose older keys and values are codes."""

import torch
import torch.nn.functional as F
from torch import Tensor

from blockscale.core.operand import Operand
from blockscale.ops.gradient import not_differentiable
from blockscale.ops.op import op
from blockscale.ops.primitives import dequantize


def _shape(
    query: Tensor, keys: Operand, values: Operand, recent_keys: Tensor, recent_values: Tensor,
    mask: Tensor | None, scaling: float,
) -> Tensor:  # fmt: skip
    del keys, recent_keys, recent_values, mask, scaling
    return query.new_empty((*query.shape[:-1], values.size))


@op(ulps=64, shape=_shape, composed=True)
def cached_attention(
    query: Tensor, keys: Operand, values: Operand, recent_keys: Tensor, recent_values: Tensor,
    mask: Tensor | None, scaling: float,
) -> Tensor:  # fmt: skip
    """Scaled dot product attention, in float32 -> [batch, heads, new, width] in query's dtype.

    query: [batch, heads, new, depth]; neighbouring heads share one of keys and values, where these
        have fewer
    keys, values: codes [batch, kv heads, tokens, depth], [batch, kv heads, tokens, width]
    recent_keys, recent_values: floats [batch, kv heads, recent, depth], [.., recent, width]: tokens
        behind those in codes, the `new` ones last
    mask: bool, what is seen, or floats that are added, [batch or 1, heads or 1, new, tokens +
        recent]; None: a token sees those before it and itself
    scaling: of the products
    """
    key = torch.cat([dequantize(keys, torch.float32), recent_keys.to(torch.float32)], 2)
    value = torch.cat([dequantize(values, torch.float32), recent_values.to(torch.float32)], 2)
    new, count = query.shape[-2], key.shape[-2]
    if mask is None and new > 1:
        at = torch.arange(count, device=query.device)
        mask = at <= (at[count - new :])[:, None]
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.to(torch.float32)
    y = F.scaled_dot_product_attention(
        query.to(torch.float32), key, value, mask, scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )  # fmt: skip
    return y.to(query.dtype)


not_differentiable(cached_attention, "a cache is read without gradients: use torch.no_grad()")
