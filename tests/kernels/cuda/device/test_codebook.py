# SPDX-License-Identifier: BSD-3-Clause
"""Numbers become codes of a table, and codes values, with the reference's bits."""

import pytest
import torch

from blockscale.core.reference import QParams
from tests.support.cuda_device_inputs import midpoints
from tests.support.cuda_equal import wrong
from tests.support.some import crossed

# numpy, in which the interpreter computes, tells of infinities and NaN
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

NAMES = [
    "nf4", "fp4", "iq4_nl", "book(-1,-0.5,0,0.5,1)", "book(0,0.5,1,2,-0,-0.5,-1,-2)",
    "book(0.25,-3,1e-05,7)", "book(-0,3,0,-1,1)", "log4f1", "log8f3", "log8f1", "book(-1,1)",
    "book(1e-30,-1e-30)",
]  # fmt: skip


@pytest.mark.some(8)
@pytest.mark.parametrize("name", NAMES)
def test_every_midpoint(name: str) -> None:
    """Values, what lies halfway, one float32 to each side, zeros, infinities and NaN."""
    x = midpoints(f"{name}:tensor:fp32")
    assert wrong(x, f"{name}:tensor:fp32", given=QParams(torch.ones(1))) == []


@pytest.mark.some(4)
@pytest.mark.parametrize(
    "scale", crossed(2, [3.0, -2.0, 0.0, -0.0, 2.0**-149, 3e38, torch.nan, torch.inf])
)
def test_given_scales(scale: float) -> None:
    for fmt in ("nf4:tensor:fp32", "fp4:tensor:fp32:recip", "book(-0,3,0,-1,1):tensor:fp32"):
        x = torch.cat([torch.randn(50), midpoints(fmt), midpoints(fmt) * scale])
        assert wrong(x, fmt, given=QParams(torch.tensor([scale]))) == [], fmt
