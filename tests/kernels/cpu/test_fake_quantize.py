# SPDX-License-Identifier: BSD-3-Clause
"""Strides of inputs and of results, and gradients that pass."""

import pytest
import torch
from torch import Tensor

import blockscale as bs
from blockscale.kernels.cpu import _native
from tests.kernels.cpu.equal import settings, wrong
from tests.support.cpu_primitives import rough
from tests.support.cpu_primitives_memory import FORMATS
from tests.support.same import same


def layouts() -> dict[str, Tensor]:
    x = rough((6, 5, 8, 16), 1)
    return {
        "transposed": rough((65, 33), 1).t(),
        "permuted": x.permute(2, 0, 3, 1),
        "channels last": x.contiguous(memory_format=torch.channels_last),
        "one column of two": torch.stack([x, x + 1], -1)[..., 1],
        "every third row, from the second": rough((40, 33), 1)[1::3],
        "inner columns": rough((40, 70), 1)[:, 3:68],
        "expanded": rough((1, 40), 1).expand(7, 40),
        "expanded columns": rough((7, 1), 1).expand(7, 40),
        "flipped": rough((7, 40), 1).flip(0),
        "one row of a large stride": rough((3, 40), 1)[1:2],
        "one column": rough((40, 7), 1)[:, 2:3],
        "a view whose sign is flipped": torch.complex(x, x).conj().imag,
    }


@pytest.mark.some(8)
@pytest.mark.parametrize("name", layouts())
def test_strides(name: str) -> None:
    """Also the strides of the outputs are the reference's."""
    for fmt in FORMATS:
        for dtype in (torch.float32, torch.bfloat16):
            x = layouts()[name]
            assert wrong(x if dtype == x.dtype else x.to(dtype), fmt) == [], fmt


@pytest.mark.parametrize("isa", _native.isas())
def test_tensors_of_autograd_and_inference(isa: str) -> None:
    x, fmt = torch.randn(5, 40), "int4:group16:fp32"
    plain = bs.fake_quantize(x, fmt)
    with settings(isa, 1):
        leaf = x.clone().requires_grad_()
        result = bs.fake_quantize(leaf, fmt)
        result.sum().backward()
        assert same(result.detach(), plain)
        assert same(leaf.grad, torch.ones(5, 40))
        assert same(bs.quantize(leaf, fmt).dequantize(), plain)
        with torch.inference_mode():
            assert same(bs.fake_quantize(x.clone(), fmt), plain)
            codes = bs.quantize(x.clone(), fmt)
        assert same(codes.dequantize(), plain)
