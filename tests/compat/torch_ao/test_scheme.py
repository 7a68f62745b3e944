# SPDX-License-Identifier: BSD-3-Clause
"""One QConfig as the formats of a layer."""

import warnings

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.compat import torch_ao
from blockscale.compat.torch_ao import (
    MinMaxObserver,
    PlaceholderObserver,
    QConfig,
    to_format,
    to_recipe,
)
from blockscale.compat.torch_ao.scheme import instance, to_scheme
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


def test_an_output_has_the_format_of_the_activation_unless_it_is_dynamic() -> None:
    config = QConfig(activation="int8", weight="int8_channel")
    weight, fmt = bs.parse("int8_channel"), bs.parse("int8")
    assert to_scheme(config) == Scheme(weight, fmt)
    assert to_scheme(config, outputs=True) == Scheme(weight, fmt, fmt)
    dynamic = PlaceholderObserver.with_args(dtype=torch.quint8, is_dynamic=True)
    found = to_scheme(QConfig(dynamic, "int8"), outputs=True)
    assert (str(found.input), found.output) == ("uint8:tensor:fp32:asym:recip", None)
    assert to_scheme(None, outputs=True) == Scheme()


def test_an_error_says_where() -> None:
    for config, message in (
        (QConfig("int8", None), "^here: activations are quantized only along with a weight"),
        (QConfig(None, "fp99"), "^here: weight: no format 'fp99'"),
        (QConfig("fp99", "int8"), "^here: activation: no format 'fp99'"),
        (QConfig("int8_token", "int8_token"), None),
    ):
        if message is None:  # formats that are written out may have any block
            assert str(to_scheme(config).weight) == "int8:token:fp32"
            continue
        with pytest.raises(ValueError, match=message):
            to_scheme(config, "here")


def test_nothing_is_said_while_a_constructor_is_read() -> None:
    """torch.ao warns of reduce_range; that is for whoever wrote it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = instance(MinMaxObserver.with_args(dtype=torch.qint8, reduce_range=True))
    assert (made.quant_min, made.quant_max) == (-64, 63)
