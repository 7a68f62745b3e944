# SPDX-License-Identifier: BSD-3-Clause
"""Blocks of 256 whose scales are codes themselves: bytes -> parts of a format, and back."""

from torch import Tensor

from blockscale.export.checkpoints.gguf.fields import (
    BlockType,
    Parts,
    from_six_bits,
    gathered,
    half,
    joined,
    negated,
    signed,
    six_bits,
    spread,
    stream,
    streamed,
    unsigned,
)


def _q2_k(b: Tensor) -> Parts:
    scales = b[:, :16]
    return {
        "codes": spread(b[:, 16:80], 2, 32), "scale": scales & 15, "outer": half(b, 80),
        "offset": scales >> 4, "offset_outer": negated(half(b, 82)),
    }  # fmt: skip


def _to_q2_k(p: Parts) -> Tensor:
    scales = p["scale"] | p["offset"] << 4
    return joined(scales, gathered(p["codes"], 2, 32), p["outer"], negated(p["offset_outer"]))


def _q3_k(b: Tensor) -> Parts:
    codes = spread(b[:, 32:96], 2, 32) | spread(b[:, :32], 1) << 2
    scales = spread(b[:, 96:104], 4) | spread(b[:, 104:108], 2) << 4
    return {"codes": signed(codes, 4), "scale": (scales - 32) & 63, "outer": half(b, 108)}


def _to_q3_k(p: Parts) -> Tensor:
    codes, scales = unsigned(p["codes"], 4), (p["scale"] + 32) & 63
    low, high = gathered(codes, 2, 32), gathered(codes >> 2, 1)
    return joined(high, low, gathered(scales, 4), gathered(scales >> 4, 2), p["outer"])


def _four_or_five(b: Tensor, codes: Tensor) -> Parts:
    scales, minimums = six_bits(b[:, 4:16])
    return {
        "codes": codes, "scale": scales, "outer": half(b, 0), "offset": minimums,
        "offset_outer": negated(half(b, 2)),
    }  # fmt: skip


def _beside_four_or_five(p: Parts) -> Tensor:
    return joined(p["outer"], negated(p["offset_outer"]), from_six_bits(p["scale"], p["offset"]))


def _q4_k(b: Tensor) -> Parts:
    return _four_or_five(b, spread(b[:, 16:], 4, 32))


def _to_q4_k(p: Parts) -> Tensor:
    return joined(_beside_four_or_five(p), gathered(p["codes"], 4, 32))


def _q5_k(b: Tensor) -> Parts:
    return _four_or_five(b, spread(b[:, 48:], 4, 32) | spread(b[:, 16:48], 1) << 4)


def _to_q5_k(p: Parts) -> Tensor:
    high = gathered(p["codes"] >> 4, 1)
    return joined(_beside_four_or_five(p), high, gathered(p["codes"], 4, 32))


def _q6_k(b: Tensor) -> Parts:
    codes = spread(b[:, :128], 4, 64) | spread(b[:, 128:192], 2, 32) << 4
    return {"codes": signed(codes, 32), "scale": b[:, 192:208], "outer": half(b, 208)}


def _to_q6_k(p: Parts) -> Tensor:
    codes = unsigned(p["codes"], 32)
    low, high = gathered(codes, 4, 64), gathered(codes >> 4, 2, 32)
    return joined(low, high, p["scale"], p["outer"])


def _iq4_xs(b: Tensor) -> Parts:
    scales = stream(b[:, 4:8], 4) | stream(b[:, 2:4], 2) << 4
    return {
        "codes": spread(b[:, 8:], 4, 16), "scale": (scales - 32) & 63, "outer": half(b, 0),
    }  # fmt: skip


def _to_iq4_xs(p: Parts) -> Tensor:
    scales = (p["scale"] + 32) & 63
    high, low = streamed(scales >> 4, 2), streamed(scales, 4)
    return joined(p["outer"], high, low, gathered(p["codes"], 4, 16))


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
