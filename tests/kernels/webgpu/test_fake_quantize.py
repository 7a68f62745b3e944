"""Values after a round trip, strides and gradients."""

import pytest
import torch

import blockscale as bs
from blockscale.core.operand import Quantizer
from blockscale.ops import primitives as P
from tests.kernels.same import same
from tests.kernels.webgpu.equal import hard, slope


@pytest.mark.parametrize("fmt", ["mxfp4", "int8:group32:fp32"])
def test_gradients_of_other_dtypes_and_strides(fmt: str) -> None:
    x = hard((96, 4), torch.float32).t()
    by = Quantizer(None, None, None, fmt)
    for gradient in (slope(x), slope(x).bfloat16(), slope(x).double()):
        with bs.use("reference"):
            expected = P.straight_through(gradient, x, by), P.fake_quantize(x, by)
        with bs.use("webgpu"):
            found = P.straight_through(gradient, x, by), P.fake_quantize(x, by)
        assert all(same(a, b) for a, b in zip(found, expected, strict=True))


def test_shapes_have_to_agree() -> None:
    by = Quantizer(None, None, None, "int8")
    with bs.use("webgpu"), pytest.raises(ValueError, match="gradient of shape"):
        P.straight_through(torch.ones(3), torch.ones(4), by)
