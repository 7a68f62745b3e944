# SPDX-License-Identifier: BSD-3-Clause
"""The bytes of each of GGUF's blocks taken apart into parts of a format, and put together.

Functions work on uint8 [..., bytes] of many blocks at once, and each has its inverse beside it."""

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


def split_runs(data: Tensor, width: int, run: int = 0) -> Tensor:
    """Bytes [..., k] -> their fields of `width` bits [..., k * 8 / width].

    In each run of so many bytes (0: all are one) the lowest fields of all bytes come first, then
    the next: what ggml calls halves and quarters.
    """
    run = run or data.shape[-1]
    parts = data.unflatten(-1, (-1, 1, run))
    shifts = torch.arange(0, 8, width, dtype=torch.uint8).unsqueeze(-1)
    return ((parts >> shifts) & ((1 << width) - 1)).flatten(-3)


def join_runs(fields: Tensor, width: int, run: int = 0) -> Tensor:
    """The inverse of `split_runs`; higher bits of the fields are left out."""
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


def join_stream(fields: Tensor, width: int) -> Tensor:
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


def join(*pieces: Tensor) -> Tensor:
    """Pieces [n, ...] of blocks, bytes or numbers -> the blocks' bytes."""
    return torch.cat([piece if piece.dtype == torch.uint8 else raw(piece) for piece in pieces], -1)


# Blocks of 256 whose scales are codes themselves: bytes -> parts of a format, and back.


def _q2_k(b: Tensor) -> Parts:
    scales = b[:, :16]
    return {
        "codes": split_runs(b[:, 16:80], 2, 32), "scale": scales & 15, "outer": half(b, 80),
        "offset": scales >> 4, "offset_outer": negated(half(b, 82)),
    }  # fmt: skip


def _to_q2_k(p: Parts) -> Tensor:
    scales = p["scale"] | p["offset"] << 4
    return join(scales, join_runs(p["codes"], 2, 32), p["outer"], negated(p["offset_outer"]))


def _q3_k(b: Tensor) -> Parts:
    codes = split_runs(b[:, 32:96], 2, 32) | split_runs(b[:, :32], 1) << 2
    scales = split_runs(b[:, 96:104], 4) | split_runs(b[:, 104:108], 2) << 4
    return {"codes": signed(codes, 4), "scale": (scales - 32) & 63, "outer": half(b, 108)}


def _to_q3_k(p: Parts) -> Tensor:
    codes, scales = unsigned(p["codes"], 4), (p["scale"] + 32) & 63
    low, high = join_runs(codes, 2, 32), join_runs(codes >> 2, 1)
    return join(high, low, join_runs(scales, 4), join_runs(scales >> 4, 2), p["outer"])


def _four_or_five(b: Tensor, codes: Tensor) -> Parts:
    scales, minimums = six_bits(b[:, 4:16])
    return {
        "codes": codes, "scale": scales, "outer": half(b, 0), "offset": minimums,
        "offset_outer": negated(half(b, 2)),
    }  # fmt: skip


def _beside_four_or_five(p: Parts) -> Tensor:
    return join(p["outer"], negated(p["offset_outer"]), from_six_bits(p["scale"], p["offset"]))


def _q4_k(b: Tensor) -> Parts:
    return _four_or_five(b, split_runs(b[:, 16:], 4, 32))


def _to_q4_k(p: Parts) -> Tensor:
    return join(_beside_four_or_five(p), join_runs(p["codes"], 4, 32))


def _q5_k(b: Tensor) -> Parts:
    return _four_or_five(b, split_runs(b[:, 48:], 4, 32) | split_runs(b[:, 16:48], 1) << 4)


def _to_q5_k(p: Parts) -> Tensor:
    high = join_runs(p["codes"] >> 4, 1)
    return join(_beside_four_or_five(p), high, join_runs(p["codes"], 4, 32))


