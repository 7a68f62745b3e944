"""Functions that are given a scale, under torch.compile: no break, any number of rows."""

from typing import Any

import pytest
import torch
from torch import Tensor

import blockscale as bs

FORMATS = (
    "int8:group32:fp32",
    "mxfp4",
    "uint8:token:fp32:asym",
    "nvfp4",
    "int8:tensor:pow2/nearest",
)


def quantize(x: Tensor, fmt: str, scale: Any, zero_point: Tensor | None) -> Tensor:
    return bs.quantize(x, fmt, scale, zero_point).dequantize()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("function", [quantize, bs.fake_quantize])
@pytest.mark.parametrize("fmt", FORMATS)
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
        compiled(x, scale[:, :1])
    with pytest.raises(ValueError, match=r"uint8 of shape \(4, 2\)"):
        compiled(x, scale.float())
