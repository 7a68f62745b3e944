# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of blockscale.compat.torchao share: inputs at the limits of rounding."""

import math
import warnings

import pytest
import torch
from torch import Tensor

from blockscale.compat.torchao import MappingType, ZeroPointDomain

with warnings.catch_warnings():  # torchao deprecates itself while it is imported
    warnings.simplefilter("ignore")
    theirs = pytest.importorskip("torchao.quantization.quant_primitives")


FLOATS = (torch.float32, torch.bfloat16, torch.float16)
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
UINTS = tuple(getattr(torch, f"uint{bits}") for bits in range(1, 9))
INTS = tuple(getattr(torch, f"int{bits}") for bits in range(1, 8))
STORED = (*UINTS, torch.int8, torch.int16, torch.int32, *FLOAT8)  # torchao.quantize_affine knows
MAPPINGS = SYMMETRIC, NO_CLIPPING, ASYMMETRIC = tuple(MappingType)
SHAPE = (16, 64)
BLOCKS = [(16, 64), (1, 64), (16, 1), (1, 32), (4, 16), (16, 8), (1, -1)]
INT, FLOAT, NONE = ZeroPointDomain
every_block = pytest.mark.parametrize("block", BLOCKS, ids=str)
every_dtype = pytest.mark.parametrize("dtype", FLOATS, ids=str)
every_mapping = pytest.mark.parametrize("mapping", MAPPINGS, ids=lambda m: m.name)


def awkward(dtype: torch.dtype) -> Tensor:
    """[16, 64]: rows where rounding, the floor of the scale or the range go to their limits."""
    info, k, normal = torch.finfo(dtype), torch.arange(-32.0, 32.0), torch.randn(16, 64)
    rows = [*normal]
    rows[0], rows[1], rows[2] = k * 0, k * -0.0, k * 0 + 1.7  # zeros, constant
    rows[3], rows[4], rows[5] = k * 0 - 3, normal[5].abs(), -normal[6].abs()  # one sign
    rows[6] = normal[6] * info.smallest_normal  # 1e-38 in float32: the floor, and subnormals
    rows[7] = (normal[7] / normal[7].abs().max()) * info.max * 0.49  # max - min is finite
    rows[8] = k / 2 + torch.where(k == 31, 112, 0)  # amax 127.5, scale 1: exact ties
    rows[9] = k / 2 + torch.where(k == 31, 224.0, torch.where(k == -32, 0, 0.5))  # range 255
    rows[10] = rows[8] * 0.1  # ties that the reciprocal misses
    rows[11] = normal[11] * info.tiny * info.eps  # subnormals
    rows[12] = torch.where(k == 0, info.max * 0.4, rows[6])  # huge beside tiny
    return torch.stack(rows).to(dtype)


def bits_equal(a: Tensor, b: Tensor) -> bool:
    """Equal dtype, shape and bits, so that -0 is not 0 and NaN is NaN."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    a, b = (t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b))
    return torch.equal(a, b)


def same(mine: object, expected: object) -> None:
    pairs = zip(mine, expected, strict=True) if isinstance(mine, tuple) else [(mine, expected)]
    for a, b in pairs:
        assert bits_equal(a, b), (a, b)


def their(mapping: MappingType) -> object:
    return theirs.MappingType[mapping.name]


def overflows(target: torch.dtype, *dtypes: torch.dtype) -> bool:
    """Whether torchao stops because float16 cannot hold the limits of int32."""
    return target == torch.int32 and set(dtypes) == {torch.float16}


def ties(scale: Tensor, block: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """[16, 64]: multiples of half a step, with its float neighbours."""
    sizes = [n if size == -1 else size for n, size in zip(SHAPE, block, strict=True)]
    for dim, size in enumerate(sizes):
        scale = scale.repeat_interleave(size, dim)
    x = (scale.float() * torch.randint(-260, 260, SHAPE) / 2).to(dtype)
    up, down = (torch.full_like(x, end) for end in (math.inf, -math.inf))
    choice = torch.arange(x.numel()).reshape(SHAPE) % 3
    x = torch.where(choice == 1, x.nextafter(up), x)
    return torch.where(choice == 2, x.nextafter(down), x)
