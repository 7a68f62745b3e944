# SPDX-License-Identifier: BSD-3-Clause
"""What a quantized cache hands to attention: keys and values that stay codes where a kernel reads
them, and are decoded by whatever else looks."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from blockscale.core.operand import Operand
from blockscale.core.torch_private import no_torch_function, pytree, wrapper_subclass
from blockscale.kernels.registry import batch_invariant, find
from blockscale.layers.before.rotate import walsh_hadamard
from blockscale.ops.attention import cached_attention


def power_of(size: int) -> int:
    """p of 2^p."""
    return size.bit_length() - 1


def turned(states: Tensor, size: int) -> Tensor:
    """Keys as they are rounded, and queries that meet them: H times them, halved p // 2 times."""
    return walsh_hadamard(states.float(), size) * 2.0 ** -(power_of(size) // 2)


class CachedStates(Tensor):
    """All keys or all values of a layer [batch, heads, tokens, features]: codes, then floats.

    torch's scaled_dot_product_attention, which transformers calls, of a few new tokens reads the
    codes where a kernel does (ops.attention); every other op reads what is decoded then.

    past: the tokens before, in codes; recent: floats [batch, heads, recent tokens, features]
    decoded: gives the tokens before in `recent`'s dtype
    rotated: features of a key that were rotated together, 2^p; None where none were. The product
        of a query and a key that were both turned is 1 or, where p is odd, 2 times their own
    """

    past: Operand
    recent: Tensor
    decoded: Callable[[], Tensor]
    rotated: int | None

    @staticmethod
    def __new__(
        cls, past: Operand, recent: Tensor, decoded: Callable[[], Tensor],
        rotated: int | None,
    ) -> "CachedStates":  # fmt: skip
        batch, heads, tokens, features = recent.shape
        shape = (batch, heads, past.shape[2] + tokens, features)
        made = wrapper_subclass(cls, shape, dtype=recent.dtype, device=recent.device)
        made.past, made.recent, made.decoded, made.rotated = past, recent, decoded, rotated
        states: CachedStates = made
        return states

    def floats(self) -> Tensor:
        """All of it, decoded."""
        return torch.cat([self.decoded(), self.recent], dim=-2)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.scaled_dot_product_attention:
            y = _over_codes(Attention(*args, **(kwargs or {})))
            if y is not None:
                return y
        return no_torch_function(func, types, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        del types
        args, kwargs = pytree.tree_map_only(CachedStates, CachedStates.floats, (args, kwargs or {}))
        return func(*args, **kwargs)


class Attention(NamedTuple):
    """The arguments of torch's scaled_dot_product_attention, by its names."""

    query: Tensor
    key: Tensor
    value: Tensor
    attn_mask: Tensor | None = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False

    @property
    def plain(self) -> bool:
        """Whether it is what cached_attention computes, without gradients."""
        trained = torch.is_grad_enabled() and self.query.requires_grad
        heads = self.enable_gqa or self.query.shape[1] == self.key.shape[1]
        return not (self.dropout_p or self.is_causal or trained) and heads


def _over_codes(asked: Attention) -> Tensor | None:
    """What cached_attention gives; None where no kernel does it, or it is something else."""
    query, key, value, mask = asked[:4]
    if not isinstance(key, CachedStates) or not isinstance(value, CachedStates):
        return None
    if not asked.plain or batch_invariant():
        return None
    batch, heads, new, depth = query.shape
    if mask is None:  # each new token sees all: as many heads of one token
        query = query.reshape(batch, heads * new, 1, depth)
    scale = 1 / math.sqrt(depth) if asked.scale is None else asked.scale
    recent = key.recent
    if key.rotated:
        query, recent = turned(query, key.rotated), turned(recent, key.rotated)
        scale /= 2.0 ** (power_of(key.rotated) % 2)
    call = (query, key.past, value.past, recent, value.recent, mask, scale)
    formats = (key.past.fmt, value.past.fmt)
    if find("cached_attention", formats, query.device.type, call, composed=True) is None:
        return None
    y: Tensor = cached_attention(*call)
    return y.to(value.dtype).reshape(batch, heads, new, value.shape[-1])
