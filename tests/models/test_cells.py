# SPDX-License-Identifier: BSD-3-Clause
"""A cell reports what is wrong: each of them is shown a planted bug."""

import pytest
import torch
from torch import nn

import blockscale as bs
from tests.models import cells
from tests.models.cells import Cell, row
from tests.models.registry import Model, models
from tests.models.zoo.torch_nn import perceptron


def zoo_model(make=perceptron) -> Model:
    return Model("planted", "torch", make, lambda: {"input": torch.randn(4, 64)}, {})


def cell(name: str, make=perceptron) -> Cell:
    return row(zoo_model(make), [name])[name]


def test_all_cells_of_a_simple_model():
    found = row(zoo_model())
    assert found.pop("pretrained") == (None, "not a model of transformers")
    assert found.pop("lora")[0] is not None
    share = found.pop("share")
    assert share.ok and share.told.endswith("%") and float(share.told[:4]) > 95
    told = {"forward": "strict", "compile": "one graph", "export": "yes"}
    assert found == {name: (True, told.get(name, "equal")) for name in found}


def test_a_loader_that_changes_a_bit_is_reported(monkeypatch):
    load = bs.load

    def broken(model, path):
        loaded = load(model, path)
        loaded[2].weight.codes[0, 0] ^= 1
        return loaded

    monkeypatch.setattr(bs, "load", broken)
    for name in ("save", "directory"):
        assert cell(name) == (False, "not the bits of the flow in memory: 2.weight.codes")


def test_a_loader_that_loads_nothing_is_reported(monkeypatch):
    monkeypatch.setattr(bs, "load", lambda model, path: model)
    found = cell("save")
    assert found.ok is False
    assert "0.bias" in found.told


def test_a_loader_whose_model_computes_something_else_is_reported(monkeypatch):
    load = bs.load

    def broken(model, path):
        loaded = load(model, path)
        loaded.register_forward_hook(lambda module, args, output: output + 1)
        return loaded

    monkeypatch.setattr(bs, "load", broken)
    assert cell("save") == (False, "the states are equal, the results are not")


def test_a_ledger_that_counts_wrongly_is_reported(monkeypatch):
    monkeypatch.setattr(bs.Ledger, "bytes_after", property(lambda self: 1))
    found = cell("share")
    assert found.ok is False
    assert "-> 1 bytes, counted are" in found.told


def test_a_forward_that_crashes_is_reported():
    found = cell("forward", lambda: nn.Sequential(Crashing()))
    assert found == (False, "RuntimeError: only float weights")
    found = cell("save", lambda: nn.Sequential(Crashing()))
    assert found == (False, "equal bits, but forward fails: RuntimeError: only float weights")


class Crashing(nn.Module):
    """It works with floats only."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(64, 64)

    def forward(self, input):
        if type(self.fc) is not nn.Linear:
            raise RuntimeError("only float weights")
        return self.fc(input)


def test_a_forward_that_is_off_is_reported(monkeypatch):
    run = cells.states.run
    monkeypatch.setattr(
        cells.states,
        "run",
        lambda model, inputs: [
            x * (1 + 1e-2 * hasattr(model[0].weight, "codes")) for x in run(model, inputs)
        ],
    )
    found = cell("forward")
    assert found.ok is False
    assert found.told == "the result is 0.01 of its length away from that of its dequantized twin"


def test_a_result_that_is_not_finite_is_reported():
    class Infinite(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(64, 64)

        def forward(self, input):
            return self.fc(input) / 0

    assert "nan of its length" in cell("forward", Infinite).told


def test_what_strict_refuses_is_told():
    class Taken(nn.Linear):
        def __init__(self):
            super().__init__(64, 64)
            self.output = nn.Identity()  # a name that quantized layers use

    found = cell("forward", lambda: nn.Sequential(nn.Linear(64, 64), Taken()))
    assert found.ok
    assert found.told.startswith("1 skipped: 1 (Taken): ")


class Numpy(nn.Module):
    """No compiler follows it."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(64, 64)

    def forward(self, input):
        if float(input.sum()) > 1e6:
            return input
        return self.fc(input)


@pytest.mark.slow
def test_what_the_float_model_cannot_do_is_empty():
    assert cell("compile", Numpy) == (True, "graphs, as in float")
    found = cell("export", Numpy)
    assert found.ok is None
    assert found.told.startswith("the float model does not export: ")
    assert cell("lora", lambda: nn.Sequential(nn.Conv1d(4, 4, 3))).told == (
        "it has no linear layers"
    )


def test_adapters_that_do_not_learn_are_reported(monkeypatch):
    def frozen(adapted, trained, run):
        return [1.0, 1.0]

    model, run = perceptron(), cells.Run(zoo_model(), None)
    assert cells._train(model, ["0", "2"], run) == 2
    monkeypatch.setattr(cells, "_steps", frozen)
    with pytest.raises(cells.WrongError, match="0 adapters learned"):
        cells._train(perceptron(), ["0", "2"], run)


def test_a_base_that_changes_beside_adapters_is_reported(monkeypatch):
    steps = cells._steps

    def moving(adapted, trained, run):
        losses = steps(adapted, trained, run)
        with torch.no_grad():
            adapted.base_model.model[4].bias += 1
        return losses

    monkeypatch.setattr(cells, "_steps", moving)
    run = cells.Run(zoo_model(), None)
    with pytest.raises(cells.WrongError, match="bias changed, and is no adapter"):
        cells._train(perceptron(), ["0", "2"], run)


def test_paths_of_the_day_are_no_part_of_a_reason():
    model = models()["nn_mlp"]
    found = cells.row(
        Model("other", "torch", model.make, model.sample, {"no_such_layer": "planted"}), ["forward"]
    )
    assert found["forward"].told == "1 skipped: pattern 'no_such_layer' matches nothing"
