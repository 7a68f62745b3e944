# SPDX-License-Identifier: BSD-3-Clause
"""fused_linear in Triton's interpreter: within the bound of the reference, through `linear`."""

import pytest
import torch

import blockscale as bs
from blockscale.core.operand import UNQUANTIZED, Quantizer, Value
from blockscale.kernels import registry
from blockscale.kernels.cuda import fused_linear as module
from blockscale.ops import primitives as P
from blockscale.ops.fused import FUSED

LINEAR = FUSED["linear"].op
FORMATS = [
    ("", "int8_channel", ""),
    ("", "mxfp4", ""),
    ("int8:tensor:fp32", "int8_channel", ""),
    ("uint8:tensor:fp32:asym", "int8_channel", "int8:tensor:fp32"),
    ("int8:token:fp32", "int4:group32:fp32", ""),
    ("e4m3:group32:e8m0/floor", "e4m3:group32:e8m0/floor", "int8:token:fp32"),
    ("int8:tensor:fp32:toward_zero", "int8_channel", ""),
]


def coded(x, fmt):
    if not fmt:
        return Value(x)
    codes, *parts = P.choose_quantize(x, str(bs.parse(fmt)), None)
    named = P.from_list(parts, bs.parse(fmt))
    own = (codes, named.scale, named.zero_point, named.outer, str(bs.parse(fmt)), x.shape[-1])
    return Value(*own)


def case(x_fmt, w_fmt, y_fmt, rows=(2, 5)):
    random = torch.Generator().manual_seed(1)
    x = torch.randn(*rows, 64, generator=random)
    w = torch.randn(24, 64, generator=random)
    bias = torch.randn(24, generator=random)
    y = UNQUANTIZED
    if y_fmt and bs.parse(y_fmt).block.static:
        y = Quantizer(torch.full((1,) * x.ndim, 0.25), None, None, str(bs.parse(y_fmt)))
    elif y_fmt:
        y = Quantizer(None, None, None, str(bs.parse(y_fmt)))
    with bs.use("reference"):
        return coded(x, x_fmt), coded(w, w_fmt), bias, y


@pytest.mark.some(4)
@pytest.mark.parametrize(("x_fmt", "w_fmt", "y_fmt"), FORMATS)
@pytest.mark.parametrize("activation", ["", "gelu"])
def test_near_the_reference(x_fmt, w_fmt, y_fmt, activation):
    arguments = (*case(x_fmt, w_fmt, y_fmt), activation, torch.float32)
    x, weight, bias, y, activation, dtype = arguments
    with bs.use("reference"):
        expected = LINEAR(x, weight, bias, activation, dtype, y)
    with bs.use("cuda"):
        found = LINEAR(x, weight, bias, activation, dtype, y)
    assert [part.shape for part in found] == [part.shape for part in expected]
    if not y.fmt:
        torch.testing.assert_close(found[0], expected[0], rtol=1e-5, atol=2e-5)
    else:  # codes of floats that may differ in their last bits
        apart = (found[0].to(torch.int32) - expected[0].to(torch.int32)).abs()
        assert apart.max() <= 1
        assert (apart > 0).float().mean() < 0.02


@pytest.mark.parametrize("fmt", ["int8:tensor:fp32", "uint8:tensor:fp32:asym", "int4:tensor:fp16"])
def test_codes_come_back(fmt):
    """Those that `linear` makes of the values are those that x came with."""
    x, _, _, _ = case(fmt, "int8_channel", "")
    values, by = module._floats(x, torch.float32)
    assert by.fmt == x.fmt
    with bs.use("reference"):
        assert torch.equal(P.quantize(values, by), x.data)


@pytest.mark.parametrize("fmt", ["int8:tensor:fp32:toward_zero", "mxfp8", "int8:token:fp32"])
def test_codes_that_may_not_come_back_stay_floats(fmt):
    x, _, _, _ = case(fmt, "int8_channel", "")
    assert module._floats(x, torch.float32)[1] is UNQUANTIZED


def test_one_scale_of_another_rank():
    x, weight, bias, _ = case("int8:tensor:fp32", "int8_channel", "")
    flat = x._replace(scale=x.scale.reshape(()))
    with bs.use("cuda"):
        found = LINEAR(flat, weight, bias, "", torch.float32, UNQUANTIZED)
        assert torch.equal(found[0], LINEAR(x, weight, bias, "", torch.float32, UNQUANTIZED)[0])


def test_what_no_kernel_takes_is_left_to_others():
    x, weight, bias, y = case("", "int8_channel", "")
    assert registry.supporting("fused_linear", "cuda", ("", weight.fmt, ""), (
        x, weight, bias, "softsign", torch.float32, y)) is None  # fmt: skip
    assert registry.supporting("fused_linear", "cuda", ("", "", ""), (
        x, Value(torch.zeros(2, 64)), bias, "", torch.float32, y)) is None  # fmt: skip
