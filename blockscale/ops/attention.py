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
    mask: Tensor | None, scaling: float, sinks: Tensor | None = None,
) -> Tensor:  # fmt: skip
    del keys, recent_keys, recent_values, mask, scaling, sinks
    return query.new_empty((*query.shape[:-1], values.size))


def with_sinks(
    key: Tensor, value: Tensor, mask: Tensor | None, sinks: Tensor, shape: torch.Size
) -> tuple[Tensor, Tensor, Tensor]:
    """Before all keys one of zeros, which is worth nothing and whose score is the mask's: sinks.

    key, value: [batch, kv heads, tokens, ..]; mask: None hides nothing; sinks: [heads]
    shape: of the query, [batch, heads, new, ..]
    """
    batch, heads, new, _ = shape
    floats = torch.zeros((batch, heads, new, key.shape[2]), device=sinks.device)
    if mask is not None and mask.dtype == torch.bool:
        floats = floats.masked_fill(~mask, -torch.inf)
    elif mask is not None:
        floats = floats + mask
    first = sinks.to(torch.float32)[None, :, None, None].expand(batch, heads, new, 1)
    return F.pad(key, (0, 0, 1, 0)), F.pad(value, (0, 0, 1, 0)), torch.cat([first, floats], -1)


@op(ulps=64, shape=_shape, composed=True)
def cached_attention(
    query: Tensor, keys: Operand, values: Operand, recent_keys: Tensor, recent_values: Tensor,
    mask: Tensor | None, scaling: float, sinks: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Scaled dot product attention, in float32 -> [batch, heads, new, width] in query's dtype.

    query: [batch, heads, new, depth]; neighbouring heads share one of keys and values, where these
        have fewer
    keys, values: codes [batch, kv heads, tokens, depth], [batch, kv heads, tokens, width]; or keys
        per channel, [batch, kv heads, chunks, depth, tokens of a chunk]
    recent_keys, recent_values: floats [batch, kv heads, recent, depth], [.., recent, width]: tokens
        behind those in codes, the `new` ones last
    mask: bool, what is seen, or floats that are added, [batch or 1, heads or 1, new, tokens +
        recent]; None: a token sees those before it and itself
    scaling: of the products
    sinks: floats [heads], of each head a score that softmax counts, of no key and no value; or None
    """
    past = dequantize(keys, torch.float32)
    past = past.mT.flatten(2, 3) if past.ndim == 5 else past
    key = torch.cat([past, recent_keys.to(torch.float32)], 2)
    value = torch.cat([dequantize(values, torch.float32), recent_values.to(torch.float32)], 2)
    new, count = query.shape[-2], key.shape[-2]
    if mask is None and new > 1:
        at = torch.arange(count, device=query.device)
        mask = at <= (at[count - new :])[:, None]
    if mask is not None and mask.dtype != torch.bool:
        mask = mask.to(torch.float32)
    if sinks is not None:
        key, value, mask = with_sinks(key, value, mask, sinks, query.shape)
    y = F.scaled_dot_product_attention(
        query.to(torch.float32), key, value, mask, scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )  # fmt: skip
    return y.to(query.dtype)


not_differentiable(cached_attention, "a cache is read without gradients: use torch.no_grad()")
