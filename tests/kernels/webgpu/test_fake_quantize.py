# SPDX-License-Identifier: BSD-3-Clause
"""Values after a round trip, strides and gradients."""

import pytest
import torch

import blockscale as bs
from blockscale.core.operand import Quantizer
from blockscale.ops import primitives as P
from tests.kernels.webgpu.equal import hard, slope
from tests.support.same import same


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


EIGHTEEN = ",".join(str(1 + each / 2) for each in range(18))


@pytest.mark.parametrize(
    ("fmt", "least"),
    [("book(1,2,4):tensor:fp32", 1), (f"book({EIGHTEEN}):tensor:fp32", 1),
     ("book(-0,0,1):tensor:fp32", 0), ("book(-2,-1,3):tensor:fp32", -2)],
)  # fmt: skip
def test_gradients_pass_from_the_smallest_value_of_a_table_on(fmt: str, least: float) -> None:
    near = torch.tensor([float(least)])
    x = torch.cat([near.nextafter(near - 1), near, near.nextafter(near + 1), torch.zeros(1)])
    x = torch.cat([x, torch.tensor([-0.0, -1e-45, torch.nan, -torch.inf])])
    by = Quantizer(torch.ones(1), None, None, fmt)
    for backend in ("reference", "webgpu"):
        with bs.use(backend):
            found = P.straight_through(torch.ones(8), x, by)
        assert found.tolist() == [float(least <= each) for each in x.tolist()], backend


DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


@pytest.mark.parametrize("zero", DTYPES)
def test_gradients_with_zero_points_that_are_floats(zero: str) -> None:
    """Limits are moved by the zero point, which does not hide what is no number."""
    x = torch.tensor([-1.0, -0.75, 0.0, 15.0, 15.25, 15.5, torch.nan, torch.inf, -torch.inf])
    moved = torch.tensor([0.25]).to(DTYPES[zero])
    by = Quantizer(torch.ones(1), moved, None, f"uint4:tensor:fp32:asym({zero})")
    for backend in ("reference", "webgpu"):
        with bs.use(backend):
            found = P.straight_through(torch.ones(9), x, by)
        assert found.tolist() == [0, 1, 1, 1, 0, 0, 0, 0, 0], backend  # ties of x + 0.25 to even


def test_shapes_have_to_agree() -> None:
    by = Quantizer(None, None, None, "int8")
    with bs.use("webgpu"), pytest.raises(ValueError, match="gradient of shape"):
        P.straight_through(torch.ones(3), torch.ones(4), by)
