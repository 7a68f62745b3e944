# SPDX-License-Identifier: BSD-3-Clause
"""Attention of few queries over a cache in codes, which are decoded where they are multiplied.

Scores, of keys in codes and of recent ones, lie in memory between two shaders; the second gives of
each part of 256 tokens the largest score, and the sums of powers and of values times them; a third
adds the parts up, from the first to the last (wgsl/kernels/attention.wgsl). Keys and values are
read as right factors of products are (matmul_weight.py): rows [heads of keys · tokens, features].

rows: queries that share a head of keys, those of its heads one after another
"""

from dataclasses import dataclass, replace
from math import gcd
from typing import Any, NamedTuple

import torch
from torch import Tensor

from blockscale.core.block import WHOLE, Block
from blockscale.core.format import Format
from blockscale.core.operand import Operand
from blockscale.core.parse import parse
from blockscale.core.scales import TwoLevel
from blockscale.kernels.operand import few_queries
from blockscale.kernels.registry import kernel
from blockscale.kernels.webgpu.gpu.launch import Bound, launch
from blockscale.kernels.webgpu.gpu.memory import Memory, allocate
from blockscale.kernels.webgpu.gpu.probe import DeviceArithmetic
from blockscale.kernels.webgpu.gpu.shader import Constant, Shader, ShaderKernel
from blockscale.kernels.webgpu.matmul import (
    MatrixPlaces,
    Right,
    RightRoles,
    floats,
    most,
    storage,
)
from blockscale.kernels.webgpu.matmul_weight import decodes, right_of_codes
from blockscale.kernels.webgpu.primitives import form as forms
from blockscale.kernels.webgpu.spec import bits_of, known

_PART = 256  # tokens of a part, and lanes of a workgroup
_LANES = 8  # at most, that share a token's features
_QUADS, _QUADS_OF_FOUR_BITS = 4, 8  # of 16 bytes of codes
_ROWS = 8  # queries that are computed together, at most
_ROOM = 16384  # bytes of a workgroup's memory that every device has
_MOST_FEATURES = 1024


@dataclass(frozen=True)
class Scores(ShaderKernel, part="kernels/attention/scores"):
    """Queries times keys. mask: attention/mask/{mask}"""

    right: RightRoles
    mask: str


@dataclass(frozen=True)
class ValueSums(ShaderKernel, part="kernels/attention/values"):
    """Sums of values, part by part."""

    right: RightRoles


@dataclass(frozen=True)
class AddParts(ShaderKernel, part="kernels/attention/add_parts"):
    """Parts added up. sinks: attention/sinks/{sinks}"""

    device: DeviceArithmetic
    sinks: str


def _supports(formats: tuple[Format, ...], arguments: tuple[Any, ...]) -> bool:
    if not arguments:  # whether there is a kernel at all
        return known(formats, arguments)
    _, keys, values, *_ = arguments
    if len(keys.shape) != 4:  # per channel
        return False
    return (
        known(formats, arguments) and few_queries(arguments) and _readable(keys)
        and _readable(values)
    )  # fmt: skip


def _readable(whole: Operand) -> bool:
    """Whether a token's blocks are its own, and its features whole fours."""
    fmt, size = parse(whole.fmt), whole.size
    blocks = [fmt.block]
    if isinstance(fmt.scale, TwoLevel):
        blocks.append(fmt.scale.inner.block)
    if not 0 < size <= _MOST_FEATURES or size % 4:
        return False
    return all(map(_is_of_tokens, blocks)) and decodes(fmt, size)


def _is_of_tokens(block: Block) -> bool:
    """Whether blocks of a tensor [.., tokens, features] are those of one [n, features]."""
    if block.flat or any(not -2 <= dim < 2 for dim, _ in block.sizes):
        return bool(block.flat) and not block.strided
    *above, _ = sizes = block.sizes_for(4)
    return all(n == 1 for n in above) or all(n == WHOLE for n in sizes)