def _q6_k(b: Tensor) -> Parts:
    codes = split_runs(b[:, :128], 4, 64) | split_runs(b[:, 128:192], 2, 32) << 4
    return {"codes": signed(codes, 32), "scale": b[:, 192:208], "outer": half(b, 208)}


def _to_q6_k(p: Parts) -> Tensor:
    codes = unsigned(p["codes"], 32)
    low, high = join_runs(codes, 4, 64), join_runs(codes >> 4, 2, 32)
    return join(low, high, p["scale"], p["outer"])


def _iq4_xs(b: Tensor) -> Parts:
    scales = stream(b[:, 4:8], 4) | stream(b[:, 2:4], 2) << 4
    return {
        "codes": split_runs(b[:, 8:], 4, 16), "scale": (scales - 32) & 63, "outer": half(b, 0),
    }  # fmt: skip


def _to_iq4_xs(p: Parts) -> Tensor:
    scales = (p["scale"] + 32) & 63
    high, low = join_stream(scales >> 4, 2), join_stream(scales, 4)
    return join(p["outer"], high, low, join_runs(p["codes"], 4, 16))


_SIX = "(uint6:group8:fp16):offset(uint6:group8:fp16)"  # scales and minimums of Q4_K and Q5_K
K_TYPES = {
    "Q2_K": BlockType(
        10,
        256,
        84,
        "uint2:group16:(uint4:group16:fp16):offset(uint4:group16:fp16)",
        _q2_k,
        _to_q2_k,
    ),
    "Q3_K": BlockType(11, 256, 110, "int3:group16:(int6:group16:fp16)", _q3_k, _to_q3_k),
    "Q4_K": BlockType(12, 256, 144, f"uint4:group32:{_SIX}", _q4_k, _to_q4_k),
    "Q5_K": BlockType(13, 256, 176, f"uint5:group32:{_SIX}", _q5_k, _to_q5_k),
    "Q6_K": BlockType(14, 256, 210, "int6:group16:(int8:group16:fp16)", _q6_k, _to_q6_k),
    "IQ4_XS": BlockType(23, 256, 136, "iq4_nl:group32:(int6:group8:fp16)", _iq4_xs, _to_iq4_xs),
}


# Blocks with scales that are numbers: bytes -> parts of a format, and back.


def _q8_0(b: Tensor) -> Parts:
    return {"codes": b[:, 2:].view(torch.int8), "scale": half(b, 0)}


def _to_q8_0(p: Parts) -> Tensor:
    return join(p["scale"], p["codes"])


def _q4_0(b: Tensor) -> Parts:
    return {"codes": signed(split_runs(b[:, 2:], 4), 8), "scale": half(b, 0)}


def _to_q4_0(p: Parts) -> Tensor:
    return join(p["scale"], join_runs(unsigned(p["codes"], 8), 4))


def _q4_1(b: Tensor) -> Parts:
    return {"codes": split_runs(b[:, 4:], 4), "scale": half(b, 0), "offset": half(b, 2)}


def _to_q4_1(p: Parts) -> Tensor:
    return join(p["scale"], p["offset"], join_runs(p["codes"], 4))


def _q5_0(b: Tensor) -> Parts:
    codes = split_runs(b[:, 6:], 4) | stream(b[:, 2:6], 1) << 4
    return {"codes": signed(codes, 16), "scale": half(b, 0)}


def _to_q5_0(p: Parts) -> Tensor:
    codes = unsigned(p["codes"], 16)
    return join(p["scale"], join_stream(codes >> 4, 1), join_runs(codes, 4))


def _q5_1(b: Tensor) -> Parts:
    codes = split_runs(b[:, 8:], 4) | stream(b[:, 4:8], 1) << 4
    return {"codes": codes, "scale": half(b, 0), "offset": half(b, 2)}


def _to_q5_1(p: Parts) -> Tensor:
    codes = p["codes"]
    high = join_stream(codes >> 4, 1)
    return join(p["scale"], p["offset"], high, join_runs(codes, 4))


