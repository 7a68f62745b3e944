# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of several files share with
tests/core/test_against_gguf.py: `halves`, `q4_0`, `q5_0`, ….
"""

import pathlib

import torch
from safetensors.torch import load_file
from torch import Tensor

from blockscale.core.reference import QParams

RECORDED = load_file(pathlib.Path(__file__).parents[1] / "recorded" / "gguf.safetensors")


def half(blocks: Tensor, place: int) -> Tensor:
    """The fp16 number at a byte of each block [n] -> [n, 1]."""
    return blocks[:, place : place + 2].contiguous().view(torch.float16)


def halves(blocks: Tensor) -> Tensor:
    """Bytes [n, k] of the low and the high half of a run -> codes [n, 2 k]."""
    return torch.cat([blocks & 15, blocks >> 4], -1)


def signed(codes: Tensor, middle: int) -> Tensor:
    return (codes.to(torch.int16) - middle).to(torch.int8)


def byte_bits(blocks: Tensor) -> Tensor:
    """Bytes [n, k] -> bits [n, 8 k], in the order of a little-endian stream."""
    return ((blocks[..., None] >> torch.arange(8)) & 1).flatten(-2)


def q8_0(b: Tensor) -> tuple[Tensor, QParams]:
    return b[:, 2:].view(torch.int8), QParams(half(b, 0))


def q4_0(b: Tensor) -> tuple[Tensor, QParams]:
    return signed(halves(b[:, 2:]), 8), QParams(half(b, 0))


def q5_0(b: Tensor) -> tuple[Tensor, QParams]:
    codes = halves(b[:, 6:]) + 16 * byte_bits(b[:, 2:6])
    return signed(codes, 16), QParams(half(b, 0))
