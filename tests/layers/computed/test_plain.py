# SPDX-License-Identifier: BSD-3-Clause
"""A layer that computes its weight -> a plain one, with the value that evaluation computes."""

import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

from blockscale.layers.computed.plain import computed_in, computes, plain
from tests.support.computed_models import LAYERS, Doubled, Noisy, parametrized


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("how", LAYERS)
def test_it_gives_what_evaluation_gives_and_changes_nothing(how: str, training: bool) -> None:
    torch.manual_seed(0)
    layer = LAYERS[how]()
    x = torch.randn(3, 8)
    y = layer.eval()(x)
    layer.train(training)
    state = {name: value.clone() for name, value in layer.state_dict().items()}
    assert computes(layer)
    (found,) = computed_in(layer)
    made = plain(layer, [found])
    assert found.how == how.removeprefix("old ")
    assert (type(made), made.training) == (nn.Linear, training)
    assert set(made.state_dict()) == {"weight", "bias"}
    assert torch.equal(made(x), y)
    assert made.bias is layer.bias
    assert not computes(made)
    now = layer.state_dict()
    assert set(now) == set(state)
    assert all(
        torch.equal(state[name], now[name]) for name in state
    )  # no step of a power iteration
    assert torch.equal(layer.eval()(x), y)


def test_several_tensors_of_one_layer() -> None:
    layer = parametrized(Doubled())
    parametrize.register_parametrization(layer, "bias", Doubled())
    made = plain(layer, computed_in(layer))
    assert torch.equal(made.bias, layer.bias)
    assert torch.equal(made.weight, layer.weight)


def test_a_random_one_has_no_value_to_keep() -> None:
    assert computes(parametrized(Noisy()))
    assert computed_in(parametrized(Noisy())) == []
    assert computed_in(nn.Linear(2, 2)) == []


def test_recurrent_layers_list_the_weight() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layer = nn.utils.weight_norm(nn.LSTM(4, 5), "weight_hh_l0")
    x = torch.randn(3, 2, 4)
    expected = layer(x)[0]
    made = plain(layer, computed_in(layer))
    assert made._flat_weights[1] is made.weight_hh_l0
    assert torch.equal(made(x)[0], expected)


def test_what_is_frozen_stays_so() -> None:
    layer = LAYERS["weight_norm"]().requires_grad_(False)
    assert not plain(layer, computed_in(layer)).weight.requires_grad
    layer = LAYERS["weight_norm"]()
    assert plain(layer, computed_in(layer)).weight.requires_grad
