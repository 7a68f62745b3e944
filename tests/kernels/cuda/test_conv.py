# SPDX-License-Identifier: BSD-3-Clause
"""Convolutions: the same values as the reference's, in the interpreter too."""

import pytest
import torch

from blockscale.core.operand import Operand, Quantizer
from blockscale.core.pack import to_stored
from blockscale.kernels.registry import use
from blockscale.ops.conv import conv
from tests.support.cuda_equal import DEVICE
from tests.support.cuda_matmul_exact import NOTHING, stored

FORMATS = (
    *("int8:channel0:fp32", "int4:group32:fp32", "uint4:group16:fp16:asym", "e2m1:group16:e4m3"),
    *("e4m3:group32:e8m0/floor", "int8:tensor:fp32", "int8:channel1:fp32", "log4:token:fp32"),
    *("binary:channel0:fp32", "e3m2:group32:e8m0/tosa", "int8:block2x*:fp32"),
)


@pytest.fixture(autouse=True)
def _here() -> None:
    from blockscale.kernels import cuda

    if reason := cuda.available():
        pytest.skip(reason)
    torch.manual_seed(0)


@pytest.mark.some(4)
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("given", ["", "int8:token:fp32", "e4m3:group8:e8m0/floor"])
def test_convolutions(fmt: str, given: str) -> None:
    float_weight = torch.randn(6, 8, 3, 3, device=DEVICE)
    weight = stored(to_stored(float_weight, "channels_last"), fmt)
    x = torch.randn(2, 16, 7, 6, device=DEVICE)
    bias = torch.randn(6, device=DEVICE)
    args = (
        x, Operand(*weight, fmt, 72), bias, [6, 8, 3, 3], [2, 1], [1, 0], [1, 2], 2,
        Quantizer(*NOTHING, given),
    )  # fmt: skip
    with use("cuda"):
        found = conv(*args)
    with use("reference"):
        values = conv.reference(*args)
    dense = x.abs().amax() * float_weight.abs().sum() / 6
    assert (found - values).abs().max() <= 64 * 2.0**-24 * dense


@pytest.mark.parametrize("fmt", FORMATS[:4])
@pytest.mark.parametrize("given", ["", "int8:token:fp32"])
def test_three_dimensions(fmt: str, given: str) -> None:
    float_weight = torch.randn(6, 4, 2, 3, 2, device=DEVICE)
    weight = stored(to_stored(float_weight, "channels_last"), fmt)
    x = torch.randn(2, 8, 4, 5, 3, device=DEVICE)
    args = (
        x, Operand(*weight, fmt, 48), None, [6, 4, 2, 3, 2], [2, 1, 1], [1, 0, 1], [1, 2, 1], 2,
        Quantizer(*NOTHING, given),
    )  # fmt: skip
    with use("cuda"):
        found = conv(*args)
    with use("reference"):
        values = conv.reference(*args)
    dense = x.abs().amax() * float_weight.abs().sum() / 6
    assert (found - values).abs().max() <= 64 * 2.0**-24 * dense
