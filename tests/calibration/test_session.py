# SPDX-License-Identifier: BSD-3-Clause
"""Static scales are what observers choose from all the data that a layer sees."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import blockscale as bs
from tests.calibration.networks import CHANNEL, STATIC, Net, deep, ids, net, quietly, state_of


def seen(model: Net, batches: list[Any]) -> dict[str, Tensor]:
    """{layer.input or layer.output: all rows it had} by plain hooks, channels last."""
    found: dict[str, list[Tensor]] = {}
    handles = []
    for name, layer in model.named_children():

        def hook(m: Any, x: Any, y: Tensor, name: str = name) -> None:
            for part, value in (("input", x[0]), ("output", y)):
                value = value.movedim(1, -1) if name == "conv" else value
                found.setdefault(f"{name}.{part}", []).append(value.flatten(0, -2))

        handles.append(layer.register_forward_hook(hook))
    with torch.no_grad():
        for batch in batches:
            model.eval()(**batch)
    for handle in handles:
        handle.remove()
    return {name: torch.cat(parts) for name, parts in found.items()}


def test_static_scales_are_those_of_all_the_data() -> None:
    model, batches = net(), deep(ids(4, 1, 7))
    expected = seen(copy.deepcopy(model), batches)
    plain = copy.deepcopy(model)
    ledger = quietly(model, batches, STATIC, "min_max", strict=True)
    for name in ("table", "conv", "twice", "gpt", "dead"):
        layer = model.get_submodule(name)
        y, amax = layer.output.parts[0], expected[f"{name}.output"].abs().amax(0)
        torch.testing.assert_close(y.flatten(), amax / 127, rtol=1e-6, atol=0)
        assert "static output by min_max" in ledger[name].details
        if name == "table":
            assert layer.input is None
            continue
        x, amax = layer.input.parts[0], expected[f"{name}.input"].abs().amax()
        torch.testing.assert_close(x.flatten(), (amax / 127)[None], rtol=1e-6, atol=0)
        assert "static input by min_max" in ledger[name].details
    twin = copy.deepcopy(plain)
    bs.quantize_(twin, "int8_channel")
    for name in ("table", "conv", "twice", "gpt"):  # the codes are those of quantize_
        mine, its = (m.get_submodule(name).weight.codes for m in (model, twin))
        assert torch.equal(mine, its)
    x = batches[0]
    assert (model.eval()(**x) - plain.eval()(**x)).abs().max() < 0.1


def test_asymmetric_and_two_level_scales() -> None:
    for fmt in ("uint8:channel-1:fp32:asym", "e2m1:tensor:e4m3", "int8:tensor:pow2/ceil"):
        model, x = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 4)), torch.rand(9, 8) - 0.2
        quietly(model, [x[:4], x[4:]], bs.Recipe("int8", input=fmt), "min_max")
        found, expected = model[0].input, bs.quantize(x, fmt)
        scale, zero_point, outer = found.parts
        assert torch.equal(scale, expected.qparams.scale)
        assert outer is None or torch.equal(outer, expected.qparams.outer)
        assert zero_point is None or torch.equal(zero_point, expected.zero_point)
        assert torch.equal(found(x), expected.dequantize())


def test_formats_with_other_blocks_stay_dynamic() -> None:
    model = nn.Sequential(nn.Linear(8, 8))
    ledger = quietly(model, [torch.randn(3, 8)], bs.Recipe("int8", "mxfp8", "int8_token"))
    assert not model[0].input.static
    assert ledger["0"].details == "dynamic input, dynamic output"
    assert "int8:tensor:fp32, input e4m3:group32:e8m0/floor" in str(ledger)


def test_values_that_are_not_finite_are_counted() -> None:
    model, x = nn.Sequential(nn.Linear(4, 4)), torch.randn(5, 4)
    x[0, 1], x[2, 2] = torch.nan, torch.inf
    with pytest.warns(UserWarning, match="0: 1 NaN, 1 infinite of 20 input values"):
        quietly(model, [x], bs.Recipe("int8", "int8"), "min_max")
    expected = torch.where(x.isfinite(), x, 0).abs().max() / 127
    torch.testing.assert_close(model[0].input.parts[0].flatten()[0], expected)


def test_nothing_but_nan_leaves_an_input_dynamic() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    with pytest.warns(UserWarning, match="0: 8 NaN of 8 input values, which were left out"):
        ledger = quietly(model, [torch.full((2, 4), torch.nan)], bs.Recipe("int8", "int8"), "mse")
    assert not model[0].input.static
    assert ledger["0"].details == "dynamic input"


def test_an_observer_that_cannot_choose_names_the_layer() -> None:
    class Undecided(bs.observers.Observer):
        name = "undecided"

        def _choose(self) -> tuple[Tensor, Tensor]:
            raise ValueError("too few")

    model = nn.Sequential(nn.Linear(4, 4))
    before = state_of(model)
    with pytest.raises(ValueError, match="the input of 0: too few"):
        quietly(model, [torch.randn(1, 4)], bs.Recipe("int8", CHANNEL), Undecided)
    assert state_of(model) == before


def test_autocast_and_half_precision_models() -> None:
    class Cast(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                return super().forward(x)

    for model in (
        Cast(nn.Linear(8, 8), nn.Linear(8, 8)),
        nn.Sequential(nn.Linear(8, 8)).bfloat16(),
    ):
        x = torch.randn(4, 8, dtype=model[0].weight.dtype)
        quietly(model, [x], bs.Recipe("int8", "int8", "int8"), "min_max", weight="gptq")
        torch.testing.assert_close(
            model[0].input.parts[0].flatten()[0], x.abs().max().float() / 127
        )
        assert model[0].output.static
        assert torch.isfinite(model(x)).all()
