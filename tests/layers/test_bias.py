# SPDX-License-Identifier: BSD-3-Clause
"""Layers whose bias holds codes: which ones, what they add, and why others stay in float."""

import copy
import warnings
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.core.arithmetic.sums import SumInteger
from blockscale.layers.assembly import without_dynamic
from blockscale.layers.layer import QBias, notes_on_bias, quantize_bias, steps_of_sums
from blockscale.layers.plan import Plan, plan_layers
from blockscale.layers.store import QWeight, step_of_input, steps_of_outputs
from blockscale.ops.linear import linear
from tests.support.arithmetic_sums import code_of
from tests.support.exact import multiply, nearest
from tests.support.layer_models import bits, unchanged
from tests.support.layers_bias import (
    CHANNEL,
    IMAGES,
    INT8,
    ROWS,
    STATIC,
    calibrated,
    expected,
    mlp,
    network,
)


@pytest.mark.some(2)
@pytest.mark.parametrize("spelling", ["int32", "int16:sums", "int8:sums"])
@pytest.mark.parametrize("weight", [CHANNEL, "int8:tensor:fp32", "uint4:channel0:bf16:asym"])
def test_codes_and_values_are_those_of_rationals(spelling: str, weight: str) -> None:
    model = network()
    floats = copy.deepcopy(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # int8 saturates
        calibrated(model, IMAGES, bs.Recipe(weight, INT8, bias=spelling))
    for name in "0578":
        layer: Any = model[int(name)]
        bias = floats.get_parameter(f"{name}.bias")
        codes, values = expected(layer, bias, int(spelling[3:].partition(":")[0]))
        assert isinstance(layer.bias, QBias)
        assert layer.bias.codes.tolist() == codes
        assert layer.added_bias().tolist() == values
        assert (layer.bias.dequantize().dtype, layer.bias.shape) == (torch.float32, bias.shape)
    assert model[3].bias is None


def test_what_a_layer_adds_is_the_value_of_its_codes() -> None:
    """The contract of `linear` stays: its bias is the dequantized one."""
    model = calibrated(mlp(), ROWS)
    for layer in (model[0], model[2]):
        x = torch.randn(5, layer.in_features)
        values = torch.tensor([float(Fraction(v)) for v in expected_values(layer)])
        assert torch.equal(layer(x), linear(x, layer.weight.operand, values, layer.of_input(x)))
        assert [name for name, _ in layer.named_parameters()] == []
    with_float = copy.deepcopy(model)
    for layer in (with_float[0], with_float[2]):
        layer.set_float_bias(nn.Parameter(layer.added_bias()))
    assert torch.equal(model(ROWS), with_float(ROWS))


def expected_values(layer: Any) -> list[float]:
    pairs = zip(layer.bias.codes.tolist(), layer.bias.scale.tolist(), strict=True)
    return [multiply(nearest(code), step) for code, step in pairs]


def test_given_scales_do_as_well_as_calibrated_ones() -> None:
    model, scale = mlp(), bs.choose_qparams(ROWS, INT8)[0]
    bias = model[0].bias.detach()
    ledger = bs.quantize_(
        model, bs.Recipe(CHANNEL, INT8, bias="int32", skip=["2"]), strict=True,
        input_scales={"0": scale},
    )  # fmt: skip
    assert model[0].bias.codes.tolist() == expected(model[0], bias)[0]
    assert (ledger["0"].bias, ledger["0"].formats) == (
        "int32:sums",
        "int8_channel, input int8, bias int32:sums",
    )
    assert ledger["0"].bytes_after == 16 * 24 + 16 * 4 + 16 * (4 + 4)


def test_a_format_of_its_own_quantizes_a_bias_like_any_tensor() -> None:
    for fmt in ("int8", "mxfp8", "uint4:group5:fp32:asym", "nvfp4", "int8_token", "binary"):
        model = network()
        floats = copy.deepcopy(model)
        ledger = bs.quantize_(model, bs.Recipe("mxfp4", bias=fmt), strict=True)
        for name in "0578":
            bias = floats.get_parameter(f"{name}.bias")
            held: Any = model[int(name)].bias
            assert isinstance(held, QWeight)
            q = bs.quantize(bias, fmt)
            found, wanted = [held.codes, *held.parts], [q.packed, q.qparams.scale]
            wanted += [q.zero_point, q.qparams.outer]
            assert bits(enumerate(found)) == bits(enumerate(wanted))
            assert torch.equal(model[int(name)].added_bias(), q.dequantize())
            assert ledger[name].bias == str(bs.parse(fmt))
        assert model(IMAGES).shape == (4, 4)


def test_stochastic_biases_follow_the_seed() -> None:
    recipe = bs.Recipe("int8", bias="int4:tensor:fp32:stochastic")
    models = [mlp((8, 64, 8)) for _ in range(3)]
    for model, seed in zip(models, (1, 1, 2), strict=True):
        bs.quantize_(model, recipe, seed=seed)
    codes = [model[0].bias.codes for model in models]
    assert torch.equal(codes[0], codes[1])
    assert not torch.equal(codes[0], codes[2])


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        (bs.Recipe(CHANNEL, bias="int32"), "its input has no format, so its sums have no step"),
        (bs.Recipe(CHANNEL, "fp8", bias="int32"), "its input is e4m3:tensor:fp32, whose codes"),
        (bs.Recipe("mxfp4", INT8, bias="int32"), "its weight is e2m1:group32:e8m0/floor, whose"),
        (bs.Recipe(CHANNEL, "int8_token", bias="int32"), "use the block 'tensor'"),
        (bs.Recipe("int8:group2:fp32", INT8, bias="int32"), "'channel0' or 'tensor'"),
        (STATIC, "its input is dynamic, so its sums have no fixed step"),
        (bs.Recipe(CHANNEL, bias="int8:tile2x2:fp32"), "needs rank|dimension|rank"),
    ],
)
def test_what_cannot_be_is_named_and_strict_changes_nothing(recipe: bs.Recipe, words: str) -> None:
    model = mlp()
    before = unchanged(model)
    with pytest.raises(bs.SkippedError, match=rf"0\.bias \(bias of Linear\): .*({words})"):
        bs.quantize_(model, recipe, strict=True)
    assert unchanged(model) == before
    with pytest.warns(UserWarning, match=rf"2\.bias: skipped, bias left in float: .*({words})"):
        ledger = bs.quantize_(model, recipe)
    assert ledger["0"].status == "quantized"
    assert ledger["0"].bias == ""
    assert [entry.name for entry in ledger.skipped] == ["0.bias", "2.bias"]
    assert isinstance(model[0].bias, nn.Parameter)
    assert sum(entry.bytes_before for entry in ledger) == 4 * (24 * 16 + 16 + 16 * 6 + 6)
    named = bs.Recipe.from_dict(recipe.to_dict() | {"skip": ["*.bias"]})
    bs.quantize_(mlp(), named, strict=True)  # as the error says


