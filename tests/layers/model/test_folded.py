# SPDX-License-Identifier: BSD-3-Clause
"""A convolution remembers what stands where its batch norm was, whatever its name is then."""

import copy

import torch
from torch import nn

import blockscale as bs
from blockscale.layers.model.folded import folded_norms, folded_places, stands_for_norm


def pair() -> tuple[nn.Sequential, nn.Identity]:
    model, place = nn.Sequential(nn.Conv1d(2, 4, 3), nn.Identity()), nn.Identity()
    bs.quantize_(model, "int8_channel")
    model[1] = place
    stands_for_norm(place, model[0])
    return model, place


def test_names_are_those_of_the_model_at_hand() -> None:
    model, place = pair()
    assert folded_norms(model) == {"1": "0"}
    assert folded_places(model[0]) == (place,)
    assert folded_norms(nn.ModuleDict({"a": model, "b": nn.ReLU()})) == {"a.1": "a.0"}
    other = copy.deepcopy(model)
    assert folded_norms(other) == {"1": "0"}
    assert folded_places(other[0]) == (other[1],)
    both = nn.ModuleDict({"x": model, "y": model})  # one model under two names
    assert folded_norms(both) == {"x.1": "x.0", "y.1": "x.0"}


def test_it_is_no_child() -> None:
    model, _ = pair()
    assert "_folded_norms" not in dict(model[0].named_modules())
    assert list(model.state_dict()) == list(pair()[0].state_dict())
    assert torch.equal(model(x := torch.ones(1, 2, 5)), model[0](x))


def test_what_was_replaced_is_forgotten() -> None:
    model, _ = pair()
    model[1] = nn.BatchNorm1d(4)
    assert folded_norms(model) == {}
    assert folded_norms(nn.Sequential(nn.Identity())) == {}
