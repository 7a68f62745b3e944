# SPDX-License-Identifier: BSD-3-Clause
"""The zoo is large, and a model of it is the same each time."""

from collections import Counter

import pytest
import torch
from torch import nn

from tests.models import registry, states
from tests.models.registry import Model, models, tensors


def test_it_is_large():
    count = Counter(model.library for model in models().values())
    assert count["transformers"] >= 65
    assert count["torchvision"] >= 10
    assert count["timm"] >= 28
    assert count["torch"] >= 11


def test_the_same_seed_gives_the_same_model_and_another_one_another():
    model = models()["nn_mlp"]
    one, same, other = model.build(), model.build(), model.build(seed=7)
    assert states.differences(one, same) == []
    assert len(states.differences(one, other)) == len(one.state_dict())
    a, b = model.inputs(), model.inputs()
    assert torch.equal(a["input"], b["input"])


def test_what_starts_as_zeros_does_not_stay_so():
    class Zeros(nn.Module):
        def __init__(self):
            super().__init__()
            self.w, self.ones = nn.Parameter(torch.zeros(4, 4)), nn.Parameter(torch.ones(4))
            self.none = nn.Parameter(torch.empty(0))

    made = Model("zeros", "torch", Zeros, dict, {}).build()
    assert made.w.all()
    assert made.ones.tolist() == [1] * 4


def test_a_name_is_given_once(monkeypatch):
    monkeypatch.setattr(registry, "_ENTRIES", {})
    registry.add("a", "torch", nn.Identity, dict)
    with pytest.raises(ValueError, match="has a model 'a' already"):
        registry.add("a", "torch", nn.Identity, dict)


def test_tensors_are_found_in_whatever_holds_them():
    a, b = torch.ones(1), torch.zeros(2)
    assert tensors({"x": (a, [b, None]), "n": torch.tensor([1]), "text": "no"}) == [a, b]

    class Layer:
        def __init__(self):
            self.keys, self.values, self.length = a, b, 3

    class Cache:
        layers = (Layer(),)

    assert tensors(Cache()) == [a, b]
    assert tensors(None) == []
