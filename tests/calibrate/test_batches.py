"""How batches reach a model, and what `inference` leaves behind."""

from collections import OrderedDict, UserDict
from typing import Any

import pytest
import torch
from torch import nn

from blockscale.calibrate.batches import call, device_of, inference


class Echo(nn.Module):
    """Returns what it was called with, and has a parameter on the device `meta`."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(1, device="meta"))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return args, kwargs


def test_tensors_move_to_the_models_device_at_any_depth() -> None:
    x, model = torch.ones(2), Echo()
    assert device_of(model).type == "meta"
    assert device_of(nn.ReLU()).type == "cpu"
    (found,), _ = call(model, x)
    assert found.is_meta
    (a, (b, [c])), _ = call(model, (x, (x, [x])))
    assert a.is_meta and b.is_meta and c.is_meta
    for batch in ({"x": x, "n": 3}, OrderedDict(x=x, n=3), UserDict(x=x, n=3)):
        args, kwargs = call(model, batch)
        assert not args
        assert kwargs["x"].is_meta
        assert kwargs["n"] == 3
    (nested,), _ = call(model, [{"deep": {"x": x}}])
    assert nested["deep"]["x"].is_meta
    (text,), _ = call(model, "left alone")
    assert text == "left alone"


def test_inference_sets_flags_and_nothing_else() -> None:
    class Loud(nn.Linear):
        def train(self, mode: bool = True) -> "Loud":
            raise AssertionError("train() may do more than to set the flag")

    model = nn.Sequential(Loud(2, 2), nn.Dropout(), nn.Sequential(nn.ReLU()))
    model[1].training = False
    model[2][0].training = False
    modes = [module.training for module in model.modules()]
    with pytest.raises(KeyboardInterrupt), inference(model):
        assert not any(module.training for module in model.modules())
        assert not torch.is_grad_enabled()
        raise KeyboardInterrupt
    assert [module.training for module in model.modules()] == modes
    assert torch.is_grad_enabled()