def _iq4_nl(b: Tensor) -> Parts:
    return {"codes": split_runs(b[:, 2:], 4), "scale": half(b, 0)}


def _to_iq4_nl(p: Parts) -> Tensor:
    return join(p["scale"], join_runs(p["codes"], 4))


def _tq1_0(b: Tensor) -> Parts:
    codes = [digits(b[:, :32], 5), digits(b[:, 32:48], 5), digits(b[:, 48:52], 4)]
    return {"codes": signed(torch.cat(codes, -1), 1), "scale": half(b, 52)}


def _to_tq1_0(p: Parts) -> Tensor:
    first, second, third = unsigned(p["codes"], 1).split([160, 80, 16], -1)
    packed = from_digits(first, 5), from_digits(second, 5), from_digits(third, 4)
    return join(*packed, p["scale"])


def _tq2_0(b: Tensor) -> Parts:
    return {"codes": signed(split_runs(b[:, :64], 2, 32), 1), "scale": half(b, 64)}


def _to_tq2_0(p: Parts) -> Tensor:
    return join(join_runs(unsigned(p["codes"], 1), 2, 32), p["scale"])


def _mxfp4(b: Tensor) -> Parts:
    return {"codes": split_runs(b[:, 1:], 4), "scale": b[:, :1]}


def _to_mxfp4(p: Parts) -> Tensor:
    return join(p["scale"], join_runs(p["codes"], 4))


def _nvfp4(b: Tensor) -> Parts:
    return {"codes": split_runs(b[:, 4:], 4, 8), "scale": b[:, :4]}


def _to_nvfp4(p: Parts) -> Tensor:
    return join(p["scale"], join_runs(p["codes"], 4, 8))


def _q1_0(b: Tensor) -> Parts:
    return {"codes": signed(stream(b[:, 2:], 1) * 2, 1), "scale": half(b, 0)}


def _to_q1_0(p: Parts) -> Tensor:
    return join(p["scale"], join_stream(unsigned(p["codes"], 1) >> 1, 1))


def _q2_0(b: Tensor) -> Parts:
    scale = half(b, 0)
    one = torch.ones(scale.shape, dtype=torch.int32)
    return {"codes": stream(b[:, 2:], 2), "scale": scale, "zero_point": one}


def _to_q2_0(p: Parts) -> Tensor:
    return join(p["scale"], join_stream(p["codes"], 2))


SIMPLE_TYPES = {
    "Q4_0": BlockType(2, 32, 18, "int4:group32:fp16:full", _q4_0, _to_q4_0),
    "Q4_1": BlockType(3, 32, 20, "uint4:group32:fp16:offset", _q4_1, _to_q4_1),
    "Q5_0": BlockType(6, 32, 22, "int5:group32:fp16:full", _q5_0, _to_q5_0),
    "Q5_1": BlockType(7, 32, 24, "uint5:group32:fp16:offset", _q5_1, _to_q5_1),
    "Q8_0": BlockType(8, 32, 34, "int8:group32:fp16:full", _q8_0, _to_q8_0),
    "IQ4_NL": BlockType(20, 32, 18, "iq4_nl:group32:fp16", _iq4_nl, _to_iq4_nl),
    "TQ1_0": BlockType(34, 256, 54, "ternary:group256:fp16", _tq1_0, _to_tq1_0),
    "TQ2_0": BlockType(35, 256, 66, "ternary:group256:fp16", _tq2_0, _to_tq2_0),
    "MXFP4": BlockType(39, 32, 17, "e2m1:group32:e8m0/given", _mxfp4, _to_mxfp4),
    "NVFP4": BlockType(40, 64, 36, "e2m1:group16:e4m3", _nvfp4, _to_nvfp4),
    "Q1_0": BlockType(41, 128, 18, "binary:group128:fp16", _q1_0, _to_q1_0),
    "Q2_0": BlockType(42, 64, 18, "uint2:group64:fp16:asym", _q2_0, _to_q2_0),
}