def test_strict_calibration_says_so_before_it_runs_anything() -> None:
    def batches() -> Any:
        raise AssertionError("it ran")
        yield

    with pytest.raises(bs.SkippedError, match=r"0\.bias .*its weight is int8:group2:fp32"):
        bs.calibrate(
            mlp(), batches(), bs.Recipe("int8:group2:fp32", INT8, bias="int32"), strict=True
        )


def test_float64_biases_are_refused() -> None:
    model = mlp()
    model[0].bias.data = model[0].bias.data.double()
    for bias in ("int32", "int8"):
        [plan, _] = plan_layers(model, bs.Recipe(CHANNEL, INT8, bias=bias))
        assert isinstance(plan, Plan)
        assert (
            plan.bias_left
            == "its bias is float64; only float32, bfloat16 and float16 can be quantized"
        )


def test_layers_without_a_bias_need_nothing() -> None:
    model = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 8, bias=False), nn.LayerNorm(8))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ledger = bs.quantize_(
            model, bs.Recipe("int8", bias="int32", rules={"2": None}), strict=True
        )
    assert not ledger.skipped
    assert model[1].bias is None


def test_patterns_name_a_bias_and_those_that_match_nothing_are_told() -> None:
    recipe = bs.Recipe(CHANNEL, bias="int8", rules={"2.bias": {"bias": None}}, skip=["3.bias"])
    model = mlp()
    with pytest.warns(UserWarning, match=r"pattern '3\.bias' of the recipe matches nothing$"):
        bs.quantize_(model, recipe)
    assert isinstance(model[0].bias, QWeight)
    assert isinstance(model[2].bias, nn.Parameter)
    with pytest.warns(UserWarning, match=r"pattern '0\.bias' of the recipe matches nothing"):
        bs.quantize_(mlp(), bs.Recipe(CHANNEL, skip=["0.bias"]))  # no biases: of no effect


