# SPDX-License-Identifier: BSD-3-Clause
"""gguf 0.19.0's own values of random bytes (tests/recorded/record_gguf.py): equal to ours.

Each type is taken apart by its layout into codes, scales and offsets of one of our formats.
"""

import pytest
import torch
from torch import Tensor

from blockscale.core.parse import parse
from blockscale.core.reference import QParams, dequantize
from tests.support.gguf_codes import RECORDED, byte_bits, half, halves, q4_0, q5_0, q8_0, signed


def bit_planes(blocks: Tensor, width: int) -> Tensor:
    """Bytes [n, k] -> their fields of `width` bits [n, k * 8 / width], lowest fields first."""
    mask = (1 << width) - 1
    return torch.cat([(blocks >> shift) & mask for shift in range(0, 8, width)], -1)


def runs(blocks: Tensor, size: int, width: int) -> Tensor:
    """The same in runs of `size` bytes."""
    return torch.cat([bit_planes(run, width) for run in blocks.split(size, -1)], -1)


def q4_1(b: Tensor) -> tuple[Tensor, QParams]:
    return halves(b[:, 4:]), QParams(half(b, 0), offset=half(b, 2))


def q5_1(b: Tensor) -> tuple[Tensor, QParams]:
    codes = halves(b[:, 8:]) + 16 * byte_bits(b[:, 4:8])
    return codes, QParams(half(b, 0), offset=half(b, 2))


def iq4_nl(b: Tensor) -> tuple[Tensor, QParams]:
    return halves(b[:, 2:]), QParams(half(b, 0))


def q2_k(b: Tensor) -> tuple[Tensor, QParams]:
    scales, codes = b[:, :16], runs(b[:, 16:80], 32, 2)
    return codes, QParams(scales & 15, half(b, 80), offset=scales >> 4, offset_outer=-half(b, 82))


def q3_k(b: Tensor) -> tuple[Tensor, QParams]:
    codes = runs(b[:, 32:96], 32, 2).to(torch.int8) + 4 * bit_planes(b[:, :32], 1).to(torch.int8)
    low, high = halves(b[:, 96:104]), bit_planes(b[:, 104:108], 2)
    scale = (low + 16 * high).to(torch.int16) - 32
    return codes - 4, QParams((scale & 63).to(torch.uint8), half(b, 108))


def six_bits(b: Tensor) -> tuple[Tensor, Tensor]:
    """The scales and minimums of Q4_K and Q5_K, from their 12 bytes."""
    first, second, third = b.split(4, -1)
    scales = torch.cat([first & 63, (third & 15) | (first >> 6 << 4)], -1)
    return scales, torch.cat([second & 63, (third >> 4) | (second >> 6 << 4)], -1)


def q4_k(b: Tensor) -> tuple[Tensor, QParams]:
    scales, minimums = six_bits(b[:, 4:16])
    parts = QParams(scales, half(b, 0), offset=minimums, offset_outer=-half(b, 2))
    return runs(b[:, 16:], 32, 4), parts


def q5_k(b: Tensor) -> tuple[Tensor, QParams]:
    scales, minimums = six_bits(b[:, 4:16])
    parts = QParams(scales, half(b, 0), offset=minimums, offset_outer=-half(b, 2))
    return runs(b[:, 48:], 32, 4) + 16 * bit_planes(b[:, 16:48], 1), parts


def q6_k(b: Tensor) -> tuple[Tensor, QParams]:
    codes = runs(b[:, :128], 64, 4) + 16 * runs(b[:, 128:192], 32, 2)
    return signed(codes, 32), QParams(b[:, 192:208].contiguous(), half(b, 208))


TYPES = {
    "Q8_0": ("int8:group32:fp16:full", q8_0),
    "Q4_0": ("int4:group32:fp16:full", q4_0),
    "Q4_1": ("uint4:group32:fp16:offset", q4_1),
    "Q5_0": ("int5:group32:fp16:full", q5_0),
    "Q5_1": ("uint5:group32:fp16:offset", q5_1),
    "IQ4_NL": ("iq4_nl:group32:fp16", iq4_nl),
    "Q2_K": ("uint2:group16:(uint4:group16:fp16):offset(uint4:group16:fp16)", q2_k),
    "Q3_K": ("int3:group16:(int6:group16:fp16)", q3_k),
    "Q4_K": ("uint4:group32:(uint6:group8:fp16):offset(uint6:group8:fp16)", q4_k),
    "Q5_K": ("uint5:group32:(uint6:group8:fp16):offset(uint6:group8:fp16)", q5_k),
    "Q6_K": ("int6:group16:(int8:group16:fp16)", q6_k),
}


@pytest.mark.parametrize("name", TYPES)
def test_values_of_random_bytes(name: str) -> None:
    spelling, apart = TYPES[name]
    fmt, blocks = parse(spelling), RECORDED[f"{name}.bytes"]
    codes, qparams = apart(blocks)
    assert tuple(part for part in QParams._fields if getattr(qparams, part) is not None) == (
        fmt.parts
    )
    values = dequantize(codes, qparams, fmt, torch.float32)
    expected = RECORDED[f"{name}.values"]
    assert bool(expected.isfinite().all()) and expected.unique().numel() > 50
    assert int((values != expected).sum()) == 0


@pytest.mark.parametrize("name", ["Q4_K", "Q6_K", "Q4_1"])
def test_a_bit_elsewhere_is_seen(name: str) -> None:
    """Twin: one flipped bit of the bytes changes values."""
    spelling, apart = TYPES[name]
    blocks = RECORDED[f"{name}.bytes"].clone()
    blocks[4, 17] ^= 4
    codes, qparams = apart(blocks)
    values = dequantize(codes, qparams, parse(spelling), torch.float32)
    assert 0 < int((values != RECORDED[f"{name}.values"]).sum()) <= 64
