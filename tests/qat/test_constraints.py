# SPDX-License-Identifier: BSD-3-Clause
"""What each constraint costs: against models that are calibrated and compared by hand."""

import copy
import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import blockscale as bs
from blockscale.calibration.comparison import Comparison
from blockscale.core.arithmetic.sums import SumInteger
from blockscale.layers.layer import QBias
from blockscale.layers.plan import Plan, plan_layers
from blockscale.layers.store import QWeight
from blockscale.qat.constraints import BiasQuantizer, settle_biases
from tests.support.layers_bias import expected
from tests.support.qat_models import Mixed, batch, cnn, train
from tests.support.some import crossed

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


@pytest.mark.slow
@pytest.mark.some(5)
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
    lines = str(found).splitlines()
    assert len(lines) == 1 + len(found.base)
    assert lines[0].split("  ")[-1] == "weight bits"
    assert found.to_dict()["costs"]["0"].keys() == {"weight scale 2^n", "weight bits"}


@pytest.mark.slow
def test_a_format_alone_is_a_recipe() -> None:
    spelled = "int4:channel0:pow2/ceil"
    assert bs.qat.constraint_costs(model(), BATCHES, spelled) == bs.qat.constraint_costs(
        model(), BATCHES, bs.Recipe(spelled)
    )


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="none of the constraints that can be lifted"):
        bs.qat.constraint_costs(model(), BATCHES, bs.Recipe("e4m3:tensor:fp32"))
    with pytest.raises(ValueError, match="pass a list, not a generator"):
        bs.qat.constraint_costs(model(), iter(BATCHES), RECIPE)


# Biases in training: the bits of the converted layer, straight-through gradients, folding.

INT8, CHANNEL = "int8:tensor:fp32", "int8:channel0:fp32"
STATIC = bs.Recipe(CHANNEL, INT8, bias="int32")
COARSE = bs.Recipe(CHANNEL, INT8, bias="int5:sums")
IMAGES = [torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(i)) for i in range(4)]


def prepared(recipe: Any = STATIC, model: nn.Module | None = None, **more: Any) -> Any:
    torch.manual_seed(0)
    return bs.prepare_qat(cnn() if model is None else model, recipe, **more)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bias", "learn"),
    crossed(
        3,
        ["int32", "int6:sums", "int8", "int4:tensor:fp32:stochastic"],
        [None, "steps", {"input": "thresholds"}],
    ),
)
def test_convert_changes_no_bit(bias: str, learn: Any) -> None:
    model = prepared(bs.Recipe(CHANNEL, INT8, bias=bias), learn=learn)
    train(model, IMAGES)
    model.eval()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # 6 bits saturate
        before = model(IMAGES[0])
        bs.convert(model)
        assert torch.equal(model(IMAGES[0]), before)
    kind = QBias if "sums" in str(bs.Recipe(bias=bias).bias) else QWeight
    assert [type(model[i].quantized_bias) for i in (0, 3, 7)] == [kind] * 3
    entries = bs.qat.ledger(model)
    assert [e.bias for e in entries if e.status == "quantized"] == [
        str(bs.Recipe(bias=bias).bias)
    ] * 3


@pytest.mark.slow
def test_codes_are_those_of_the_folded_bias() -> None:
    """The convolution before a batch norm may have had none: the second one here."""
    model = prepared()
    train(model, IMAGES)
    model.eval()
    folded = {i: model[i].folded()[1].detach() for i in (0, 3)}
    folded[7] = model[7].bias.detach()
    bs.convert(model)
    for i, bias in folded.items():
        assert model[i].bias.codes.tolist() == expected(model[i], bias)[0]


def test_training_multiplies_by_what_evaluation_does() -> None:
    """With gradients it is the same linear map in floats: equal under the reference, so compared
    with the deployed layer's own bias."""
    model = prepared(COARSE, nn.Sequential(nn.Linear(6, 5)))
    layer, x = model[0], torch.randn(9, 6)
    with torch.no_grad():
        layer.bias.mul_(0.1)
    model.train()
    y = model(x)
    quantized = layer.as_quantized()
    values = layer.input_quantizer(x), quantized.weight.dequantize()
    assert torch.equal(y, F.linear(*values, quantized.added_bias()))
    assert not torch.equal(quantized.added_bias(), layer.bias)


