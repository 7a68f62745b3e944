# SPDX-License-Identifier: BSD-3-Clause
"""compressed-tensors' pack-quantized: codes of 1 to 8 bits in int32 words along each row.

Stored is code + 2^(bits-1). Zero points lie likewise, but along the rows: [words, groups].
Releases of 2025 put 32 // bits codes in a word; since 2026 codes are one stream over all words.
"""

from collections.abc import Mapping
from functools import partial
from math import prod

import torch
from torch import Tensor

from blockscale.core.pack import pack, unpack
from blockscale.core.parse import parse
from blockscale.export.checkpoints.assembling import (
    FLOATS,
    assembled,
    block_of,
    columns,
    flipped,
    kept,
    little_endian,
)
from blockscale.export.checkpoints.layout import Kinds, Parts, Weight
from blockscale.export.checkpoints.layouts.compressed_tensors.groups import Arguments, number
from blockscale.ops.tensor import QTensor

_WORD = 32
Shape = tuple[int, ...]


def integers(
    parts: Mapping[str, str], kinds: Kinds, small: Mapping[str, Tensor], groups: list[Arguments]
) -> Weight:
    """A weight of which `parts` are stored; small: its weight_shape and weight_g_idx, read."""
    words, shape = kinds[parts["codes"]][1], _shape(parts, small)
    if shape is None or len(shape) != len(words) or shape[:-1] != words[:-1]:
        return _unread(parts, words, f"its weight_shape does not match its codes {list(words)}")
    bits = _bits(shape, words, number(groups, "num_bits"))
    if not bits:
        return _unread(parts, shape, f"no width from 1 to 8 bits fills {words[-1]} words")
    dense = _dense(shape, words, bits) is True
    dtype, scale = kinds.get(parts.get("scale", ""), (None, ()))
    group = next(iter(number(groups, "group_size")), 0)
    block = block_of(shape, scale, group)
    if dtype not in FLOATS or block is None:
        return _unread(parts, shape, f"its scales are {dtype} {list(scale)}, which match no block")
    asym = "zero_point" in parts
    element = f"uint{bits}" if asym or bits == 1 else f"int{bits}"  # there is no int1
    spelling = f"{element}:{block}:{FLOATS[dtype]}" + (":full" if element[0] == "i" else ":asym")
    order = _order(parts, small, shape[-1])
    decode = partial(_decode, spelling, shape, bits, dense)
    kind = f"pack-quantized int{bits}" + ("" if dense else ", whole codes in each word")
    return Weight(
        kind, shape, parts, str(parse(spelling)), decode=decode,
        order=None if order is None else lambda _: order,
    )  # fmt: skip


def _shape(parts: Mapping[str, str], small: Mapping[str, Tensor]) -> Shape | None:
    stored = small.get(parts.get("shape", ""))
    if stored is None or stored.dtype.is_floating_point or stored.ndim != 1:
        return None
    shape = tuple(int(n) for n in stored.tolist())
    return shape if len(shape) > 1 and all(0 < n < 2**40 for n in shape) else None


def _bits(shape: Shape, words: Shape, told: list[int]) -> int:
    """The width that fills such words: one of those told, else one of a dense stream; or 0."""
    fits = {bits: _dense(shape, words, bits) for bits in (*told, *range(1, 9))}
    by_rank = [bits for bits in told if fits[bits] is not None]
    by_rank += [bits for bits in range(1, 9) if fits[bits]]
    by_rank += [bits for bits in range(1, 9) if fits[bits] is False]
    return next(iter(by_rank), 0)


def _dense(shape: Shape, words: Shape, bits: int) -> bool | None:
    """Whether rows of such codes are one stream; False if each word has whole codes; or None."""
    if not 1 <= bits <= 8:
        return None
    if words[-1] == -(-shape[-1] * bits // _WORD):
        return True
    return False if words[-1] == -(-shape[-1] // (_WORD // bits)) else None


def _unread(parts: Mapping[str, str], shape: Shape, reason: str) -> Weight:
    return Weight("pack-quantized", shape, parts, None, reason)


def _order(parts: Mapping[str, str], small: Mapping[str, Tensor], size: int) -> Tensor | None:
    """The columns in the order in which they share scales; None if that is theirs."""
    places = small.get(parts.get("order", ""))
    if places is None or places.numel() != size or places.dtype.is_floating_point:
        return None
    if bool((places.flatten() == -1).all()):  # not initialized: no order
        return None
    order = places.flatten().argsort(stable=True)
    return None if torch.equal(order, torch.arange(size)) else order


def _decode(spelling: str, shape: Shape, bits: int, dense: bool, parts: Parts) -> QTensor:
    fmt = parse(spelling)
    rows = _stream(parts["codes"], bits, shape[-1]) if not dense else little_endian(parts["codes"])
    signed = fmt.element.name.startswith("int")
    codes = flipped(rows, fmt.element, shape[-1]) if signed else kept(rows, fmt.element, shape[-1])
    order = _order({"order": "order"}, parts, shape[-1])
    if order is not None:
        codes = columns(codes, fmt, shape[-1], order)
    held = {"codes": codes, "scale": parts["scale"]}
    if fmt.asym:
        held["zero_point"] = _zeros(parts, bits, dense, fmt.stored(shape)["scale"][1])
    return assembled(spelling, shape, held)


def _zeros(parts: Parts, bits: int, dense: bool, shape: Shape) -> Tensor:
    if "zero_point" not in parts:
        return torch.full(shape, 1 << (bits - 1), dtype=torch.int32)
    stored = parts["zero_point"]
    if stored.dtype != torch.int32:  # whole numbers around 0
        return stored.to(torch.int32) + (1 << (bits - 1))
    by_row = stored.mT.contiguous()  # [groups, words]: rows of the weight lie in the words
    count = shape[-2]
    rows = little_endian(by_row) if dense else _stream(by_row, bits, count)
    element = parse(f"uint{bits}:tensor:fp32").element
    needed = -(-count * bits // 8)
    if rows.shape[-1] < needed or prod(by_row.shape[:-1]) * count != prod(shape):
        raise ValueError(
            f"its zero points have shape {list(stored.shape)}, expected that of the scales, "
            f"{list(shape)}"
        )
    cut = kept(rows, element, count)
    return unpack(cut, element, (*by_row.shape[:-1], count)).mT.to(torch.int32)


def _stream(words: Tensor, bits: int, size: int) -> Tensor:
    """Words with 32 // bits whole codes each -> bytes of one stream."""
    shifts = torch.arange(0, _WORD - bits + 1, bits, dtype=torch.int32)
    codes = (words.unsqueeze(-1) >> shifts) & ((1 << bits) - 1)
    element = parse(f"uint{bits}:tensor:fp32").element
    return pack(codes.flatten(-2)[..., :size].to(torch.uint8), element)
