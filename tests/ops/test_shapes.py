# SPDX-License-Identifier: BSD-3-Clause
"""The shapes that graphs are told are those of the results, for every rank and empty sizes."""

import pytest
import torch

from blockscale.core.operand import Operand, Quantizer
from blockscale.core.parse import parse
from blockscale.ops import primitives as P
from blockscale.ops import shapes

SHAPES = [(), (5,), (1,), (0,), (3, 7), (0, 7), (3, 0), (2, 3, 17)]
FORMATS = ["int8:tensor:fp32", "uint4:tensor:fp16:asym", "e2m1:tensor:e4m3", "int3:tensor:fp32"]


def like(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride())


@pytest.mark.some(4)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("fmt", FORMATS)
def test_results_have_them(fmt: str, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    codes, *parts = P.choose_quantize.reference(x, fmt, None)
    told = shapes.choose_quantize(x, fmt, None)
    assert len(told) == 1 + len(parts)
    assert all(like(a, b) for a, b in zip(told, [codes, *parts], strict=True))
    assert all(like(a, b) for a, b in zip(shapes.choose_qparams(x, fmt), parts, strict=True))
    qparams = P.from_list(parts, parse(fmt))
    by = Quantizer(qparams.scale, qparams.zero_point, qparams.outer, fmt)
    assert like(shapes.quantize(x, by), P.quantize.reference(x, by))
    stored = Operand(codes, *by[:4], shape[-1] if shape else 1)
    for dtype in (torch.float32, torch.bfloat16):
        values = P.dequantize.reference(stored, dtype)
        assert values.shape == x.shape
        assert like(shapes.dequantize(stored, dtype), values)


def test_strides_are_those_of_the_first_argument() -> None:
    x = torch.randn(4, 6).t()
    by = Quantizer(None, None, None, "int8:tensor:fp32")
    assert shapes.like_first(x, by).stride() == P.fake_quantize.reference(x, by).stride() == (1, 6)
