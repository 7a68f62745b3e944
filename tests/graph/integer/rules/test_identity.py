# SPDX-License-Identifier: BSD-3-Clause
"""What passes its input on."""

import pytest
import torch.nn.functional as F
from torch import nn

from blockscale.graph.integer.convert import to_integer
from blockscale.graph.integer.layers import NotIntegerError
from tests.support.integer_models import between, check


@pytest.mark.parametrize(
    "operation",
    [nn.Identity(), nn.Dropout(0.5), nn.Dropout2d(0.5), lambda x: F.dropout(x, 0.5, False)],
)
def test_nothing_is_added(operation) -> None:
    model, x = between(operation)
    steps = check(model, x).steps
    assert [type(step).__name__ for step in steps.children()] == [
        "Quantize", "IntegerConv", "Requantize", "IntegerConv", "Dequantize"
    ]  # fmt: skip


def test_dropout_that_drops_is_refused_and_without_a_chance_it_is_not() -> None:
    model, x = between(nn.Dropout(0.5))
    model.train()
    with pytest.raises(NotIntegerError, match=r"'operation' \(Dropout\) drops values"):
        to_integer(model, x)
    model, x = between(nn.Dropout(0.0))
    assert to_integer(model.train(), x).exact