@pytest.mark.parametrize("kind", [SumInteger(4), SumInteger(32)])
def test_gradients_pass_where_nothing_saturates(kind: SumInteger) -> None:
    quantizer = BiasQuantizer(kind, 0)
    bias = torch.tensor([0.2, -3.4, 7.4, 7.6, -8.0, 1e30, float("inf"), float("nan")])
    bias.requires_grad_()
    values = quantizer(bias, lambda: torch.ones(8, requires_grad=True))
    limit = kind.largest
    assert values[:3].tolist() == [0, -3, 7]
    assert values[3:5].tolist() == [min(8, limit), max(-8, -limit)]
    assert values[7] == 0
    values.sum().backward()
    inside = [1.0] * 3 + [float(limit > 8)] * 2 + [0.0] * 3
    assert bias.grad.tolist() == inside


def test_a_format_of_its_own_has_the_gradient_of_fake_quantize() -> None:
    bias = torch.randn(12, requires_grad=True)
    BiasQuantizer(bs.parse("mxfp4"), 0)(bias, None).square().sum().backward()
    other = bias.detach().clone().requires_grad_()
    bs.fake_quantize(other, "mxfp4").square().sum().backward()
    assert torch.equal(bias.grad, other.grad)


def test_stochastic_numbers_are_new_in_training_and_fixed_in_evaluation() -> None:
    quantizer = BiasQuantizer(bs.parse("int4:tensor:fp32:stochastic"), 7)
    bias = torch.randn(300)
    assert not torch.equal(quantizer(bias, None), quantizer(bias, None))
    state = torch.random.get_rng_state()
    fixed = quantizer(bias, None, fixed=True)
    assert torch.equal(state, torch.random.get_rng_state())
    assert torch.equal(quantizer.eval()(bias, None), fixed)
    assert torch.equal(fixed, bs.fake_quantize(bias, quantizer.format, seed=7))


@pytest.mark.slow
def test_a_bias_learns_through_its_codes() -> None:
    """It crosses steps that are coarse, which a gradient of the rounding itself never would."""
    model = prepared(bs.Recipe(CHANNEL, INT8, bias="int8:sums"), nn.Sequential(nn.Linear(4, 3)))
    model.train()
    x, optimizer = torch.rand(64, 4) * 100, torch.optim.SGD(model.parameters(), 1e-5)
    wanted = x @ torch.ones(4, 3) + torch.tensor([20.0, -20.0, 0.0])
    losses = []
    for _ in range(60):
        optimizer.zero_grad()
        loss = (model(x) - wanted).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 10
    assert model[0].bias.grad.abs().min() > 0


@pytest.mark.slow
def test_with_batch_statistics_the_rounding_of_the_folded_bias_is_added() -> None:
    recipe = bs.Recipe(CHANNEL, INT8, bias="int3:tensor:fp32")
    model, plain = prepared(recipe), prepared(bs.Recipe(CHANNEL, INT8))
    for each in (model, plain):
        each.train()
    y, without = (net[1](net[0](IMAGES[0])) for net in (model, plain))
    bias = model[0].folded()[1]
    error = bs.fake_quantize(bias, recipe.bias) - bias
    assert error.abs().max() > 0
    assert torch.equal(y, without + error.reshape(-1, 1, 1))
    for net, out in ((model, y), (plain, without)):
        out.square().sum().backward()
        assert net[1].bias.grad.abs().min() > 0


@pytest.mark.slow
def test_checkpoints_compute_the_same_again() -> None:
    recipe = bs.Recipe(CHANNEL, INT8, bias="int4:tensor:fp32:stochastic")
    plain, again = prepared(recipe), prepared(recipe)
    for model, run in (
        (plain, lambda m, x: m(x)),
        (again, lambda m, x: checkpoint(m, x, use_reentrant=False)),
    ):
        torch.manual_seed(5)
        model.train()
        run(model, IMAGES[0]).square().sum().backward()
    for name, parameter in plain.named_parameters():
        assert torch.equal(parameter.grad, again.get_parameter(name).grad), name


