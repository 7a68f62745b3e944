# SPDX-License-Identifier: BSD-3-Clause
"""Parts of other producers' weights -> QTensors: blocks from shapes, codes that lie otherwise.

What layouts/ share: nothing here knows any producer's names.
"""

from collections.abc import Mapping
from math import prod

import torch
from torch import Tensor

from blockscale.core.element import Element
from blockscale.core.format import Format
from blockscale.core.pack import pack, packed_dtype, packed_size, unpack
from blockscale.core.parse import parse
from blockscale.ops.tensor import QTensor, from_parts

Shape = tuple[int, ...]
FLOATS = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
BYTES = (torch.float8_e8m0fnu, torch.uint8)  # powers of two
_TILE = 128  # of DeepSeek, whose last tiles may be partial


def block_of(shape: Shape, scale: Shape, group: int = 0) -> str | None:
    """The block of which a weight [..., out, in] has scales of such a shape, or None.

    group: how many inputs share a scale, where a configuration says it; the last may be fewer
    """
    if prod(scale) == 1:
        return "tensor"
    if len(shape) == 2 and scale in (shape[:1], (shape[0], 1)):
        return "channel0"
    if len(shape) < 2 or len(scale) != len(shape) or scale[:-2] != shape[:-2]:
        return None
    if scale[-2] == shape[-2]:
        size = group if group > 0 and -(-shape[-1] // group) == scale[-1] else 0
        size = size or (shape[-1] // scale[-1] if scale[-1] and not shape[-1] % scale[-1] else 0)
        return f"group{size}" if size else None
    rows, columns = (_size(n, count) for n, count in zip(shape[-2:], scale[-2:], strict=True))
    return f"tile{rows}x{columns}" if rows and columns else None


def _size(elements: int, count: int) -> int:
    """Of `count` equal blocks along so many elements, of which the last may be partial; or 0."""
    if -(-elements // _TILE) == count:  # also where other sizes would do: nobody writes those
        return min(_TILE, elements)
    return elements // count if count and elements % count == 0 else 0


def assembled(spelling: str, shape: Shape, parts: Mapping[str, Tensor]) -> QTensor:
    """A QTensor of codes, packed as we pack them, and parts in any dtype and shape that fit.

    Raises ValueError for parts of another size than the format's.
    """
    fmt, held = parse(spelling), dict(parts)
    for part, (dtype, wanted) in fmt.stored(shape).items():
        found = held[part]
        if found.numel() != prod(wanted):
            raise ValueError(f"its {part} has shape {list(found.shape)}, expected {list(wanted)}")
        if dtype == torch.uint8 and found.dtype.is_floating_point:
            found = found.view(torch.uint8)  # bytes of a float keep their bits
        held[part] = found.to(dtype).reshape(wanted).contiguous()
    rows = (*shape[:-1], packed_size(fmt.element, shape[-1]))
    held["codes"] = _bytes(held["codes"], fmt.element).reshape(rows)
    return from_parts(fmt, shape[-1], held)


def _bytes(codes: Tensor, element: Element) -> Tensor:
    wanted = packed_dtype(element)
    return codes.contiguous() if codes.dtype == wanted else codes.contiguous().view(wanted)


def flipped(rows: Tensor, element: Element, size: int) -> Tensor:
    """Packed codes counted from 0 [..., bytes] -> the same, or more, as two's complement, or back.

    Rows are cut to `size` codes, and bits behind the last code become 0.
    """
    lowest = torch.full((size,), 1 << (element.bits - 1), dtype=torch.uint8)
    unsigned = parse(f"uint{element.bits}:tensor:fp32").element
    return kept(rows, unsigned, size) ^ pack(lowest, unsigned)


def kept(rows: Tensor, element: Element, size: int) -> Tensor:
    """Packed rows [..., bytes] cut to `size` codes; bits behind the last code become 0."""
    cut = rows[..., : packed_size(element, size)].contiguous()
    if behind := -size * element.bits % 8:
        cut[..., -1] &= 255 >> behind
    return cut


def little_endian(words: Tensor) -> Tensor:
    """Words [..., n] -> their bytes [..., n * itemsize], the lowest first."""
    flat = words.contiguous().flatten().view(torch.uint8)
    return flat.reshape(*words.shape[:-1], words.shape[-1] * words.element_size())


def columns(codes: Tensor, fmt: Format, size: int, order: Tensor) -> Tensor:
    """Packed codes [..., bytes] of `size` columns -> packed, the columns in another order."""
    apart = unpack(codes, fmt.element, (*codes.shape[:-1], size))
    return pack(apart.index_select(-1, order), fmt.element)
