# SPDX-License-Identifier: BSD-3-Clause
"""Scales of tensors without elements, and of those whose blocks the reference has to see."""

import pytest
import torch

import blockscale as bs
from blockscale.kernels.cuda.spec import known
from blockscale.ops import primitives as P
from tests.support.cuda_equal import DEVICE
from tests.support.same import same

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


@pytest.mark.parametrize(
    "fmt",
    [
        "int8:tensor:fp32", "binary:tensor:fp32", "uint8:token:fp32:asym", "nvfp4",
        "int4:group32:(uint4:channel0:fp32)",
    ],
)  # fmt: skip
@pytest.mark.parametrize("shape", [(3, 0), (2, 64), (2, 40_000)], ids=str)
def test_scales(fmt: str, shape: tuple[int, int]) -> None:
    x = torch.randn(shape, device=DEVICE)
    with bs.use("reference"):
        expected = P.choose_qparams(x, fmt)
    with bs.use("cuda"):
        found = P.choose_qparams(x, fmt)
    assert all(same(a, b) for a, b in zip(found, expected, strict=True))


def test_every_named_format_is_taken() -> None:
    assert all(known((fmt,), ()) for fmt in bs.formats().values())
