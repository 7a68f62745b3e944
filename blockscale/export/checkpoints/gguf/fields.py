# SPDX-License-Identifier: BSD-3-Clause
"""Fields of a few bits in the bytes of GGUF's blocks, taken apart and put together.

Functions work on uint8 [..., bytes] of many blocks at once, and each has its inverse beside it.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

Parts = dict[str, Tensor]  # "codes", and the parts of a Format


class BlockType(NamedTuple):
    """A type of blocks.

    number: in files; elements, size: of a block, in numbers and in bytes
    format: its spelling here; apart: bytes [n, size] -> parts; together: the inverse
    """

    number: int
    elements: int
    size: int
    format: str
    apart: Callable[[Tensor], Parts]
    together: Callable[[Parts], Tensor]


def spread(data: Tensor, width: int, run: int = 0) -> Tensor:
    """Bytes [..., k] -> their fields of `width` bits [..., k * 8 / width].

    In each run of so many bytes (0: all are one) the lowest fields of all bytes come first, then
    the next: what ggml calls halves and quarters.
    """
    run = run or data.shape[-1]
    parts = data.unflatten(-1, (-1, 1, run))
    shifts = torch.arange(0, 8, width, dtype=torch.uint8).unsqueeze(-1)
    return ((parts >> shifts) & ((1 << width) - 1)).flatten(-3)


def gathered(fields: Tensor, width: int, run: int = 0) -> Tensor:
    """The inverse of `spread`; higher bits of the fields are left out."""
    each = 8 // width
    parts = (fields & ((1 << width) - 1)).unflatten(-1, (-1, each, run or fields.shape[-1] // each))
    total = parts.select(-2, 0).clone()
    for place in range(1, each):
        total |= parts.select(-2, place) << (place * width)
    return total.flatten(-2)


def stream(data: Tensor, width: int) -> Tensor:
    """Bytes [..., k] -> fields [..., k * 8 / width], the fields of a byte after one another."""
    shifts = torch.arange(0, 8, width, dtype=torch.uint8)
    return ((data.unsqueeze(-1) >> shifts) & ((1 << width) - 1)).flatten(-2)


def streamed(fields: Tensor, width: int) -> Tensor:
    """The inverse of `stream`."""
    parts = (fields & ((1 << width) - 1)).unflatten(-1, (-1, 8 // width))
    shifts = torch.arange(0, 8, width, dtype=torch.uint8)
    return (parts << shifts).sum(-1, dtype=torch.uint8)


def half(data: Tensor, place: int) -> Tensor:
    """The fp16 number at a byte of each block [n, bytes] -> [n, 1]."""
    return data[:, place : place + 2].contiguous().view(torch.float16)


def negated(numbers: Tensor) -> Tensor:
    """fp16 with the other sign; NaN, too, keeps all other bits."""
    return (numbers.view(torch.int16) ^ -(2**15)).view(torch.float16)


def raw(numbers: Tensor) -> Tensor:
    """Numbers [n, k] -> their bytes [n, k * itemsize]."""
    return numbers.contiguous().view(torch.uint8)


def signed(codes: Tensor, middle: int) -> Tensor:
    """Codes from 0 -> int8, of which `middle` is 0."""
    return codes.view(torch.int8) - middle


def unsigned(codes: Tensor, middle: int) -> Tensor:
    """The inverse of `signed`."""
    return (codes + middle).view(torch.uint8)


def six_bits(data: Tensor) -> tuple[Tensor, Tensor]:
    """The 12 bytes of Q4_K and Q5_K -> eight scales and eight minimums [n, 8]."""
    first, second, third = data.split(4, -1)
    scales = torch.cat([first & 63, (third & 15) | (first >> 6 << 4)], -1)
    return scales, torch.cat([second & 63, (third >> 4) | (second >> 6 << 4)], -1)


def from_six_bits(scales: Tensor, minimums: Tensor) -> Tensor:
    """The inverse of `six_bits`."""
    (low_s, high_s), (low_m, high_m) = scales.split(4, -1), minimums.split(4, -1)
    first = low_s | (high_s >> 4 << 6)
    second = low_m | (high_m >> 4 << 6)
    return torch.cat([first, second, (high_s & 15) | (high_m & 15) << 4], -1)


def digits(data: Tensor, count: int) -> Tensor:
    """Bytes [n, k] of TQ1_0 -> `count` digits of base 3 each, 0 to 2 [n, count * k]."""
    wide = data.to(torch.int16).unsqueeze(-2)
    powers = torch.tensor([3**t for t in range(count)], dtype=torch.int16).unsqueeze(-1)
    return ((wide * powers & 255) * 3 >> 8).to(torch.uint8).flatten(-2)


def from_digits(fields: Tensor, count: int) -> Tensor:
    """The inverse of `digits`: of the bytes with these digits ggml's, the least."""
    parts = fields.unflatten(-1, (count, -1)).to(torch.int32)
    value = torch.zeros_like(parts.select(-2, 0))
    for place in range(5):  # a byte has room for five, also where four are used
        value = value * 3 + (parts.select(-2, place) if place < count else 0)
    return ((value * 256 + 242) // 243).to(torch.uint8)


def joined(*pieces: Tensor) -> Tensor:
    """Pieces [n, ...] of blocks, bytes or numbers -> the blocks' bytes."""
    return torch.cat([piece if piece.dtype == torch.uint8 else raw(piece) for piece in pieces], -1)
