"""Tensors of IQ1, IQ2 and IQ3: vectors of grids that ggml found by search, read as float32.

A grid is a table of 256 to 2048 vectors of ggml's own, which no rule gives; it is no part of this
program. The package gguf (the extra `gguf`), which is ggml's own for Python, has them.
"""

from collections.abc import Sequence
from importlib.util import find_spec

import torch
from torch import Tensor

PACKAGE = "gguf"
_ROWS = 1 << 22  # bytes of blocks that are decoded at a time


def unread(kind: str) -> str:
    """Why a tensor of this kind cannot be read here; empty where it can."""
    if find_spec(PACKAGE) is not None:
        return ""
    return (
        f"{kind} holds vectors of a grid of ggml's own, which are no elements of a format: with "
        f"the package gguf it is read as float32 (pip install 'blockscale[gguf]')"
    )


def dequantized(kind: str, blocks: Tensor, size: int, shape: Sequence[int]) -> Tensor:
    """float32 values, as the package gguf decodes them. blocks: uint8, each of `size` bytes."""
    import gguf

    of = gguf.GGMLQuantizationType[kind]
    whole, done = torch.empty(*shape, dtype=torch.float32), 0
    flat, rows = whole.view(-1), blocks.reshape(-1, size)
    for part in rows.split(max(1, _ROWS // size)):
        found = torch.from_numpy(gguf.quants.dequantize(part.numpy(), of)).reshape(-1)
        flat[done : done + found.numel()] = found
        done += found.numel()
    return whole
