# SPDX-License-Identifier: BSD-3-Clause
"""The public functions with a given scale: every message, and no break under torch.compile."""

from typing import Any

import pytest
import torch
from torch import Tensor

import blockscale as bs
from tests.support.some import crossed

FORMATS = (
    "int8:group32:fp32",
    "mxfp4",
    "uint8:token:fp32:asym",
    "nvfp4",
    "int8:tensor:pow2/nearest",
)


def quantize(x: Tensor, fmt: str, scale: Any, zero_point: Tensor | None) -> Tensor:
    return bs.quantize(x, fmt, scale, zero_point).dequantize()


@pytest.mark.slow
@pytest.mark.some(3)
@pytest.mark.parametrize(
    ("fmt", "function", "dynamic"),
    crossed(3, FORMATS, [quantize, bs.fake_quantize], [False, True]),
)
def test_given_scales(fmt: str, function: Any, dynamic: bool) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x, scale, zero_point: function(x, fmt, scale, zero_point),
        fullgraph=True, dynamic=dynamic, backend="eager",
    )  # fmt: skip
    for rows in (16, 24):
        x = torch.randn(rows, 64)
        q = bs.quantize(x, fmt)
        expected = function(x, fmt, q.scale, q.zero_point)
        assert torch.equal(compiled(x, q.scale, q.zero_point), expected)


@pytest.mark.slow
def test_a_scale_that_does_not_fit() -> None:
    """The shapes are still looked at, with what was found and what was expected."""
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x, scale: bs.fake_quantize(x, "mxfp4", scale), backend="eager", dynamic=False
    )
    x = torch.randn(4, 64)
    scale = bs.quantize(x, "mxfp4").scale
    assert isinstance(scale, Tensor)
    with pytest.raises(ValueError, match=r"uint8 of shape \(4, 2\)"):
        compiled(x, scale[:3])
    with pytest.raises(ValueError, match=r"uint8 of shape \(4, 2\)"):
        compiled(x, scale.float())


ONE, GROUP = torch.ones(1, 1), "int8:group4:fp32"
INNER = bs.choose_qparams(torch.ones(2, 32), "nvfp4")[0]
ZERO = torch.zeros(1, 1, dtype=torch.int32)


@pytest.mark.parametrize(
    ("fmt", "scale", "zero", "words"),
    [
        (
            "int8",
            torch.ones(3),
            None,
            r"shape \(2, 32\) the stored scale must be float32 of shape \(1, 1\)",
        ),
        (GROUP, torch.ones(2, 9), None, r"of shape \(2, 8\), found float32 of shape \(2, 9\)"),
        ("int8", ONE.half(), None, r"must be float32 of shape \(1, 1\), found float16"),
        ("mxfp4", torch.ones(2, 1), None, "must be uint8 of shape"),
        ("int8", 0.5, None, "its scale must be a Tensor, found a float"),
        ("int8", INNER, None, r"its scale must be a Tensor, found QTensor\('e4m3:tensor:fp32'"),
        (
            "nvfp4",
            torch.ones(2, 2),
            None,
            "its scale must be a QTensor of format e4m3:tensor:fp32, found",
        ),
        (
            "e2m1:group16:e5m2",
            INNER,
            None,
            "its scale must be a QTensor of format e5m2:tensor:fp32, found",
        ),
        (
            "nvfp4",
            bs.choose_qparams(torch.ones(2, 48), "nvfp4")[0],
            None,
            r"of shape \(2, 2\), found",
        ),
        ("uint8", ONE, None, "needs a zero_point"),
        ("int8", ONE, ZERO, "has no zero_point"),
        (
            "uint8",
            ONE,
            ZERO.float(),
            r"the zero_point must be int32 of shape \(1, 1\), found float32",
        ),
        ("uint8", ONE, ZERO.expand(2, 1), r"int32 of shape \(1, 1\), found int32 of shape"),
        ("uint8", ONE, 128, "the zero_point must be int32 of shape"),
        ("uint8", None, ZERO, "a zero_point was passed without its scale"),
        (
            "int8:channel2:fp32",
            None,
            None,
            "block 'channel2' needs dimension 2, but the tensor has 2",
        ),
        (None, None, None, "expected a Format or its spelling, found None"),
    ],
)
def test_messages(fmt, scale, zero, words: str) -> None:
    for function in (bs.quantize, bs.fake_quantize):
        with pytest.raises((ValueError, TypeError), match=words):
            function(torch.ones(2, 32), fmt, scale, zero)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.int32, torch.complex64, torch.bool, torch.float8_e4m3fn]
)
def test_dtypes_that_float32_cannot_hold(dtype: torch.dtype) -> None:
    x = torch.zeros(2, 32).to(dtype)
    words = f"expected float32, bfloat16 or float16, found {str(dtype)[6:]}: convert it first"
    for function in (bs.quantize, bs.fake_quantize, bs.choose_qparams):
        for scale in ((), (ONE,))[: 1 + (function is not bs.choose_qparams)]:
            with pytest.raises(TypeError, match=words):
                function(x, "int8", *scale)
