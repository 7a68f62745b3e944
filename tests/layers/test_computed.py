# SPDX-License-Identifier: BSD-3-Clause
"""Computed weights are folded when a model is quantized, calibrated or loaded, and only then."""

import copy
import warnings

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize

import blockscale as bs
from blockscale.layers.computed import computed_in, computes, folded, plain
from blockscale.layers.conv import QConv
from blockscale.layers.kinds import QLinear
from tests.support.computed_models import LAYERS, Doubled, Noisy, old, parametrized

X = torch.randn(3, 8)


def made(how: str) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(LAYERS[how](), nn.ReLU(), nn.Linear(6, 4))


def state(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


@pytest.mark.some(2)
@pytest.mark.parametrize("how", LAYERS)
def test_quantized_saved_and_loaded(how: str, tmp_path) -> None:
    model = made(how).eval()
    parameters = list(model.parameters())
    codes = bs.quantize(model[0].weight.detach(), "int4:group4:fp32")
    ledger = bs.quantize_(model, "int4:group4:fp32", strict=True)
    assert type(model[0]) is QLinear
    assert torch.equal(model[0].qweight.codes, codes.packed)
    assert not model[0]._forward_pre_hooks
    assert ledger["0"].details == f"{how.removeprefix('old ')} folded into the weight"
    assert ledger.bytes_before == sum(p.nbytes for p in parameters)
    assert sum(entry.elements for entry in ledger) == sum(p.numel() for p in parameters)
    y = model(X)
    bs.save(model, tmp_path / "it.safetensors")
    assert torch.equal(bs.load(made(how).eval(), tmp_path / "it.safetensors")(X), y)


@pytest.mark.parametrize("how", LAYERS)
def test_what_is_not_quantized_goes_on_computing(how: str) -> None:
    model = made(how).eval()
    before, y = state(model), model(X)
    ledger = bs.quantize_(model, bs.Recipe("int8", skip=["0"]))
    assert ledger["0"].status == "kept"
    model[2] = made(how)[2]  # the float one again
    assert set(model.state_dict()) == set(before)
    assert torch.equal(model(X), y)


def test_whatever_is_raised_the_model_is_as_it_was() -> None:
    for how in LAYERS:
        model = made(how)
        first, before = model[0], state(model)
        with pytest.raises(bs.SkippedError):
            bs.quantize_(model, bs.Recipe("int8", rules={"nothing": "int4"}), strict=True)
        with pytest.raises(KeyboardInterrupt), folded(model, lambda name: True):
            assert model[0] is not first
            raise KeyboardInterrupt
        assert model[0] is first
        assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_one_layer_in_two_places_is_folded_once() -> None:
    layer = LAYERS["weight_norm"]()
    model = nn.ModuleDict({"a": layer, "b": layer})
    bs.quantize_(model, "int8", strict=True)
    assert model["a"] is model["b"]
    assert type(model["a"]) is QLinear


def test_hooks_of_users_stay_and_their_handles_remove_them() -> None:
    model = nn.Sequential(old(nn.utils.weight_norm))
    seen: list[int] = []
    handle = model[0].register_forward_pre_hook(lambda *_: seen.append(1))
    bs.quantize_(model, "int8")
    model(X)
    assert seen == [1]
    handle.remove()
    model(X)
    assert seen == [1]


def test_a_random_one_is_left_with_a_reason() -> None:
    model = nn.Sequential(parametrized(Noisy()))
    with pytest.warns(UserWarning, match="its weight is computed .* random"):
        bs.quantize_(model, "int8")
    assert parametrize.is_parametrized(model[0])


def test_calibration_sees_the_weight_that_is_computed() -> None:
    for how in ("weight_norm", "old weight_norm", "old spectral_norm"):
        model = made(how).eval()
        float_model = copy.deepcopy(model) if "old" not in how else made(how).eval()
        data = [torch.randn(16, 8) for _ in range(4)]
        recipe = bs.Recipe("int8_channel", input="int8")
        ledger = bs.calibrate(model, data, recipe, weight="gptq", progress=False, strict=True)
        assert "folded" in ledger["0"].details
        error = (model(data[0]) - float_model(data[0])).abs().max()
        assert error < 0.02 * float_model(data[0]).abs().max()


def test_training_leaves_them() -> None:
    model = made("spectral_norm")
    with pytest.warns(UserWarning, match="its weight is computed .* random or trained"):
        bs.prepare_qat(model, "int8")
    assert parametrize.is_parametrized(model[0])


def test_the_positions_of_wav2vec2_into_a_model_without_weights(tmp_path) -> None:
    def model() -> nn.Module:
        torch.manual_seed(0)
        conv = nn.Conv1d(16, 16, 4, padding=2, groups=4)
        return nn.Sequential(nn.utils.parametrizations.weight_norm(conv, dim=2)).eval()

    quantized = model()
    bs.quantize_(quantized, "mxfp8", strict=True)
    assert type(quantized[0]) is QConv
    bs.save(quantized, tmp_path / "it.safetensors")
    with torch.device("meta"):
        empty = model()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bs.load(empty, tmp_path / "it.safetensors")
    x = torch.randn(2, 16, 9)
    assert torch.equal(empty(x), quantized(x))


# A layer that computes its weight -> a plain one, with the value that evaluation computes.


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("how", LAYERS)
def test_it_gives_what_evaluation_gives_and_changes_nothing(how: str, training: bool) -> None:
    torch.manual_seed(0)
    layer = LAYERS[how]()
    x = torch.randn(3, 8)
    y = layer.eval()(x)
    layer.train(training)
    state = {name: value.clone() for name, value in layer.state_dict().items()}
    assert computes(layer)
    (found,) = computed_in(layer)
    made = plain(layer, [found])
    assert found.how == how.removeprefix("old ")
    assert (type(made), made.training) == (nn.Linear, training)
    assert set(made.state_dict()) == {"weight", "bias"}
    assert torch.equal(made(x), y)
    assert made.bias is layer.bias
    assert not computes(made)
    now = layer.state_dict()
    assert set(now) == set(state)
    assert all(
        torch.equal(state[name], now[name]) for name in state
    )  # no step of a power iteration
    assert torch.equal(layer.eval()(x), y)


def test_several_tensors_of_one_layer() -> None:
    layer = parametrized(Doubled())
    parametrize.register_parametrization(layer, "bias", Doubled())
    made = plain(layer, computed_in(layer))
    assert torch.equal(made.bias, layer.bias)
    assert torch.equal(made.weight, layer.weight)


def test_a_random_one_has_no_value_to_keep() -> None:
    assert computes(parametrized(Noisy()))
    assert computed_in(parametrized(Noisy())) == []
    assert computed_in(nn.Linear(2, 2)) == []


def test_recurrent_layers_list_the_weight() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layer = nn.utils.weight_norm(nn.LSTM(4, 5), "weight_hh_l0")
    x = torch.randn(3, 2, 4)
    expected = layer(x)[0]
    made = plain(layer, computed_in(layer))
    assert made._flat_weights[1] is made.weight_hh_l0
    assert torch.equal(made(x)[0], expected)


def test_what_is_frozen_stays_so() -> None:
    layer = LAYERS["weight_norm"]().requires_grad_(False)
    assert not plain(layer, computed_in(layer)).weight.requires_grad
    layer = LAYERS["weight_norm"]()
    assert plain(layer, computed_in(layer)).weight.requires_grad
