# SPDX-License-Identifier: BSD-3-Clause
"""Blocks with scales that are numbers: bytes -> parts of a format, and back."""

import torch
from torch import Tensor

from blockscale.export.checkpoints.gguf.fields import (
    BlockType,
    Parts,
    digits,
    from_digits,
    gathered,
    half,
    joined,
    signed,
    spread,
    stream,
    streamed,
    unsigned,
)


def _q8_0(b: Tensor) -> Parts:
    return {"codes": b[:, 2:].view(torch.int8), "scale": half(b, 0)}


def _to_q8_0(p: Parts) -> Tensor:
    return joined(p["scale"], p["codes"])


def _q4_0(b: Tensor) -> Parts:
    return {"codes": signed(spread(b[:, 2:], 4), 8), "scale": half(b, 0)}


def _to_q4_0(p: Parts) -> Tensor:
    return joined(p["scale"], gathered(unsigned(p["codes"], 8), 4))


def _q4_1(b: Tensor) -> Parts:
    return {"codes": spread(b[:, 4:], 4), "scale": half(b, 0), "offset": half(b, 2)}


def _to_q4_1(p: Parts) -> Tensor:
    return joined(p["scale"], p["offset"], gathered(p["codes"], 4))


def _q5_0(b: Tensor) -> Parts:
    codes = spread(b[:, 6:], 4) | stream(b[:, 2:6], 1) << 4
    return {"codes": signed(codes, 16), "scale": half(b, 0)}


def _to_q5_0(p: Parts) -> Tensor:
    codes = unsigned(p["codes"], 16)
    return joined(p["scale"], streamed(codes >> 4, 1), gathered(codes, 4))


def _q5_1(b: Tensor) -> Parts:
    codes = spread(b[:, 8:], 4) | stream(b[:, 4:8], 1) << 4
    return {"codes": codes, "scale": half(b, 0), "offset": half(b, 2)}


def _to_q5_1(p: Parts) -> Tensor:
    codes = p["codes"]
    high = streamed(codes >> 4, 1)
    return joined(p["scale"], p["offset"], high, gathered(codes, 4))


def _iq4_nl(b: Tensor) -> Parts:
    return {"codes": spread(b[:, 2:], 4), "scale": half(b, 0)}


def _to_iq4_nl(p: Parts) -> Tensor:
    return joined(p["scale"], gathered(p["codes"], 4))


def _tq1_0(b: Tensor) -> Parts:
    codes = [digits(b[:, :32], 5), digits(b[:, 32:48], 5), digits(b[:, 48:52], 4)]
    return {"codes": signed(torch.cat(codes, -1), 1), "scale": half(b, 52)}


def _to_tq1_0(p: Parts) -> Tensor:
    first, second, third = unsigned(p["codes"], 1).split([160, 80, 16], -1)
    packed = from_digits(first, 5), from_digits(second, 5), from_digits(third, 4)
    return joined(*packed, p["scale"])


def _tq2_0(b: Tensor) -> Parts:
    return {"codes": signed(spread(b[:, :64], 2, 32), 1), "scale": half(b, 64)}


def _to_tq2_0(p: Parts) -> Tensor:
    return joined(gathered(unsigned(p["codes"], 1), 2, 32), p["scale"])


def _mxfp4(b: Tensor) -> Parts:
    return {"codes": spread(b[:, 1:], 4), "scale": b[:, :1]}


def _to_mxfp4(p: Parts) -> Tensor:
    return joined(p["scale"], gathered(p["codes"], 4))


def _nvfp4(b: Tensor) -> Parts:
    return {"codes": spread(b[:, 4:], 4, 8), "scale": b[:, :4]}


def _to_nvfp4(p: Parts) -> Tensor:
    return joined(p["scale"], gathered(p["codes"], 4, 8))


def _q1_0(b: Tensor) -> Parts:
    return {"codes": signed(stream(b[:, 2:], 1) * 2, 1), "scale": half(b, 0)}


def _to_q1_0(p: Parts) -> Tensor:
    return joined(p["scale"], streamed(unsigned(p["codes"], 1) >> 1, 1))


def _q2_0(b: Tensor) -> Parts:
    scale = half(b, 0)
    one = torch.ones(scale.shape, dtype=torch.int32)
    return {"codes": stream(b[:, 2:], 2), "scale": scale, "zero_point": one}


def _to_q2_0(p: Parts) -> Tensor:
    return joined(p["scale"], streamed(p["codes"], 2))


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