def test_one_layer_whose_two_names_give_it_two_biases() -> None:
    layer = nn.Linear(4, 4)
    rules = {"1.bias": {"bias": None}}
    [left] = plan_layers(nn.Sequential(layer, layer), bs.Recipe("int8", bias="int8", rules=rules))
    assert left.entry.reason == "0, 1 share one layer, and the recipe treats them differently"
    both = nn.Sequential(layer, layer)
    bs.quantize_(both, bs.Recipe("int8", bias="int8"), strict=True)
    assert both[0] is both[1]


def test_what_saturates_is_told_once_with_the_layers_name() -> None:
    model = mlp()
    with torch.no_grad():
        model[0].bias[3] = 3e9
        model[2].bias[1] = float("nan")
        model[2].bias[2] = float("inf")
    words = (
        r"^blockscale:\n"
        r"  0: 1 of 16 biases are more steps \(input scale times weight scale\) than "
        r"int32:sums holds, and saturate: use larger scales, or leave this bias in float\n"
        r"  2: 2 of 6 biases are NaN or infinite$"
    )
    with pytest.warns(UserWarning, match=words) as caught:
        bs.quantize_(
            model,
            STATIC,
            input_scales={name: torch.full((1, 1), 0.01) for name in "02"},
        )
    assert len(caught) == 1
    assert model[0].bias.codes[3] == 2**31 - 1
    assert model[2].bias.codes[1:3].tolist() == [0, 2**31 - 1]


def test_an_output_whose_weights_are_zero_keeps_its_bias() -> None:
    """Its scale is 2^-126: counted in steps of that, every bias would become nothing."""
    model = mlp()
    with torch.no_grad():
        model[0].weight[5] = 0
    bias = model[0].bias.detach().clone()
    calibrated(model, ROWS)
    layer = model[0]
    assert layer.weight.scale[5] == 2.0**-126
    steps = layer.bias.scale.tolist()
    largest = max(w for i, w in enumerate(layer.weight.scale.reshape(-1).tolist()) if i != 5)
    assert steps[5] == multiply(layer.input.scale.item(), largest)
    assert layer.bias.codes[5] == code_of(bias[5].item(), steps[5], 2**31 - 1)
    assert abs(layer.added_bias()[5] - bias[5]) <= steps[5] / 2
    with torch.no_grad():
        empty = mlp()
        empty[0].weight.zero_()
    calibrated(empty, ROWS)
    taken = empty[0].input.scale.item()
    assert empty[0].bias.scale.tolist() == [multiply(taken, 2.0**-7)] * 16


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_casts_leave_codes_and_steps_alone(dtype: torch.dtype) -> None:
    model = calibrated(mlp(), ROWS)
    before = bits(model.state_dict())
    model.to(dtype)
    assert bits(model.state_dict()) == before
    assert model[0].bias.dequantize().dtype == dtype
    assert model[0].added_bias().dtype == torch.float32
    assert model(ROWS.to(dtype)).dtype == dtype
    narrow = mlp().to(dtype)
    bias = narrow[0].bias.detach().float()
    calibrated(narrow, ROWS.to(dtype))
    assert narrow[0].bias.codes.tolist() == expected(narrow[0], bias)[0]
    assert narrow[0].bias.dtype == dtype


def test_states_come_back_and_other_formats_are_refused() -> None:
    model = calibrated(mlp(), ROWS)
    other = calibrated(mlp(), 2 * ROWS)
    assert not torch.equal(other[0].bias.codes, model[0].bias.codes)
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(ROWS), model(ROWS))
    names = [n for n in model.state_dict() if n.startswith("0.bias")]
    assert names == ["0.bias.codes", "0.bias.scale", "0.bias._extra_state"]
    short = calibrated(mlp(), ROWS, bs.Recipe(CHANNEL, INT8, bias="int24:sums"))
    with pytest.raises(
        RuntimeError,
        match=(r"0.bias has the format int24:sums, and the state was saved with int32"),
    ):
        short.load_state_dict(model.state_dict())
    again = copy.deepcopy(model)
    assert torch.equal(again(ROWS), model(ROWS))


