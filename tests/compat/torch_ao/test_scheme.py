"""One QConfig as the formats of a layer."""

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.compat import torch_ao
from blockscale.compat.torch_ao import (
    PlaceholderObserver,
    to_format,
    to_recipe,
)
from blockscale.core.recipe import Scheme

pytestmark = pytest.mark.filterwarnings("ignore:Please use quant_min and quant_max")


def test_float_and_dynamic() -> None:
    assert to_format(nn.Identity()) is None
    assert to_format(PlaceholderObserver()) is None
    dynamic = PlaceholderObserver(dtype=torch.quint8, is_dynamic=True, power_of_2_scale=True)
    assert str(to_format(dynamic)) == "uint8:tensor:pow2/nearest:asym"
    recipe = to_recipe(torch_ao.default_dynamic_qconfig, outputs=True)
    assert str(recipe.input) == "uint8:tensor:fp32:asym:recip"
    assert recipe.output is None
    assert (
        to_recipe(torch_ao.default_qconfig, outputs=True).output
        == to_recipe(torch_ao.default_qconfig).input
    )
    assert to_recipe(None) == bs.Recipe()
    assert to_recipe(torch_ao.default_weight_only_qconfig).default == Scheme(
        bs.parse("int8:tensor:fp32:half:recip")
    )
