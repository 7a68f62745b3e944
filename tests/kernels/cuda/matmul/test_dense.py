# SPDX-License-Identifier: BSD-3-Clause
"""Weights in bfloat16 memory: settings, and products within the tolerance."""

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from blockscale.core.operand import Operand
from blockscale.core.parse import parse
from blockscale.kernels.cuda.matmul.dense import DenseSettings, dense, exact
from blockscale.kernels.cuda.matmul.finish import Ends
from blockscale.kernels.cuda.matmul.operands import Weight
from blockscale.kernels.cuda.matmul.reading import reading
from blockscale.ops import primitives as P
from tests.support.cuda_equal import DEVICE, DTYPES
from tests.support.cuda_matmul_exact import excess, stored


@pytest.mark.some(12)
@pytest.mark.parametrize(
    "name",
    ["mxfp4", "nvfp4", "int8:channel0:fp32", "uint4:token:fp32:asym", "e3m2:group16:e8m0/floor",
     "int8:tile4x16:e8m0/floor"],
)  # fmt: skip
def test_products(name: str) -> None:
    """The weight at once, and some rows at a time, the last ones fewer."""
    k = 96
    each = (DenseSettings(), DenseSettings(7), DenseSettings(18))
    fmt, n, m = str(parse(name)), 18, 9
    weight = Weight(*stored(torch.randn(n, k, device=DEVICE), fmt))
    r, bias = reading(fmt, k), torch.randn(n, device=DEVICE)
    for i, settings in enumerate(each):
        dtype = DTYPES[(i + len(fmt)) % 3]
        x, row = torch.randn(m, k, device=DEVICE).to(dtype), torch.rand(m, device=DEVICE) + 0.5
        y = dense(x, weight, fmt, r, Ends(row, bias), settings, torch.float32)
        assert excess(y, x.float() * row[:, None], weight, fmt, bias=bias) <= 1, (dtype, settings)


@pytest.mark.parametrize(
    "name", ["mxfp4", "nvfp4", "int8:channel0:fp32", "uint4:group64:fp32:asym"]
)
def test_what_is_left_of_scales_is_no_bfloat16(name: str) -> None:
    """Without the factors of sums the weight is bfloat16 exactly; with them it is the weight."""
    fmt, k = str(parse(name)), 128
    weight, r = Weight(*stored(torch.randn(6, k, device=DEVICE), fmt)), reading(fmt, k)
    if weight.outer is not None:
        weight = weight._replace(outer=torch.full_like(weight.outer, 0.5))
    whole = exact(weight, fmt, r, k)
    assert whole.dtype is torch.bfloat16
    assert torch.equal(exact(weight, fmt, r, k, 2, 5), whole[2:5])
    expected = P.dequantize.reference(Operand(*weight, fmt, k), torch.float32).double()
    factors = 1.0
    if weight.outer is not None:
        factors = weight.outer.double()
    elif "fp32" in fmt:
        factors = weight.scale.double().repeat_interleave(k // weight.scale.shape[1], 1)
    products = whole.double() * factors
    assert torch.equal(products.float(), expected.float())


def test_a_table_has_seven_numbers_or_none() -> None:
    assert DenseSettings(2048).entry() == (0, 2048, 0, 0, 0, 1, 1)
    assert DenseSettings.read(DenseSettings(2048).entry()) == DenseSettings(2048)
    assert DenseSettings.read([]) == DenseSettings(0)