@kernel("cached_attention", backend="webgpu", supports=_supports)
def cached_attention(
    query: Tensor, keys: Operand, values: Operand, recent_keys: Tensor, recent_values: Tensor,
    mask: Tensor | None, scaling: float, sinks: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """As ops.attention.cached_attention."""
    recent = recent_keys.shape[2]
    batch, heads, new, depth = query.shape
    shared, tokens = keys.shape[1:3]
    n = AttentionSizes(batch, heads, new, depth, shared, tokens, recent, values.size)
    every = [_Tokens(_codes(keys), _codes(values), n.tokens, 0)]
    if n.recent:
        every.append(_Tokens(_floats(recent_keys), _floats(recent_values), n.recent, n.tokens))
    result = allocate(query.shape[:-1].numel() * n.width * query.dtype.itemsize)
    sink = None if sinks is None else (forms.floats(sinks), sinks.dtype)
    call = AttentionCall(
        n, every, forms.floats(query), query.dtype, scaling, _mask(mask), sink, result
    )
    all_heads = batch * shared
    together = most(all_heads, n.rows * n.every_token * 4, *(each.head_bytes for each in every))
    for first in range(0, all_heads, together):
        _attend(call, range(first, min(first + together, all_heads)))
    return forms.back(result, (batch, heads, new, n.width), query.dtype, query)


class AttentionSizes(NamedTuple):
    """The sizes of a call. shared: heads of keys; tokens: in codes; recent: in floats"""

    batch: int
    heads: int
    new: int
    depth: int
    shared: int
    tokens: int
    recent: int
    width: int

    @property
    def rows(self) -> int:
        """Queries that share a head of keys."""
        return self.heads // self.shared * self.new

    @property
    def every_token(self) -> int:
        """In codes and in floats."""
        return self.tokens + self.recent

    @property
    def together(self) -> int:
        """How many rows a workgroup computes: a power of two for which it has room."""
        rows = min(_ROWS, 1 << (self.rows - 1).bit_length())
        while rows > 1 and self._room(rows) > _ROOM:
            rows //= 2
        return rows

    def _room(self, rows: int) -> int:
        """Bytes: queries, sums and doubts of lanes, and a table of values."""
        return 4 * rows * self.depth + 16 * _PART * -(-rows // 4) + 2 * 4 * _PART + 4


class _Mask(NamedTuple):
    """What is added to scores. kind: attention/mask/{kind}; storage: of floats"""

    kind: str
    storage: int
    memory: Memory | None
    sizes: dict[str, int]


class _Tokens(NamedTuple):
    """Tokens whose keys and values are read alike: in codes, or in floats.

    keys, values: rows of all heads, one after another; number: of a head; start: those before them
    """

    keys: Right
    values: Right
    number: int
    start: int

    @property
    def head_bytes(self) -> int:
        """Of the codes of a head; 0 of floats, which are always seen whole."""
        return self.number * max(self.keys.row_bytes, self.values.row_bytes)

    @property
    def parts(self) -> int:
        """Of a head."""
        return -(-self.number // _PART)


class AttentionCall(NamedTuple):
    """What all launches of a call have in common.

    tokens: in codes and, if there are some, recent ones
    query, sinks, result: memory; dtype: of the query and of the result
    """

    sizes: AttentionSizes
    tokens: list[_Tokens]
    query: Memory
    dtype: torch.dtype
    scaling: float
    mask: _Mask
    sinks: tuple[Memory, torch.dtype] | None
    result: Memory


def _codes(whole: Operand) -> Right:
    """Tokens in codes. Raises ValueError where its parts do not fit its format."""
    f, shape = forms.form(whole.fmt), tuple(whole.shape)
    packed = f.checked_codes(whole.codes, shape, forms.place(whole.codes))
    parts = forms.given_parts(
        f, shape, whole.scale, whole.zero_point, whole.outer, whole.more, packed
    )
    rows = (packed.shape[:-1].numel(), shape[-1])
    if parts.outer is None or f.one_outer or f.outer_dtype != torch.float32:
        return right_of_codes(f, forms.memory_of(packed), rows, *forms.reading(f, parts, shape))
    # a token's, or the neighbours' of one: its place is a quotient
    assert f.inner is not None
    stored, beside = forms.reading(f, parts._replace(outer=None), shape)
    at = forms.geometry(tuple(f.scale_shape(shape)), f.inner.block)
    stored, beside = replace(stored, given_outer="run"), beside | {"outers": parts.outer}
    right = right_of_codes(f, forms.memory_of(packed), rows, stored, beside)
    return right._replace(constants=right.constants | {"OUTER_BLOCKS": at.block})


def _floats(x: Tensor) -> Right:
    """Recent tokens [batch, heads of keys, recent, features]."""
    places = MatrixPlaces(0, 0, x.shape[-1], 1)
    return floats(forms.floats(x), x.dtype, x.numel() // max(x.shape[-1], 1), places)


def _mask(mask: Tensor | None) -> _Mask:
    """[batch or 1, heads or 1, new or 1, tokens or 1], or its last dimensions."""
    if mask is None:
        return _Mask("none", 0, None, {})
    whole = mask.reshape((1,) * (4 - mask.ndim) + tuple(mask.shape)).contiguous()
    strides = [0 if n == 1 else each for n, each in zip(whole.shape, whole.stride(), strict=True)]
    names = ("mask_batch", "mask_head", "mask_row", "mask_token")
    kind, stored = "seen", 0
    if mask.dtype != torch.bool:
        kind, stored = "floats", storage(mask.dtype)
    return _Mask(kind, stored, forms.memory_of(whole), dict(zip(names, strides, strict=True)))


def _attend(call: AttentionCall, heads: range) -> None:
    """Some of the heads of keys, a launch for each step."""
    n, count = call.sizes, len(heads)
    parts = sum(each.parts for each in call.tokens)
    scores = allocate(4 * count * n.rows * n.every_token)
    each = 4 * count * parts * n.rows
    partial = {"sums": allocate(each * n.width), "tops": allocate(each), "totals": allocate(each)}
    place = {
        "heads": count, "first_head": heads.start, "rows": n.rows, "new_tokens": n.new,
        "key_heads": n.shared, "count": n.every_token, "every_token": n.every_token,
        "row_groups": -(-n.rows // n.together), "parts": parts,
    }  # fmt: skip
    first = 0
    for tokens in call.tokens:
        own = place | {"tokens": tokens.number, "start": tokens.start, "first_part": first}
        _launch_scores(call, tokens, heads, scores, own)
        buffers: dict[str, Bound] = {"scores": scores, **partial}
        _launch(ValueSums(tokens.values.roles), call, tokens.values, heads, buffers, own)
        first += tokens.parts
    _launch_parts(call, {**partial}, place, count * n.rows)


def _launch_scores(
    call: AttentionCall, tokens: _Tokens, heads: range, scores: Memory, sizes: dict[str, int]
) -> None:
    keys, mask, depth = tokens.keys, call.mask, call.sizes.depth
    buffers: dict[str, Bound] = {"x": call.query, "scores": scores}
    if mask.memory is not None:
        buffers["mask"] = mask.memory
    left = MatrixPlaces(0, 0, depth, 1).by_name("left")
    sizes = sizes | mask.sizes | left | {"scaling": bits_of(call.scaling)}
    stored: dict[str, Constant] = {
        "LEFT_STORAGE": storage(call.dtype), "MASK_STORAGE": mask.storage
    }  # fmt: skip
    right = keys._replace(constants=keys.constants | _lanes(keys, depth) | stored)
    _launch(Scores(right.roles, mask.kind), call, right, heads, buffers, sizes)


def _launch_parts(
    call: AttentionCall, buffers: dict[str, Bound], sizes: dict[str, int], groups: int
) -> None:
    stored: dict[str, Constant] = {
        "FEATURES": call.sizes.width, "RESULT_STORAGE": storage(call.dtype)
    }  # fmt: skip
    buffers["y"] = call.result
    if call.sinks is not None:
        buffers["sinks"], stored["SINK_STORAGE"] = call.sinks[0], storage(call.sinks[1])
    kernel = AddParts(forms.of_device(), "none" if call.sinks is None else "scores")
    launch(Shader(kernel, tuple(stored.items())), buffers, sizes, groups, bake=False)


def _lanes(right: Right, depth: int) -> dict[str, Constant]:
    """How many quads of features of one scale a lane has at once, and how many lanes a token."""
    quads, block = depth // 4, right.constants.get("BLOCK_SIZE")
    piece = 1
    if isinstance(block, int):
        bits = right.constants["BITS"]
        piece = gcd(_QUADS_OF_FOUR_BITS if bits in (1, 2, 3, 4) else _QUADS, quads, block // 4)
    return {"PIECE": piece, "TEAM": min(_LANES, 1 << ((quads // piece).bit_length() - 1))}


def _launch(
    kernel: Scores | ValueSums, call: AttentionCall, right: Right, heads: range,
    buffers: dict[str, Bound], sizes: dict[str, int],
) -> None:  # fmt: skip
    """A shader that reads keys or values [.., inner] of some heads: a workgroup for a part."""
    n, tokens = call.sizes, sizes["tokens"]
    inner = n.depth if isinstance(kernel, Scores) else n.width
    first, own = heads.start * tokens, dict(right.sizes)
    if right.codes is None:
        own["right_start"] = first * inner
    constants = right.constants | {
        "FEATURES": inner, "ROWS": n.together, "FOURS": -(-n.together // 4)
    }  # fmt: skip
    bound: dict[str, Bound] = {**right.bound(first, len(heads) * tokens), **buffers}
    sizes = sizes | own | {"inner": inner, "first": first}
    groups = -(-tokens // _PART) * len(heads) * sizes["row_groups"]
    launch(Shader(kernel, tuple(constants.items())), bound, sizes, groups, bake=False)