@pytest.mark.slow
def test_every_layer_in_every_state() -> None:
    """Embedding, folded and unfolded convolutions, GPT-2's Conv1D: switched, saved, converted."""
    model = prepared(STATIC, Mixed())
    keys = list(model.state_dict())
    with_floats = prepared(bs.Recipe(CHANNEL, INT8), Mixed())
    assert keys == list(with_floats.state_dict())  # a bias has no state of its own in training
    train(model, [batch(i) for i in range(3)])
    bs.qat.switch(model, quantize=False)
    model.eval()
    y = model(batch())
    bs.qat.switch(model, quantize=True, observe=False, freeze_norms=True)
    train(model, [batch(7)])
    model.eval()
    with torch.no_grad():
        y = model(batch())
        other = prepared(STATIC, Mixed()).eval()
        other.load_state_dict(model.state_dict())
        assert torch.equal(other(batch()), y)
        bs.convert(model)
        assert torch.equal(model(batch()), y)
    for name in ("conv1", "conv2", "transposed", "last"):
        assert isinstance(model.get_submodule(name).bias, QBias)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "more", "words"),
    [
        (STATIC, {"observer": None}, "its input is dynamic"),
        (bs.Recipe(CHANNEL, bias="int32"), {}, "its input has no format"),
        (bs.Recipe("mxfp4", INT8, bias="int32"), {}, "whose codes are n"),
    ],
)
def test_what_cannot_be_stays_in_float(recipe: Any, more: Any, words: str) -> None:
    """Also the bias that folding gives to a convolution that has none."""
    model = cnn()
    before = [type(each) for each in model]
    with pytest.raises(bs.SkippedError, match=rf"3\.bias \(bias of Conv2d\): .*{words}"):
        bs.prepare_qat(model, recipe, strict=True, **more)
    assert [type(each) for each in model] == before
    with pytest.warns(UserWarning, match=rf"3\.bias: skipped, bias left in float: .*{words}"):
        bs.prepare_qat(model, recipe, **more)
    assert all(model[i].bias_quantizer is None for i in (0, 3, 7))
    assert [e.name for e in bs.qat.ledger(model).skipped] == ["0.bias", "3.bias", "7.bias"]
    train(model, IMAGES[:2])
    model.eval()
    bs.convert(model)
    assert isinstance(model[3].bias, nn.Parameter)


def test_without_folding_there_is_no_bias_to_quantize() -> None:
    model = prepared(STATIC, fuse=None, strict=True)
    assert model[3].bias_quantizer is None
    assert model[0].bias_quantizer is not None


@pytest.mark.slow
def test_a_learned_input_scale_is_static_without_an_observer() -> None:
    model = prepared(STATIC, learn="steps", observer=None, strict=True)
    train(model, IMAGES, 1e-4)
    bias = model[7].bias.detach().clone()
    bs.convert(model.eval())
    assert model[7].bias.codes.tolist() == expected(model[7], bias)[0]


def test_learn_knows_no_bias() -> None:
    with pytest.raises(
        ValueError, match=r"learn: unknown part 'bias'; choose from weight, input, output$"
    ):
        prepared(STATIC, learn={"bias": "steps"})


def test_convert_warns_once_of_what_saturates() -> None:
    model = prepared()
    train(model, IMAGES)
    with torch.no_grad():
        model[7].bias[2] = 1e9
    with pytest.warns(UserWarning, match=r"^blockscale:\n  7: 1 of 10 biases .* saturate") as found:
        bs.convert(model.eval())
    assert len(found) == 1
    assert "saturate" in bs.qat.ledger(model)["7"].notes[0]
    assert model[7].bias.codes[2] == 2**31 - 1


def test_what_is_settled() -> None:
    plans = plan_layers(cnn(), STATIC)
    found = settle_biases(plans, {"3"}, lambda plan: plan.name != "0")
    kept = {each.name: each for each in found if isinstance(each, Plan)}
    assert {n: p.quantizes_bias for n, p in kept.items()} == {"0": False, "3": True, "7": True}
    assert [p.gets_bias for p in kept.values()] == [False, True, False]
    assert "is dynamic" in kept["0"].bias_left


def test_autocast_keeps_biases_in_float32() -> None:
    model = prepared(STATIC, nn.Sequential(nn.Linear(6, 5)))
    seen: list[Tensor] = []
    model[0].bias_quantizer.register_forward_hook(lambda m, a, y: seen.append(y))
    with torch.autocast("cpu", torch.bfloat16):
        assert model.train()(torch.randn(3, 6)).dtype == torch.bfloat16
    assert seen[0].dtype == torch.float32
