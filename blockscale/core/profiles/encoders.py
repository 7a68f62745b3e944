# SPDX-License-Identifier: BSD-3-Clause
"""Encoders of producers whose rules are no knobs: searches, offsets, scales of integers.

Each is a frozen value that is called with numbers and a format, as blockscale.core.profiles.knobs
says; one file for each family of rules. All is plain PyTorch over all blocks at once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from blockscale.core.format import Format
from blockscale.core.profiles.knobs import Encoder
from blockscale.core.reference import QParams, widen
from blockscale.core.scales import TwoLevel

# Tensors as rows of their blocks, and codes and scales put back in the shapes of a format.


def in_blocks(x: Tensor, fmt: Format) -> Tensor:
    """x [...] -> [blocks, numbers of a block] of its dtype, for groups, flat blocks, rows, a whole.

    Raises ValueError for a block of other kinds, or one that does not divide x.
    """
    name, block = fmt.block.name, fmt.block
    if block.flat and not block.strided:
        size = block.flat
    elif name == "tensor":
        size = x.numel()
    elif name == "channel0":
        size = x[0].numel() if len(x) else 1
    elif name.startswith("group") and "@" not in name:
        size = block.sizes_for(x.ndim)[-1]
    else:
        raise ValueError(f"{fmt}: blocks of {block} are not runs of consecutive numbers")
    if x.numel() % max(size, 1):
        raise ValueError(f"{fmt}: blocks of {size} do not divide a tensor of {tuple(x.shape)}")
    return x.reshape(-1, size) if x.numel() else x.new_zeros(0, max(size, 1))


def put_back(x: Tensor, fmt: Format, codes: Tensor, **parts: Tensor) -> tuple[Tensor, QParams]:
    """Codes [blocks, ...] of any dtype and a number for each block, in the shapes of x's format."""
    shapes = fmt.stored(x.shape)
    beside = {
        part: each.to(shapes[part][0]).reshape(shapes[part][1]) for part, each in parts.items()
    }
    return codes.reshape(x.shape).to(fmt.element.code_dtype), QParams(**beside)


def whole(like: Tensor, number: float) -> Tensor:
    """A number as a tensor, by which torch divides on every device instead of multiplying."""
    return torch.full_like(like, number)


@dataclass(frozen=True)
class Padded:
    """An encoder by groups that adds zeros where the last group of a row is not whole."""

    encoder: Encoder

    def __call__(self, x: Tensor, fmt: Format) -> tuple[Tensor, QParams]:
        """x [..., n] -> codes [..., n] and what stands beside them."""
        columns = x.shape[-1] if x.ndim else 1
        short = -columns % fmt.block.sizes_for(x.ndim)[-1]
        if not short:
            return self.encoder(x, fmt)
        codes, qparams = self.encoder(torch.nn.functional.pad(x, (0, short)), fmt)
        return codes[..., :columns].contiguous(), qparams


# The number of largest magnitude, with its sign: what ggml's and other searches begin with.


def first_largest(x: Tensor) -> tuple[Tensor, Tensor]:
    """x [n, ...] -> the first number of largest magnitude along dimension 0, and that magnitude."""
    size = x.abs()
    largest = size.amax(0)
    places = torch.arange(x.shape[0], device=x.device).reshape(-1, *[1] * (x.ndim - 1))
    there = torch.where(size == largest, places, x.shape[0]).amin(0)
    return x.gather(0, there.unsqueeze(0)).squeeze(0), largest


# Tensors cut into super-blocks of 256, a few MB at a time, and put together again.

SUPER = 256
_CHUNK = 1024  # super-blocks that are searched at a time: they stay in a processor's cache


class EncodedBlocks(NamedTuple):
    """What an encoder makes of n numbers in each of some blocks.

    codes: [n, blocks]; scale: [super-blocks, each] codes; outer: [super-blocks, 1] fp16; offset,
    offset_outer: likewise
    """

    codes: Tensor
    scale: Tensor
    outer: Tensor
    offset: Tensor | None = None
    offset_outer: Tensor | None = None


def half(x: Tensor) -> Tensor:
    """float32 -> fp16, nearest even, infinite above 65504."""
    return x.to(torch.float16)


def by_super_block(
    x: Tensor, fmt: Format, encode: Callable[[Tensor, Format], EncodedBlocks]
) -> tuple[Tensor, QParams]:
    """x [..., n] -> codes [..., n] and what stands beside them, by `encode` of chunks."""
    assert isinstance(fmt.scale, TwoLevel)
    [(_, size)] = fmt.block.sizes
    blocks = widen(x).reshape(-1, size)
    step = _CHUNK * SUPER // size
    pieces = (blocks[start : start + step] for start in range(0, len(blocks), step))
    results = [encode(piece.T.contiguous(), fmt) for piece in pieces]
    if not results:
        empty = torch.zeros(0, dtype=torch.int32, device=x.device)
        results = [EncodedBlocks(empty.reshape(size, 0), empty, empty, empty, empty)]
    shapes = fmt.stored(x.shape)
    codes = (
        torch.cat([each.codes.T for each in results]).reshape(x.shape).to(fmt.element.code_dtype)
    )
    inner = fmt.scale.inner.element
    mask = 2**inner.bits - 1
    beside = {}
    for part, (dtype, shape) in shapes.items():
        whole = torch.cat([getattr(each, part).reshape(-1) for each in results])
        beside[part] = (whole & mask if dtype == torch.uint8 else whole).to(dtype).reshape(shape)
    return codes, QParams(**beside)


# Float32 as a loop of compiled C has it, rounded after each operation.
#
# A compiler may instead fuse a * b + c to one operation where the processor has it, which changes
# bytes; x86-64 without options, which is how ggml builds these functions, has none. Tensors have
# the
# elements of a block along dimension 0, and all blocks along the others.

_MAGIC = 12582912.0  # 3 * 2^22: a float32 sum with it has its integer part in the last 22 bits


def ordered_sum(terms: Tensor) -> Tensor:
    """The sum of terms [n, ...] along dimension 0, in order, from 0."""
    total = torch.zeros_like(terms[0])
    for each in terms:
        total = total + each
    return total


def nearest_int(x: Tensor) -> Tensor:
    """x [...] float32 -> int32, half to even; beyond 2^22 what the bits say (ggml)."""
    bits: Tensor = (x + _MAGIC).contiguous().view(torch.int32)
    return (bits & 0x7FFFFF) - 0x400000


def square_root(x: Tensor) -> Tensor:
    """The float32 root, rounded once: torch's own float32 root is not, of one number in six (2.13).

    No root of a float32 number lies so close to the middle of two that float64's could decide
    for the wrong one.
    """
    return x.double().sqrt().to(torch.float32)
