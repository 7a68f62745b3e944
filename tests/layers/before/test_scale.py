# SPDX-License-Identifier: BSD-3-Clause
"""A factor for each feature."""

import pytest
import torch
from torch import Tensor

import blockscale as bs
from blockscale.layers.before import Before, Scale
from tests.layers.before.kinds import (
    K,
    powers,
    same,
)


@pytest.fixture(autouse=True)
def reference():
    """Kernels may sum in another order; these tests are about the bits."""
    with bs.use("reference"):
        yield


def examples(k: int) -> list[Before]:
    return [Scale(powers(k))]


def test_a_scale_is_one_multiplication() -> None:
    factor, x, w = torch.rand(K) + 0.1, torch.randn(4, K), torch.randn(3, K)
    each = Scale(factor)
    same(each(x), torch.from_numpy(x.numpy() * factor.numpy()))
    same(each.to_weight(w), torch.from_numpy(w.numpy() / factor.numpy()))
    same(each.from_weight(w), torch.from_numpy(w.numpy() * factor.numpy()))


FACTORS = [
    torch.ones(2, 2), torch.ones(0), torch.ones(3, dtype=torch.float64),
    torch.tensor([1.0, 0.0]), torch.tensor([1.0, -1.0]), torch.tensor([1.0, torch.nan]),
    torch.tensor([torch.inf]),
]  # fmt: skip


@pytest.mark.parametrize("factor", FACTORS, ids=str)
def test_factors_that_are_none(factor: Tensor) -> None:
    with pytest.raises(ValueError, match=r"expected a factor \[features\] of finite float32"):
        Scale(factor)
