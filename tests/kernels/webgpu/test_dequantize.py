# SPDX-License-Identifier: BSD-3-Clause
"""Values of codes in every output dtype, and of scales that nobody would choose."""

import pytest
import torch

import blockscale as bs
from blockscale.core.operand import Quantizer, operand
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.kernels.webgpu import webgpu
from blockscale.kernels.webgpu.torch_device.tensor import WebGPUTensor
from blockscale.ops import primitives as P
from tests.support.same import same

SCALES = torch.tensor([0.0, -0.0, 1e-45, -2.5, 3e38, torch.inf, torch.nan, 1.0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_any_scale_and_dtype(dtype: torch.dtype) -> None:
    codes = torch.arange(-128, 128, dtype=torch.int8).repeat(8, 1)
    by = operand(codes, QParams(SCALES.reshape(8, 1)), "int8:token:fp32", 256)
    with bs.use("reference"):
        expected = P.dequantize(by, dtype)
    with bs.use("webgpu"):
        assert same(P.dequantize(by, dtype), expected)


@pytest.mark.parametrize("fmt", ["int4:group32:fp32", "e3m2:group32:e8m0", "int12:group8:fp32"])
def test_rows_that_end_within_a_byte(fmt: str) -> None:
    for columns in (33, 64):
        q = bs.quantize(torch.randn(5, columns), fmt)
        by = operand(q.packed, q.qparams, fmt, columns)
        with bs.use("webgpu"):
            assert same(P.dequantize(by, torch.float32), q.dequantize())


@pytest.mark.parametrize("fmt", ["mxfp4", "int3:group10:fp32", "uint8:token:fp32:asym"])
def test_tensors_on_the_device_stay_there(fmt: str) -> None:
    x = torch.randn(4, 70)
    there = x.to(webgpu())
    with bs.use("reference"):
        packed, *parts = P.choose_quantize(x, fmt, None)
        values = P.dequantize(operand(packed, P.from_list(parts, parse(fmt)), fmt, 70), x.dtype)
    found, *chosen = P.choose_quantize(there, fmt, None)
    by = operand(found, P.from_list(chosen, parse(fmt)), fmt, 70)
    decoded = P.dequantize(by, x.dtype)
    faked = P.fake_quantize(there, Quantizer(None, None, None, fmt))
    assert all(isinstance(each, WebGPUTensor) for each in (found, *chosen, decoded, faked))
    assert all(same(a.cpu(), b) for a, b in zip((found, *chosen), (packed, *parts), strict=True))
    assert same(decoded.cpu(), values) and same(faked.cpu(), values)
