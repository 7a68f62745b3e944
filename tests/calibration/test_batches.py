# SPDX-License-Identifier: BSD-3-Clause
"""How batches reach a model, and what `inference` leaves behind."""

import warnings
from collections import OrderedDict, UserDict
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.calibration.batches import call, device_of, inference
from tests.calibration.networks import STATIC, ids, net, quietly, state_of

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # deprecations inside, while it is imported
    from transformers import BatchEncoding


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


@pytest.mark.parametrize(
    "kind", ["dict", "encoding", "tuple", "list", "tensor", "generator", "loader"]
)
def test_kinds_of_batches(kind: str) -> None:
    batches = ids(3, 3)
    made: dict[str, Any] = {
        "dict": [{"ids": b} for b in batches],
        "encoding": [BatchEncoding({"ids": b}) for b in batches],
        "tuple": [(b, True) for b in batches],
        "list": [[b] for b in batches],
        "tensor": batches,
        "generator": (b for b in batches),
        "loader": torch.utils.data.DataLoader(torch.cat(batches), batch_size=3),
    }
    model, same = net(), net()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the dead branch
        quietly(model, made[kind], STATIC, "min_max")
        quietly(same, batches, STATIC, "min_max")
    assert torch.equal(model.twice.input.parts[0], same.twice.input.parts[0])


def test_bad_batches_change_nothing() -> None:
    for batches, words in (
        (
            {"ids": ids(2)[0]},
            r"batches must be an iterable of batches, found a single dict: write \[batch\]",
        ),
        (
            ids(2)[0],
            r"batches must be an iterable of batches, found a single Tensor: write \[batch\]",
        ),
        (3, "iterable of batches, such as a list or a DataLoader, found an int"),
        ([], "batches is empty"),
        (iter([]), "batches is empty"),
    ):
        model = net()
        before = state_of(model)
        with pytest.raises((TypeError, ValueError), match=words):
            quietly(model, batches)
        assert state_of(model) == before


def test_what_can_be_read_once_is_refused_for_several_passes() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    before, batches = state_of(model), (torch.randn(2, 8) for _ in range(3))
    words = (
        r"a generator\), but 3 passes are needed \(1 for static scales, 2 for weight "
        r"'gptq'\): pass a list or a DataLoader"
    )
    with pytest.raises(ValueError, match=words):
        quietly(model, batches, bs.Recipe("int8", "int8"), "min_max", weight="gptq")
    assert state_of(model) == before
    assert len(list(batches)) == 3  # nothing was read


def test_passes_that_differ_are_an_error() -> None:
    class Shrinking:
        left = 3

        def __iter__(self) -> Iterator[Tensor]:
            self.left -= 1
            return iter([torch.randn(2, 8)] * self.left)

    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    with pytest.raises(
        ValueError, match="gave 2 batches in the first pass and 1 in this one: pass a list or a"
    ):
        quietly(model, Shrinking(), "int4:group4:fp32", weight="gptq")
