# SPDX-License-Identifier: BSD-3-Clause
"""A key-value cache for `generate` that keeps keys and values in any format, rotated or not."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig
from transformers.cache_utils import Cache, DynamicLayer

from blockscale.calibration.algorithms import transforms
from blockscale.calibration.algorithms.hadamard import Hadamard
from blockscale.core.block import read_block
from blockscale.core.format import Format
from blockscale.core.parse import parse
from blockscale.core.presets import cache_preset
from blockscale.core.reference import QParams
from blockscale.core.scales import TwoLevel
from blockscale.integrations.transformers.cache_scales import CacheScales
from blockscale.integrations.transformers.cached_states import (
    CachedStates,
    LayerStates,
    power_of,
    rotate_states,
)
from blockscale.layers.before.rotate import walsh_hadamard
from blockscale.ops.quantize import quantize
from blockscale.ops.tensor import QTensor

PLACES = ("token", "channel")
_ATTENTION = ("full_attention", "sliding_attention")  # of windows all tokens are kept, and masked
CHUNK = 32  # tokens that are quantized together, at least


class QuantizedLayer(DynamicLayer):
    """Keys and values [batch, heads, tokens, features] of one layer: codes, then recent floats.

    See `QuantizedCache`. `keys` and `values` are the recent floats; earlier tokens are in codes,
    one QTensor each: of values [batch, heads, tokens, features], of keys per channel
    [batch, heads, chunks, features, tokens of a chunk]. So codes and scales are joined along the
    third dimension, and beams are picked along the first, without rounding anything again.
    """

    is_croppable = False

    def __init__(
        self, formats: tuple[Format, Format], keys_per: str, window: int,
        rotated: int | None = None, scales: tuple[float, float] | None = None, chunk: int = CHUNK,
    ):  # fmt: skip
        super().__init__()
        self.scales = scales  # of all keys and all values, where they do not choose their own
        self.formats, self.keys_per, self.window = formats, keys_per, window
        self.rotated = rotated  # how many of a key's features are rotated together
        block = _tokens_of_a_block(formats[0]) if keys_per == "channel" else 1
        self.chunk = (chunk + block - 1) // block * block
        self.codes: list[QTensor | None] = [None, None]
        self.token_count = 0

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        *args: Any,  # noqa: ARG002 - as transformers calls it
        **kwargs: Any,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor]:
        """New keys and values -> all of them, as attention is to read them.

        Chunks that leave the window are quantized after this call, so that what is new is read in
        float once.
        """
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.token_count += key_states.shape[-2]
        recent = [
            torch.cat([old, new], dim=-2) if old is not None and old.numel() else new
            for old, new in zip((self.keys, self.values), (key_states, value_states), strict=True)
        ]
        result = self._all(recent)
        leaving = max(recent[0].shape[-2] - self.window, 0) // self.chunk * self.chunk
        if leaving:
            for index, tensor in enumerate(recent):
                more = self._quantized(tensor[..., :leaving, :], index)
                codes = self.codes[index]
                self.codes[index] = more if codes is None else _join(codes, more)
            recent = [tensor[..., leaving:, :].clone() for tensor in recent]
        self.keys, self.values = recent
        return result[0], result[1]

    def _all(self, recent: list[Tensor]) -> list[Tensor]:
        """Keys and values as attention is to read them: codes where it can, else decoded."""
        keys, values = self.codes
        if keys is None or values is None:
            return recent
        past = partial(self._past, 0, keys), partial(self._past, 1, values)
        if torch.compiler.is_compiling():
            return [torch.cat([of(), now], dim=-2) for of, now in zip(past, recent, strict=True)]
        pairs = zip((keys, values), recent, past, (self.rotated, None), strict=True)
        return [CachedStates(LayerStates(q.operand, now, of, how)) for q, now, of, how in pairs]

    def _per_channel(self, index: int) -> bool:
        return index == 0 and self.keys_per == "channel"

    def _quantized(self, tensor: Tensor, index: int) -> QTensor:
        """Codes of whole chunks of keys (0) or values (1)."""
        if index == 0 and self.rotated:
            tensor = rotate_states(tensor, self.rotated)
        if self._per_channel(index):
            tensor = tensor.unflatten(-2, (-1, self.chunk)).mT
        scale = None
        if self.scales is not None:
            scale = tensor.new_full(
                (*tensor.shape[:-1], 1), self.scales[index], dtype=torch.float32
            )
        return quantize(tensor.contiguous(), self.formats[index], scale)

    def _past(self, index: int, codes: QTensor) -> Tensor:
        """Keys (0) or values (1) in codes, decoded [batch, heads, tokens, features]."""
        is_rotated = index == 0 and self.rotated is not None
        decoded = codes.dequantize(torch.float32 if is_rotated else self.dtype)
        decoded = decoded.mT.flatten(2, 3) if self._per_channel(index) else decoded
        if index == 0 and self.rotated:  # H H is the number of features; halvings round nothing
            power = power_of(self.rotated)
            back = walsh_hadamard(decoded, self.rotated)
            return (back * 2.0 ** (power // 2 - power)).to(self.dtype)
        return decoded

    @property
    def nbytes(self) -> int:
        """Bytes of codes, scales and recent floats."""
        tensors = (*self.codes, self.keys, self.values)
        return sum(part.nbytes for part in tensors if part is not None)

    def get_seq_length(self) -> int:
        """Tokens seen so far."""
        return self.token_count

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """The length and the offset of the mask."""
        return self.token_count + query_length, 0

    def reset(self) -> None:
        """Forget everything."""
        self.codes, self.token_count, self.is_initialized = [None, None], 0, False
        self.keys = self.values = None

    def crop(self, tokens_to_remove: int) -> None:
        """Raises NotImplementedError: codes of several tokens may share a scale."""
        raise NotImplementedError("a quantized cache cannot be cropped: start a new one")

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """The rows of these beams."""
        self._rows(lambda tensor: tensor.index_select(0, beam_idx.to(tensor.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each row `repeats` times."""
        self._rows(lambda tensor: tensor.repeat_interleave(repeats, dim=0))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Rows of these indices."""
        self._rows(lambda tensor: tensor[indices])

    def _rows(self, pick: Callable[[Tensor], Tensor]) -> None:
        """Rows of codes, scales and floats: nothing is rounded again."""
        if self.keys is None or self.values is None:
            return
        self.keys, self.values = pick(self.keys), pick(self.values)
        self.codes = [q if q is None else _of_parts(q, pick) for q in self.codes]


class QuantizedCache(Cache):
    """A cache for `model.generate(past_key_values=…)` in any format, chosen token by token.

    Keys are best scaled per channel and values per token: KIVI, Liu et al. 2024, arXiv 2402.02750,
    sections 3.1 and 3.2; KVQuant, Hooper et al. 2024, arXiv 2401.18079, section 3.1, which also
    quantizes keys before their rotary embedding (we do not).

    config: of the model: how many layers there are
    values: the format of values; its blocks are of one token: groups, `token`, of a head's
        features. Or static scales of a checkpoint (`CacheScales`): keys and values in e4m3, as
        servers keep them, of which each layer has one scale for either
    keys: the format of keys; None for the same
    keys_per: "token": blocks of one token's features, as of values; "channel": blocks of one
        feature's tokens, as many as a group of the format has
    window: the last tokens that stay in float, and up to a chunk less one more. The last tokens
        that `update` was given are read in float once, however many
    chunk: how many tokens are quantized together; with keys_per="channel" the fewest whole groups
        of as many. With 1 and window=0 the past is codes alone, as in ONNX files
    rotate: "hadamard", or "hadamard:N", as the transform of that name: keys are multiplied by a
        Walsh-Hadamard matrix, for each N features (the largest power of two that divides a head's),
        before they are rounded, and again when they are read, in float32. This spreads outliers of
        a few features, and attention reads the same keys but for rounding: QuaRot,
        Ashkboos et al. 2024, arXiv 2404.00456, section 4 (which rotates queries instead)

    A preset's name, such as "kv8" (`bs.presets()`), in the place of values stands for its formats
    and for each of keys_per, window and rotate that is None; these are otherwise "token", 128 and
    no rotation.

    Where a format has an outer scale of the whole tensor, as `nvfp4`, each token and head has its
    own here, as in `nvfp4_token`: a cache grows token by token.

    Raises ValueError for formats whose scale is for more than one token, or chooses by chance, for
    models with layers that are neither full attention nor sliding windows (of which all tokens are
    kept, and masked by the model), and for rotations that do not fit a head.
    """

    def __init__(  # noqa: PLR0913 - the first two are the call, the rest are options
        self,
        config: PreTrainedConfig,
        values: "str | Format | CacheScales",
        keys: str | Format | None = None,
        *,
        keys_per: str | None = None,
        window: int | None = None,
        rotate: str | None = None,
        chunk: int = CHUNK,
    ):
        scales = values if isinstance(values, CacheScales) else None
        if isinstance(values, CacheScales):
            values = _of_scales(keys or keys_per or rotate)
        options = {"keys": keys, "keys_per": keys_per, "window": window, "rotate": rotate}
        own = {"values": values} if isinstance(values, Format) else cache_preset(values)
        how = _DEFAULTS | own | {name: each for name, each in options.items() if each is not None}
        keys_per, window = how["keys_per"], how["window"]
        _check_places(keys_per, window, chunk)
        both = (how["values"] if how["keys"] is None else how["keys"], how["values"])
        formats = _one_token(parse(both[0])), _one_token(parse(both[1]))
        if keys_per == "channel":
            _tokens_of_a_block(formats[0])
        text = config.get_text_config(decoder=True)
        others = set(getattr(text, "layer_types", None) or ()) - set(_ATTENTION)
        if others:
            raise ValueError(
                f"the model has layers of {', '.join(sorted(others))}, and this cache is for those "
                f"of {', '.join(_ATTENTION)}: use transformers' own cache"
            )
        rotated = _rotated(how["rotate"], text)
        each = _of_layers(scales, text.num_hidden_layers)
        layers: list[Any] = [  # lists are invariant, and ours are none of its union
            QuantizedLayer(formats, keys_per, window, rotated, own_scales, chunk)
            for own_scales in each
        ]
        super().__init__(layers=layers)

    @property
    def nbytes(self) -> int:
        """Bytes of all layers: codes, scales and recent floats."""
        return sum(layer.nbytes for layer in self.layers if isinstance(layer, QuantizedLayer))


def _check_places(keys_per: str, window: int, chunk: int) -> None:
    if keys_per not in PLACES or window < 0:
        raise ValueError(
            f"keys_per must be one of {', '.join(PLACES)} and window >= 0, got "
            f"{keys_per!r} and {window}"
        )
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1 token, got {chunk}")


_DEFAULTS: dict[str, Any] = {"keys": None, "keys_per": "token", "window": 128, "rotate": None}


_STATIC = "e4m3:token:fp32"  # a token has the layer's scale, and its place in a growing cache


def _of_scales(other: object) -> str:
    """The format of values with static scales. Raises ValueError where keys have another."""
    if other:
        raise ValueError(
            f"static scales are of keys and values in {_STATIC}, got {other!r} beside them: leave "
            "keys, keys_per and rotate out, or name a format that chooses its own scales"
        )
    return _STATIC


def _of_layers(scales: CacheScales | None, count: int) -> list[tuple[float, float] | None]:
    """A pair for each layer. Raises ValueError where scales are of another number of them."""
    if scales is None:
        return [None] * count
    if len(scales.keys) != count:
        raise ValueError(f"scales are of {len(scales.keys)} layers, and the model has {count}")
    return [*zip(scales.keys, scales.values, strict=True)]


def _rotated(spec: str | None, config: Any) -> int | None:
    """How many features of a key are rotated together; None without a rotation."""
    if spec is None:
        return None
    transform = transforms(spec) if isinstance(spec, str) else spec
    if not isinstance(transform, Hadamard) or transform.seed is not None:
        raise ValueError(
            f"rotate must be 'hadamard' or 'hadamard:N' (N a power of two), got {spec!r}: keys "
            "are not transformed in another way"
        )
    heads = config.num_attention_heads
    features = getattr(config, "head_dim", None) or config.hidden_size // heads
    size = transform.size or features & -features
    if size < 2 or features % size:
        raise ValueError(
            f"a head's {features} features cannot be rotated {size} at a time: pass "
            f"rotate='hadamard:N' with an N that divides them"
        )
    return int(size)


def _of_parts(q: QTensor, change: Callable[..., Tensor], *others: QTensor) -> QTensor:
    """What becomes of codes and scales, all of which have [batch, heads, tokens or chunks, ...]."""
    packed = change(*(each.packed for each in (q, *others)))
    parts = zip(q.qparams, *(each.qparams for each in others), strict=True)
    new = [None if part is None else change(part, *more) for part, *more in parts]
    return replace(q, packed=packed, qparams=QParams(*new))  # type: ignore[arg-type]


def _join(first: QTensor, second: QTensor) -> QTensor:
    """Codes of some chunks and of those after them."""
    return _of_parts(first, lambda *parts: torch.cat(parts, dim=2), second)


def _one_token(fmt: Format) -> Format:
    """The format, whose blocks lie along the last dimension, and whose outer scale, if it is the
    tensor's, is each token's. Raises ValueError for others."""
    if isinstance(fmt.scale, TwoLevel) and fmt.scale.inner.block.name == "tensor":
        of_token = replace(fmt.scale.inner, block=read_block("token"))
        fmt = replace(fmt, scale=replace(fmt.scale, inner=of_token))
    if fmt.rounding == "stochastic":
        raise ValueError(
            f"a cache must round to nearest, and {fmt.spelling} rounds stochastically: leave "
            "'stochastic' out"
        )
    one = torch.linspace(-1, 1, 256).reshape(1, 1, 1, 256)
    many = one * torch.tensor([1.0, 3.7, 40.0, 900.0, 5.0, 6.0, 7.0, 8.0]).reshape(2, 2, 2, 1)
    q = quantize(many, fmt)
    parts = (q.packed, *(part for part in q.qparams if part is not None))
    alone = torch.equal(q.dequantize()[:1, :1, :1], quantize(one, fmt).dequantize())
    if not alone or any(part.shape[:3] != many.shape[:3] for part in parts):
        raise ValueError(
            f"{fmt.spelling} has scales of several tokens or heads: a cache grows token by token "
            f"and needs blocks of one, such as 'int4:group32:fp32' or 'int8_token'"
        )
    return fmt


def _tokens_of_a_block(fmt: Format) -> int:
    """How many tokens share a channel's scale. Raises ValueError for formats without groups."""
    size = fmt.block.sizes_for(4)[-1]
    if size < 1:
        raise ValueError(
            "keys_per='channel' needs a format of groups, such as 'int4:group32:fp32', which "
            f"sets how many tokens share a scale, got {fmt.spelling}"
        )
    return size
