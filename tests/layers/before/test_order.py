# SPDX-License-Identifier: BSD-3-Clause
"""Inputs in another order."""

import pytest
import torch
from torch import Tensor

import blockscale as bs
from blockscale.layers.before import Before, Order
from tests.layers.before.kinds import DTYPES, K, same


def examples(k: int) -> list[Before]:
    return [Order(torch.randperm(k, dtype=torch.int32))]


@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_only_move(dtype: torch.dtype) -> None:
    order = torch.randperm(K, dtype=torch.int32)
    each, x, w = Order(order), torch.randn(4, 3, K).to(dtype), torch.randn(3, 2 * K)
    same(each(x), torch.stack([x[..., i] for i in order.tolist()], -1))
    columns = [*order.tolist(), *(order + K).tolist()]
    same(each.to_weight(w), torch.stack([w[:, i] for i in columns], -1))
    same(each.from_weight(each.to_weight(w)), w)


def test_groups_of_inputs_that_lie_apart() -> None:
    """What act-order is for: large inputs in one group, small ones in the others."""
    torch.manual_seed(0)
    linear = torch.nn.Linear(64, 8, bias=False)
    linear.weight.data[:, ::4] *= 100
    order = torch.cat([torch.arange(64).view(-1, 4)[:, i] for i in range(4)]).int()
    errors = []
    for before in ({}, {"0": Order(order)}):
        model = torch.nn.Sequential(torch.nn.Linear(64, 8, bias=False))
        model[0].weight.data.copy_(linear.weight)
        bs.quantize_(model, "int4:group16:fp32", before=before)
        error = model[0].dequantize_weight() - linear.weight
        errors.append(error[:, torch.arange(64) % 4 > 0].abs().max())
        x = torch.randn(5, 64)
        torch.testing.assert_close(model(x), x @ model[0].dequantize_weight().T)
    assert errors[1] < errors[0] / 10


@pytest.mark.parametrize(
    "order",
    [
        torch.arange(4), torch.zeros(4, dtype=torch.int32), torch.arange(1, 5, dtype=torch.int32),
        torch.arange(4, dtype=torch.int32).view(2, 2), torch.arange(0, dtype=torch.int32),
    ],
    ids=str,
)  # fmt: skip
def test_orders_that_are_none(order: Tensor) -> None:
    with pytest.raises(ValueError, match=r"expected an order \[features\] of int32 with each of 0"):
        Order(order)
