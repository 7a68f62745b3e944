# SPDX-License-Identifier: BSD-3-Clause
"""What does not fit a format, or is not where kernels can reach it, is refused."""

import pytest
import torch

import blockscale as bs
from blockscale.core.operand import Operand, Quantizer
from blockscale.ops import primitives as P
from tests.support.cuda_equal import DEVICE

# numpy, in which the interpreter computes, tells of infinities and NaN
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def test_what_does_not_fit_is_refused() -> None:
    x = torch.randn(4, 32, device=DEVICE)
    scale = torch.ones(4, 1, device=DEVICE)
    with bs.use("cuda"):
        with pytest.raises(TypeError, match="found float64"):
            P.choose_qparams(x.double(), "int8:token:fp32")
        with pytest.raises(ValueError, match=r"expected torch.float32 of shape \(4, 1\)"):
            P.quantize(x, Quantizer(scale[:3], None, None, "int8:token:fp32", None))
        with pytest.raises(ValueError, match="expected a scale, a zero point for blocks"):
            P.quantize(x, Quantizer(scale, None, None, "uint8:token:fp32:asym", None))
        with pytest.raises(ValueError, match="stochastic rounding needs a seed"):
            P.fake_quantize(x, Quantizer(None, None, None, "int8:token:fp32:stochastic", None))
        with pytest.raises(ValueError, match="a seed is int64 of shape"):
            seed = torch.zeros(3, dtype=torch.int64)
            P.fake_quantize(x, Quantizer(None, None, None, "int8:token:fp32:stochastic", seed))
        with pytest.raises(ValueError, match=r"are packed as torch\.uint8 of shape"):
            codes = torch.zeros(4, 9, dtype=torch.uint8, device=DEVICE)
            P.dequantize(Operand(codes, scale, None, None, "int4:token:fp32", 32), torch.float32)
        with pytest.raises(ValueError, match="expected a gradient of shape"):
            P.straight_through(x[:2], x, Quantizer(None, None, None, "int8:token:fp32"))
        with pytest.raises(ValueError, match="block 'tile2x2' needs dimension -2"):
            P.fake_quantize(x[0], Quantizer(None, None, None, "int8:tile2x2:fp32", None))
