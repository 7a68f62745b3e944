# SPDX-License-Identifier: BSD-3-Clause
"""Tensors as rows of their blocks, and codes and scales put back in the shapes of a format."""

from dataclasses import dataclass

import torch
from torch import Tensor

from blockscale.core.format import Format
from blockscale.core.profiles.knobs import Encoder
from blockscale.core.reference import QParams


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
