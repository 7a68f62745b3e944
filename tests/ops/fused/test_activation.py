"""Activations by name. tests/ops/fused/products/test_linear.py compares each with torch's own."""

import pytest
import torch

import blockscale as bs
from blockscale.core.operand import Value
from blockscale.ops.fused import FUSED
from blockscale.ops.fused.activation import ACTIVATIONS, activated
from tests.ops.samples import bits


def test_the_names_of_the_contract() -> None:
    assert [*ACTIVATIONS] == [
        *("", "relu", "relu6", "gelu", "gelu_tanh", "silu", "hardswish", "sigmoid", "tanh")
    ]


def test_none_is_the_tensor_itself() -> None:
    x = torch.randn(3)
    assert activated(x, "") is x


@pytest.mark.parametrize("name", ["gelu", "silu", "sigmoid", "tanh"])
def test_it_computes_in_the_results_dtype(name: str) -> None:
    """As an op behind the product does, whose result was cast to bfloat16 before."""
    x, weight = torch.randn(8, 36), torch.randn(64, 36)
    settings = {"dtype": torch.bfloat16}
    with bs.use("reference"):
        (y,) = FUSED["linear"](Value(x), Value(weight), activation=name, **settings)
        (before,) = FUSED["linear"](Value(x), Value(weight), **settings)
    assert bits(y) == bits(activated(before, name))
    late = activated(torch.nn.functional.linear(x, weight), name).bfloat16()
    assert bits(y) != bits(late)  # this check can fail


def test_unknown() -> None:
    with pytest.raises(ValueError, match="no activation 'GELU'; there are '', 'relu', 'relu6'"):
        activated(torch.zeros(1), "GELU")
