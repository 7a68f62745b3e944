# SPDX-License-Identifier: BSD-3-Clause
"""Cases of linear layers: the recipes, and the time relative to the float layer."""

from dataclasses import replace

import pytest
import torch

import blockscale as bs
from blockscale.bench.groups import linear
from blockscale.bench.requests import Layer
from blockscale.bench.settings import Settings
from tests.support.bench_runs import SETTINGS, measured


def test_figures():
    [case] = measured(replace(SETTINGS, only="linear/256x32/m=1"))
    lines = {line["name"]: line for line in case["contestants"]}
    assert set(lines) >= {linear.label(*recipe) for recipe in linear.RECIPES}
    one = lines["mxfp4 weights"]
    assert one["relative"] == pytest.approx(one["seconds"] / lines["torch fp32"]["seconds"])
    assert one["bytes"] == 32 * (128 + 8)
    copied = min(line["seconds"] for name, line in lines.items() if name.startswith("copy: "))
    reading = one["bytes"] / one["seconds"] / (8 * 256 * 32 / copied)
    assert one["of_copy"] == pytest.approx(reading)


def test_bandwidth_is_told_where_reading_the_weight_is_the_time():
    [case] = measured(replace(SETTINGS, only="linear/256x32/m=2"))
    assert not any("of_copy" in line for line in case["contestants"])
    assert not any(line["name"].startswith("copy: ") for line in case["contestants"])


def test_a_layer_is_quantized_once():
    layer = Layer(64, 32)
    module = linear._quantized(layer, "mxfp4", "mxfp8")
    assert linear._quantized(layer, "mxfp4", "mxfp8") is module
    expected = layer.module()
    bs.quantize_(expected, bs.Recipe("mxfp4", input="mxfp8"))
    x = torch.randn(3, 64)
    assert torch.equal(module(x), expected(x))
    assert linear._quantized(layer, "mxfp4", None) is not module


def test_names():
    assert linear.label("mxfp4", None) == "mxfp4 weights"
    assert linear.label("bfp8", "bfp8") == "bfp8 x bfp8"
    assert linear.baseline(Settings()) == "torch fp32"
    assert linear.baseline(Settings("cuda:1")) == "torch bf16"
    assert linear.recipes(Settings("cuda:1")) is linear.GPU_RECIPES
