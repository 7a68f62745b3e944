# SPDX-License-Identifier: BSD-3-Clause
"""What a quantized cache passes to attention: keys and values that stay codes where a kernel reads
them, and are decoded for every other op."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from blockscale.core.operand import Operand
from blockscale.core.torch_private import no_torch_function, pytree, wrapper_subclass
from blockscale.kernels.operand import tokens_of
from blockscale.kernels.registry import batch_invariant
from blockscale.layers.before.rotate import walsh_hadamard
from blockscale.ops.attention import cached_attention, with_sinks

# h[:, :, None, :, :], as repeat_kv has it
_ONE_MORE = [slice, slice, type(None), slice, slice]
_ALL = {str(slice(None)), "None"}
_REPEATING = (Tensor.__getitem__, Tensor.expand, Tensor.reshape)


def power_of(size: int) -> int:
    """p of 2^p."""
    return size.bit_length() - 1


def rotate_states(states: Tensor, size: int) -> Tensor:
    """Keys as they are rounded, and queries that meet them: H times them, halved p // 2 times."""
    return walsh_hadamard(states.float(), size) * 2.0 ** -(power_of(size) // 2)


class LayerStates(NamedTuple):
    """Keys or values of a layer.

    past: the tokens before, in codes; recent: floats [batch, heads, recent tokens, features]
    decoded: gives the tokens before in `recent`'s dtype
    rotated: features of a key that were rotated together, 2^p; None where none were. The product
        of a query and a key that were both turned is 1 or, where p is odd, 2 times their own
    """

    past: Operand
    recent: Tensor
    decoded: Callable[[], Tensor]
    rotated: int | None


class CachedStates(Tensor):
    """All keys or all values of a layer [batch, heads, tokens, features]: codes, then floats.

    torch's scaled_dot_product_attention, which transformers calls, of a few new tokens reads the
    codes where a kernel does (ops.attention); every other op reads what is decoded then. Heads that
    transformers repeats for those of queries (its `repeat_kv`) stay codes, stored once.

    layer: the states; past, recent and rotated are its fields, for short
    repeats: how often each head appears, side by side; apart: in a dimension of its own behind it
    """

    layer: "LayerStates"
    past: Operand
    recent: Tensor
    rotated: int | None
    repeats: int
    apart: bool

    @staticmethod
    def __new__(cls, layer: "LayerStates", repeats: int = 1, apart: bool = False) -> "CachedStates":
        past, recent = layer.past, layer.recent
        batch, heads, tokens, features = recent.shape
        heads_shape = (heads, repeats) if apart else (heads * repeats,)
        shape = (batch, *heads_shape, tokens_of(past)[2] + tokens, features)
        result = wrapper_subclass(cls, shape, dtype=recent.dtype, device=recent.device)
        result.layer, result.past, result.recent, result.rotated = (
            layer,
            past,
            recent,
            layer.rotated,
        )
        result.repeats, result.apart = repeats, apart
        states: CachedStates = result
        return states

    def floats(self) -> Tensor:
        """All of it, decoded."""
        whole = torch.cat([self.layer.decoded(), self.recent], dim=-2)
        if self.repeats == 1 and not self.apart:
            return whole
        whole = whole[:, :, None].expand(-1, -1, self.repeats, -1, -1)
        return whole if self.apart else whole.flatten(1, 2)

    def repeat_step(self, func: Any, arguments: tuple[Any, ...]) -> "CachedStates | None":
        """What a step of `repeat_kv` gives; None of any other function."""
        batch, heads, tokens, features = (*self.recent.shape[:2], *self.shape[-2:])
        repeats, apart = self.repeats, True
        if func is Tensor.__getitem__ and not self.apart and repeats == 1:
            index = arguments[0] if isinstance(arguments[0], tuple) else ()
            if [type(each) for each in index] != _ONE_MORE or set(map(str, index)) != _ALL:
                return None
        elif func is Tensor.expand and self.apart and repeats == 1:
            repeats = arguments[2] if len(arguments) == 5 else 0
            if repeats < 1 or arguments != (batch, heads, repeats, tokens, features):
                return None
        elif func is Tensor.reshape and self.apart:
            apart = False
            if arguments != (batch, heads * repeats, tokens, features):
                return None
        else:
            return None
        return CachedStates(self.layer, repeats, apart)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.scaled_dot_product_attention:
            y = _over_codes(Attention(*args, **(kwargs or {})))
            if y is not None:
                return y
        if func in _REPEATING and isinstance(args[0], CachedStates) and not kwargs:
            view = args[0].repeat_step(func, args[1:])
            if view is not None:
                return view
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


def _over_codes(call: Attention, sinks: Tensor | None = None) -> Tensor | None:
    """What cached_attention gives; None where no kernel does it, or it is something else.

    sinks: a score of each head that the softmax counts, without a key or a value
    """
    query, key, value, mask = call[:4]
    if not isinstance(key, CachedStates) or not isinstance(value, CachedStates):
        return None
    if not call.plain or batch_invariant() or key.apart or key.repeats != value.repeats:
        return None
    batch, heads, new, depth = query.shape
    if mask is None:  # each new token sees all: as many heads of one token
        query = query.reshape(batch, heads * new, 1, depth)
        sinks = None if sinks is None else sinks.repeat_interleave(new)
    scale = 1 / math.sqrt(depth) if call.scale is None else call.scale
    recent = key.recent
    if key.rotated:
        query, recent = rotate_states(query, key.rotated), rotate_states(recent, key.rotated)
        scale /= 2.0 ** (power_of(key.rotated) % 2)
    y: Tensor | None = cached_attention.by_kernel(
        query, key.past, value.past, recent, value.recent, mask, scale, sinks
    )
    return None if y is None else y.to(value.dtype).reshape(batch, heads, new, value.shape[-1])


# transformers' interface of attention, under the name "blockscale".


def attention_forward(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None,
    **more: Any,
) -> tuple[Tensor, None]:  # fmt: skip
    """transformers' own `sdpa`, and with `s_aux`, sinks [heads] as of gpt-oss: each head has a
    score that its softmax counts, without a key or a value. Where a kernel can, it reads codes.

    module: the layer; query [batch, heads, new tokens, features], key, value [.., tokens, ..]
    attention_mask: bool, what a query may attend to, or floats that are added to scores; None: a
        new token attends to those before it
    more: s_aux; dropout, of powers; scaling, of products; what else transformers passes
    """
    s_aux = more.pop("s_aux", None)
    if s_aux is None:
        y, none = sdpa_attention_forward(module, query, key, value, attention_mask, **more)
        return y, none
    dropout, scaling = more.get("dropout", 0.0), more.get("scaling")
    new, count = query.shape[2], key.shape[2]
    if attention_mask is None and new > 1:
        at = torch.arange(count, device=query.device)
        attention_mask = (at <= at[count - new :, None])[None, None]
    call = Attention(query, key, value, attention_mask, dropout, False, scaling, True)
    of_codes = _over_codes(call, s_aux)
    if of_codes is None:
        key, value, mask = with_sinks(key, value, attention_mask, s_aux, query.shape)
        of_codes = F.scaled_dot_product_attention(
            query, key, value, mask.to(query.dtype), dropout, scale=scaling, enable_gqa=True
        )
    return of_codes.transpose(1, 2).contiguous(), None


def register_attention() -> None:
    """Let `model.set_attn_implementation("blockscale")` take `attention_forward`."""
    AttentionInterface.register("blockscale", attention_forward)
    AttentionMaskInterface.register("blockscale", sdpa_mask)
