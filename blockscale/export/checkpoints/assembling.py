# SPDX-License-Identifier: BSD-3-Clause
"""What producers' layouts are read with: streams of bits, and parts put together as QTensors."""

from collections.abc import Iterator, Mapping, Sequence
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor

from blockscale.core.element import Element
from blockscale.core.format import Format
from blockscale.core.pack import pack, packed_dtype, packed_size, unpack
from blockscale.core.parse import parse
from blockscale.ops import primitives
from blockscale.ops.tensor import QTensor, dtype_name, from_parts

# Blocks from shapes, and codes that lie otherwise. Nothing here knows any producer's names.

Shape = tuple[int, ...]
FLOATS = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
BYTES = (torch.float8_e8m0fnu, torch.uint8)  # powers of two
_TILE = 128  # of DeepSeek, whose last tiles may be partial


def block_of(shape: Shape, scale: Shape, group: int = 0) -> str | None:
    """The block of which a weight [..., out, in] has scales of such a shape, or None.

    group: how many inputs share a scale, where a configuration says it; the last may be fewer
    """
    tile = tile_of(shape, scale)
    rows_apart = len(shape) >= 2 and len(scale) == len(shape) and scale[:-1] == shape[:-1]
    if not rows_apart or tile in ("tensor", "channel0"):
        return tile
    size = group if group > 0 and -(-shape[-1] // group) == scale[-1] else 0
    size = size or (shape[-1] // scale[-1] if scale[-1] and not shape[-1] % scale[-1] else 0)
    return f"group{size}" if size else None


def tile_of(shape: Shape, scale: Shape) -> str | None:
    """The same where rows of one block have no name of their own: a tile of one row, as others."""
    if prod(scale) == 1:
        return "tensor"
    if len(shape) == 2 and scale in (shape[:1], (shape[0], 1)):
        return "channel0"
    if len(shape) < 2 or len(scale) != len(shape) or scale[:-2] != shape[:-2]:
        return None
    rows, columns = (_size(n, count) for n, count in zip(shape[-2:], scale[-2:], strict=True))
    return f"tile{rows}x{columns}" if rows and columns else None


def _size(elements: int, count: int) -> int:
    """Of `count` equal blocks along so many elements, of which the last may be partial; or 0."""
    if -(-elements // _TILE) == count:  # also where other sizes would do: nobody writes those
        return min(_TILE, elements)
    return elements // count if count and elements % count == 0 else 0


def assemble(spelling: str, shape: Shape, parts: Mapping[str, Tensor]) -> QTensor:
    """A QTensor of codes, packed as we pack them, and parts in any dtype and shape that fit.

    Raises ValueError for parts of another size than the format's.
    """
    fmt, own_parts = parse(spelling), dict(parts)
    for part, (dtype, target) in fmt.stored(shape).items():
        result = own_parts[part]
        if result.numel() != prod(target):
            raise ValueError(f"its {part} has shape {list(result.shape)}, expected {list(target)}")
        if dtype == torch.uint8 and result.dtype.is_floating_point:
            result = result.view(torch.uint8)  # bytes of a float keep their bits
        own_parts[part] = result.to(dtype).reshape(target).contiguous()
    rows = (*shape[:-1], packed_size(fmt.element, shape[-1]))
    own_parts["codes"] = _bytes(own_parts["codes"], fmt.element).reshape(rows)
    return from_parts(fmt, shape[-1], own_parts)


def _bytes(codes: Tensor, element: Element) -> Tensor:
    target = packed_dtype(element)
    return codes.contiguous() if codes.dtype == target else codes.contiguous().view(target)


def flip(rows: Tensor, element: Element, size: int) -> Tensor:
    """Packed codes counted from 0 [..., bytes] -> the same, or more, as two's complement, or back.

    Rows are cut to `size` codes, and bits behind the last code become 0.
    """
    lowest = torch.full((size,), 1 << (element.bits - 1), dtype=torch.uint8)
    unsigned = parse(f"uint{element.bits}:tensor:fp32").element
    return trim(rows, unsigned, size) ^ pack(lowest, unsigned)


def trim(rows: Tensor, element: Element, size: int) -> Tensor:
    """Packed rows [..., bytes] cut to `size` codes; bits behind the last code become 0."""
    result = rows[..., : packed_size(element, size)].contiguous()
    if behind := -size * element.bits % 8:
        result[..., -1] &= 255 >> behind
    return result


def little_endian(words: Tensor) -> Tensor:
    """Words [..., n] -> their bytes [..., n * itemsize], the lowest first."""
    flat = words.contiguous().flatten().view(torch.uint8)
    return flat.reshape(*words.shape[:-1], words.shape[-1] * words.element_size())


def columns(codes: Tensor, fmt: Format, size: int, order: Tensor) -> Tensor:
    """Packed codes [..., bytes] of `size` columns -> packed, the columns in another order."""
    apart = unpack(codes, fmt.element, (*codes.shape[:-1], size))
    return pack(apart.index_select(-1, order), fmt.element)


# Codes that lie in words as streams of bits.

_SLAB = 1 << 18  # words that are turned at a time: what lies between stays in the cache


def as_bytes(words: Tensor) -> Tensor:
    """Words [..., n] of any dtype -> their bytes, uint8 [..., n * itemsize]."""
    return words.contiguous().view(torch.uint8)


def fields(words: Tensor, bits: int, count: int | None = None) -> Tensor:
    """A dense stream along the last dimension -> codes uint8 [..., count]: by default, all."""
    stream = as_bytes(words)
    if count is None:
        count = stream.shape[-1] * 8 // bits
    head = stream[..., : -(-count * bits // 8)].contiguous()
    codes: Tensor = primitives.unpack(head, f"uint{bits}:tensor:fp32", count)
    return codes


def packed(codes: Tensor, spelling: str) -> Tensor:
    """Codes [..., n], uint8 -> as a format of unsigned codes stores them."""
    stored: Tensor = primitives.pack(codes.contiguous(), spelling)
    return stored


def as_codes(stream: Tensor, spelling: str) -> Tensor:
    """The bytes of a dense stream are how our formats store codes, too: no bit is moved."""
    return as_bytes(stream).view(packed_dtype(parse(spelling).element))


def quantized(spelling: str, shape: Sequence[int], parts: Mapping[str, Tensor]) -> QTensor:
    """Codes as the format stores them, and its other parts, as a QTensor of `shape`.

    Parts get the shape that the format has for them. Raises ValueError where their sizes or dtypes
    are others.
    """
    fmt, own_parts = parse(spelling), dict(parts)
    for part, (dtype, target) in fmt.stored(shape).items():
        result = own_parts[part]
        if result.numel() != prod(target) or result.dtype != dtype:
            raise ValueError(
                f"its {part} has {result.numel()} numbers of {dtype_name(result.dtype)}, "
                f"expected {prod(target)} of {dtype_name(dtype)} ({spelling} of shape "
                f"{list(shape)})"
            )
        own_parts[part] = result.reshape(target).contiguous()
    row = packed_size(fmt.element, shape[-1])
    if own_parts["codes"].numel() != row * prod(shape[:-1]):
        raise ValueError(
            f"its codes take {own_parts['codes'].numel()} bytes, expected {row * prod(shape[:-1])} "
            f"for a weight {list(shape)}"
        )
    own_parts["codes"] = own_parts["codes"].reshape(*shape[:-1], row)
    return from_parts(fmt, shape[-1], own_parts)


def rows_of_words(words: Tensor, order: Sequence[int]) -> Tensor:
    """Words int32 [n, m] of eight nibbles each -> packed rows of four bits, uint8 [8 * m, n / 2].

    Nibble i of word w of row r is code r of row 8 * w + order[i]. Odd n: the last four bits are 0.
    Eight words of a column are turned as a square of nibbles; words, not codes, are transposed.
    """
    rows, width = words.shape
    if words.is_meta:  # only its shape is asked for
        return words.new_empty((8 * width, (rows + 1) // 2), dtype=torch.uint8)
    squares = F.pad(words, (0, 0, 0, -rows % 8)).reshape(-1, 8, width)
    planes = torch.empty((8, squares.shape[0], width), dtype=torch.int32, device=words.device)
    for start, stop in _slabs(*squares.shape):
        planes[:, start:stop] = _turn(squares[start:stop]).transpose(0, 1)
    result = torch.empty((width, 8, squares.shape[0]), dtype=torch.int32, device=words.device)
    for i in range(8):
        result[:, order[i]] = planes[i].mT.contiguous()
    return result.view(torch.uint8).flatten(0, 1)[:, : (rows + 1) // 2].contiguous()


def turned_back(packed: Tensor, order: Sequence[int], size: int) -> Tensor:
    """What `rows_of_words` gives -> words int32 [size, m]. size: codes of a row; 8 * m rows."""
    bytes_ = F.pad(packed, (0, -packed.shape[-1] % 4)).contiguous()
    rows = bytes_.view(torch.int32).unflatten(0, (-1, 8))
    shape = rows.shape[2], 8, rows.shape[0]
    squares = torch.empty(shape, dtype=torch.int32, device=packed.device)
    for i in range(8):
        squares[:, i] = rows[:, order[i]].contiguous().mT.contiguous()
    for start, stop in _slabs(*squares.shape):
        squares[start:stop] = _turn(squares[start:stop])
    return squares.flatten(0, 1)[:size].contiguous()


def _slabs(count: int, eight: int, width: int) -> Iterator[tuple[int, int]]:
    step = max(16, _SLAB // max(1, eight * width))
    return ((start, min(start + step, count)) for start in range(0, count, step))


def _turn(squares: Tensor) -> Tensor:
    """Words int32 [n, 8, m], nibble j of word i of a square -> nibble i of word j.

    Squares of 4, then of 2, then of 1 nibbles change places across the diagonal.
    """
    for half, mask in ((4, 0xFFFF), (2, 0xFF00FF), (1, 0xF0F0F0F)):
        upper, lower = squares.unflatten(1, (-1, 2, half)).unbind(2)
        result = torch.empty_like(squares)
        first, second = result.unflatten(1, (-1, 2, half)).unbind(2)
        torch.bitwise_or(upper & mask, (lower & mask) << 4 * half, out=first)
        torch.bitwise_or((upper >> 4 * half) & mask, lower & ~mask, out=second)
        squares = result
    return squares


def scale_type(dtype: torch.dtype | None) -> str:
    """How formats spell scales of this dtype. Raises ValueError for one that they have not."""
    types = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
    if dtype not in types:
        raise ValueError(f"its scales are {dtype}, expected float32, float16 or bfloat16")
    return types[dtype]


def groups(size: int, inputs: int) -> str:
    """How formats spell groups of so many along rows of `inputs`."""
    return "channel0" if size == inputs else f"group{size}"
