# SPDX-License-Identifier: BSD-3-Clause
"""What each constraint costs: against models that are calibrated and compared by hand."""

import copy

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.calibration.comparison import Comparison
from tests.support.qat_models import cnn

RECIPE = bs.Recipe("int4:channel0:pow2/ceil", "uint8:tensor:pow2/ceil:asym", bias="int32")
BATCHES = [torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(i)) for i in range(2)]


def model() -> nn.Module:
    torch.manual_seed(0)
    return cnn().eval()


def by_hand(recipe: bs.Recipe) -> Comparison:
    plain, quantized = model(), model()
    bs.calibrate(quantized, BATCHES, recipe, progress=False)
    return bs.compare(plain, quantized, BATCHES)


@pytest.fixture(scope="module")
def base() -> Comparison:
    return by_hand(RECIPE)


@pytest.fixture(scope="module")
def found() -> bs.qat.ConstraintCosts:
    float_model = model()
    before = copy.deepcopy(float_model.state_dict())
    made = bs.qat.constraint_costs(float_model, BATCHES, RECIPE)
    assert all(torch.equal(float_model.state_dict()[k], v) for k, v in before.items())
    return made


@pytest.mark.parametrize(
    ("name", "lifted"),
    [
        ("weight scale 2^n", ("int4:channel0:fp32", RECIPE.input, "int32")),
        ("input scale 2^n", (RECIPE.weight, "uint8:tensor:fp32:asym", "int32")),
        ("weight bits", ("int16:channel0:pow2/ceil", RECIPE.input, "int32")),
        ("input bits", (RECIPE.weight, "uint16:tensor:pow2/ceil:asym", "int32")),
        ("integer bias", (RECIPE.weight, RECIPE.input, None)),
    ],
)
def test_each_is_lifted_alone(
    name: str, lifted: tuple, base: Comparison, found: bs.qat.ConstraintCosts
) -> None:
    weight, given, bias = lifted
    other = by_hand(bs.Recipe(weight, given, bias=bias))
    for layer in base:
        assert found.base[layer.name] == layer.isolated.sqnr
        assert found.costs[layer.name][name] == other[layer.name].isolated.sqnr - (
            layer.isolated.sqnr
        )
    assert [*found.base][-1] == "(the model's output)"
    assert found.costs["(the model's output)"][name] == other.output.sqnr - base.output.sqnr
    assert "output scale 2^n" not in found.costs[layer.name]  # the recipe has no outputs


def test_rules_and_a_table() -> None:
    recipe = bs.Recipe("int8:channel0:fp32", rules={"0": "int4:channel0:pow2/ceil", "3": None})
    found = bs.qat.constraint_costs(model(), BATCHES, recipe)
    others = [layer for layer in found.base if layer not in ("0", "(the model's output)")]
    assert others
    for layer in others:
        assert found.costs[layer]["weight scale 2^n"] == 0.0  # no power of two there
        assert found.costs[layer]["weight bits"] > 20  # 8 bits more
    assert found.costs["0"]["weight bits"] > 40
    spelled = "int4:channel0:pow2/ceil"
    assert bs.qat.constraint_costs(model(), BATCHES, spelled) == bs.qat.constraint_costs(
        model(), BATCHES, bs.Recipe(spelled)
    )
    lines = str(found).splitlines()
    assert len(lines) == 1 + len(found.base)
    assert lines[0].split("  ")[-1] == "weight bits"
    assert found.to_dict()["costs"]["0"].keys() == {"weight scale 2^n", "weight bits"}


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="no constraint that could be lifted"):
        bs.qat.constraint_costs(model(), BATCHES, bs.Recipe("e4m3:tensor:fp32"))
    with pytest.raises(ValueError, match="give a list, not a generator"):
        bs.qat.constraint_costs(model(), iter(BATCHES), RECIPE)