@pytest.mark.parametrize("weight", ["gptq", "hqq", "absmax"])
def test_the_final_weight_counts_and_what_stands_before_it(weight: str) -> None:
    model = mlp()
    bias = model[0].bias.detach().clone()
    ledger = bs.calibrate(
        model, [ROWS], bs.Recipe(CHANNEL, INT8, bias="int32"), weight=weight,
        transform="smoothquant", progress=False, strict=True,
    )  # fmt: skip
    assert model[0].bias.codes.tolist() == expected(model[0], bias)[0]
    assert ledger["0"].bias == "int32:sums"


def test_layers_that_share_a_weight_have_biases_of_their_own() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    model[2].weight = model[0].weight
    biases = [model[i].bias.detach().clone() for i in (0, 2)]
    calibrated(model, torch.randn(16, 8), strict=True)
    assert model[0].weight is model[2].weight
    for layer, bias in zip((model[0], model[2]), biases, strict=True):
        assert layer.bias.codes.tolist() == expected(layer, bias)[0]


def test_the_pieces_by_themselves() -> None:
    model = mlp()
    bs.quantize_(model, bs.Recipe(CHANNEL, INT8))
    layer, kind = model[0], SumInteger(32)
    with pytest.raises(ValueError, match="QLinear: the scale of its input is dynamic"):
        quantize_bias(layer, kind)
    assert isinstance(layer.bias, nn.Parameter)
    layer.input.set_scale(torch.tensor([[0.25]]))
    assert step_of_input(layer.input).item() == 0.25
    weight = layer.weight.tensor
    steps = steps_of_outputs(weight.dequantize(), weight.qparams, weight.format)
    assert torch.equal(steps, layer.weight.scale.reshape(-1))
    assert torch.equal(steps_of_sums(layer), steps * 0.25)
    assert notes_on_bias(layer, kind) == []
    assert len(notes_on_bias(layer, SumInteger(2))) == 1
    quantize_bias(layer, kind)
    assert (layer.bias_bytes, layer.bias.nbytes) == (128, 128)
    plans = plan_layers(mlp(), STATIC)
    assert without_dynamic(plans, lambda plan: True) == plans
    assert all(
        "is dynamic" in each.bias_left  # type: ignore[union-attr]
        for each in without_dynamic(plans, lambda plan: False)
    )


@pytest.mark.slow
def test_compiled_and_exported() -> None:
    model = calibrated(mlp(), ROWS)
    torch.compiler.reset()
    run = torch.compile(model, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        assert torch.equal(run(ROWS), model(ROWS))
    exported = torch.export.export(model, (ROWS,))
    assert torch.equal(exported.module()(ROWS), model(ROWS))
    assert "0.bias.codes" in exported.state_dict


@pytest.mark.slow
def test_a_transformer() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48,
        vocab_size=60, max_position_embeddings=20,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.BertModel(config).eval()
    for name, parameter in model.named_parameters():
        if name.endswith(".bias"):
            nn.init.normal_(parameter)
    ids = torch.arange(24).reshape(2, 12)
    with torch.no_grad():
        plain = model(input_ids=ids).last_hidden_state
    floats = copy.deepcopy(model)
    recipe = bs.Recipe(CHANNEL, INT8, bias="int32", rules={"embeddings": CHANNEL})
    ledger = bs.calibrate(model, [{"input_ids": ids}], recipe, progress=False, strict=True)
    quantized = [e.name for e in ledger if e.bias]
    assert len(quantized) == 2 * 6 + 1
    for name in quantized:
        layer: Any = model.get_submodule(name)
        bias = floats.get_parameter(f"{name}.bias").detach()
        assert layer.bias.codes.tolist() == expected(layer, bias)[0]
    with torch.no_grad():
        assert (model(input_ids=ids).last_hidden_state - plain).abs().max() < 0.3
