"""Preparing and converting: same objects, same names, and the quantized model's own bits."""

import copy
import io
import warnings

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.core.catalog import CATALOG
from blockscale.qat.layers import QATLayer
from tests.qat.models import Conv1D, Mixed, batch, cnn, train

SPELLED = (
    "int8:tensor:pow2/ceil",
    "int4:group32:fp16",
    "int8:channel-1:fp32",
    "uint8:channel-1:fp32:asym",
    "int8:token:bf16:full",
    "e2m1:tile2x8:e8m0/even",
    "log4:group8:(uint8:tensor:fp32)",
    "int4:group32:fp32:stochastic",
)


def skipping(message: str = "blockscale"):
    return pytest.warns(UserWarning, match=message)


def input_format(fmt: str) -> str:
    """The same format where its block fits inputs of any rank, else dynamic int8."""
    block = bs.parse(fmt).block.name
    return "int8" if block in ("channel0",) or block.startswith("tile") else fmt


FORMATS = (*CATALOG.values(), *SPELLED)
LEARNED = [(fmt, learn) for fmt in FORMATS for learn in ("steps", "thresholds")]
SOME = [(CATALOG["int8_pow2"], "thresholds"), (CATALOG["nvfp4"], "steps"), (SPELLED[3], "steps")]


@pytest.mark.parametrize(
    ("fmt", "learn"),
    [(fmt, None) for fmt in FORMATS]
    + SOME
    + [pytest.param(*case, marks=pytest.mark.slow) for case in LEARNED if case not in SOME],
)
def test_the_quantized_model_has_the_bits_of_the_trained_one(fmt, learn):
    model = Mixed()
    recipe = bs.Recipe(weight=fmt, input=input_format(fmt), output=input_format(fmt))
    asym = bs.parse(fmt).asym and learn
    with skipping("not learned") if asym else warnings.catch_warnings():
        assert bs.prepare_qat(model, recipe, learn=learn) is model
    assert len(bs.qat.ledger(model).quantized) == 5
    train(model, [batch(0), batch(1)])
    model.eval()
    x = batch(2)

    def run():
        torch.manual_seed(7)  # inputs in a stochastic format draw
        return model(x).detach()

    with torch.no_grad():
        before = run()
        with bs.use("reference"):
            exact = run()
    with bs.use("reference"):
        simulated = run()  # floats and fake quantizers: what the gradients are of
    assert before.isfinite().all()
    assert torch.equal(exact, simulated)
    state = copy.deepcopy(model.state_dict())
    assert bs.convert(model) is model
    with torch.no_grad():
        assert torch.equal(run(), before)
    assert not any(isinstance(m, QATLayer) for m in model.modules())
    again = Mixed()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bs.prepare_qat(again, recipe, learn=learn)
    again.load_state_dict(state)
    bs.convert(again.eval())
    torch.manual_seed(7)
    with torch.no_grad():
        assert torch.equal(again(x), before)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_half_precision(dtype):
    model = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 8)).to(dtype)
    bs.prepare_qat(model, bs.Recipe("mxfp4", "int8", "mxfp8"))
    x = torch.randn(4, 32, dtype=dtype)
    train(model, [x, x])
    model.eval()
    assert model(x).dtype == dtype
    with bs.use("reference"):
        simulated = model(x).detach()
        with torch.no_grad():
            assert torch.equal(model(x), simulated)
            bs.convert(model)
            assert torch.equal(model(x), simulated)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Conv1d(8, 8, 3, padding="same", groups=2),
        lambda: nn.Conv1d(8, 8, 3, padding=2, dilation=2, padding_mode="replicate"),
        lambda: nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0), padding_mode="circular"),
        lambda: nn.Conv2d(4, 8, 3, groups=4, bias=False),
    ],
)
@pytest.mark.parametrize("single", [False, True])
def test_convolutions_of_every_sort(make, single):
    model = nn.Sequential(make())
    like = model[0]
    bs.prepare_qat(model, bs.Recipe("int8_channel", "int8", "int8"), observer="min_max")
    x = torch.randn([2] * (not single) + [like.in_channels] + [9] * (like.weight.ndim - 2))
    model(x)
    model.eval()
    with bs.use("reference"):
        simulated = model(x).detach()
        bs.convert(model)
        assert torch.equal(model(x), simulated)


def test_nothing_of_the_model_but_its_class_changes():
    model = Mixed()
    plain = (int, float, str, bool, tuple, type(None))

    def settings():
        return {
            (name, key): value
            for name, module in model.named_modules()
            for key, value in vars(module).items()
            if isinstance(value, plain) and not key.startswith("_norm") and "quantiz" not in name
        }

    calls = []
    model.last.register_forward_hook(lambda *_: calls.append("hook"))
    model.embedding.weight.requires_grad_(False)
    model.drop.eval()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    before, objects = settings(), dict(model.named_modules())
    parameters = dict(model.named_parameters())
    names = set(model.state_dict())
    bs.prepare_qat(model, bs.Recipe("int8", "int8"))
    after = settings()
    assert {k: after[k] for k in before} == before
    assert all(dict(model.named_modules())[name] is module for name, module in objects.items())
    found = dict(model.named_parameters())
    assert all(found[name] is parameter for name, parameter in parameters.items())
    assert names <= set(model.state_dict())
    weight = model.last.weight.clone()
    model(batch()).square().mean().backward()
    optimizer.step()
    assert calls == ["hook"]
    assert not torch.equal(weight, model.last.weight)
    bs.convert(model)
    model(batch())
    assert calls == ["hook", "hook"]
    assert model.drop.p == 0.25
    assert not model.drop.training


def test_layers_keep_what_they_are():
    model = cnn()
    bs.prepare_qat(model, "int8")
    assert isinstance(model[0], nn.Conv2d)
    assert isinstance(model[1], nn.BatchNorm2d)
    assert isinstance(model[7], nn.Linear)


@pytest.mark.parametrize("by_frequency", [False, True])
def test_an_embedding_has_the_gradients_of_the_float_one(by_frequency):
    float_model = nn.Sequential(
        nn.Embedding(6, 8, padding_idx=2, scale_grad_by_freq=by_frequency), nn.Linear(8, 2)
    )
    model = copy.deepcopy(float_model)
    bs.prepare_qat(model, bs.Recipe(rules={"0": "int8:token:fp32"}, skip=["1"]))
    indices, gradient = torch.tensor([[1, 2, 1], [2, 5, 1]]), torch.randn(2, 3, 2)
    for each in (float_model, model):
        each(indices).backward(gradient)
    found, wanted = (m[0].weight.grad for m in (model, float_model))
    assert torch.equal(found, wanted)
    assert torch.equal(found[2], torch.zeros(8))


def test_a_float_state_loads_and_learned_steps_begin_again():
    float_model = cnn()
    model = cnn()
    bs.prepare_qat(model, bs.Recipe("int4:channel0:fp32", "int8"), learn="steps")
    model.load_state_dict(float_model.state_dict())
    expected = bs.prepare_qat(
        copy.deepcopy(float_model), bs.Recipe("int4:channel0:fp32", "int8"), learn="steps"
    )
    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(model(x), expected(x))
    for name, parameter in expected.named_parameters():
        assert torch.equal(parameter, model.get_parameter(name)), name


def test_a_state_in_another_format_is_refused():
    model, other = cnn(), cnn()
    bs.prepare_qat(model, "int8")
    bs.prepare_qat(other, "int4:channel0:fp32")
    with pytest.raises(ValueError, match="int4:channel0:fp32, the state in int8"):
        other.load_state_dict(model.state_dict())


def test_training_goes_on_from_a_checkpoint():
    recipe = bs.Recipe("int4:group16:fp32", "int8", "uint8")
    x = [torch.randn(4, 3, 8, 8) for _ in range(5)]
    with skipping("not learned"):
        model = bs.prepare_qat(cnn(), recipe, learn={"weight": "steps", "output": "steps"})
    train(model, x[:2])
    bs.qat.switch(model, observe=False, freeze_norms=True)
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    with skipping("not learned"):
        again = bs.prepare_qat(cnn(), recipe, learn={"weight": "steps", "output": "steps"})
    again.load_state_dict(torch.load(io.BytesIO(buffer.getvalue()), weights_only=True))
    assert train(again, x[2:]) == train(model, x[2:])
    copied = copy.deepcopy(again)
    assert copied[0].norm is copied[1]
    assert train(copied, x[:2]) == train(again, x[:2])


def test_tied_weights_stay_tied():
    model = nn.ModuleDict({"a": nn.Embedding(12, 16), "b": nn.Linear(16, 12, bias=False)})
    model["b"].weight = model["a"].weight
    bs.prepare_qat(model, "int4:group16:fp32", learn="steps")
    assert model["a"].weight_quantizer is model["b"].weight_quantizer
    model["b"](model["a"](torch.arange(12))).square().mean().backward()
    assert model["a"].weight.grad is not None
    bs.convert(model)
    assert model["a"].weight is model["b"].weight
    assert bs.qat.ledger(model)["b"].bytes_after == 0


def test_a_layer_under_two_names():
    layer = nn.Linear(8, 8)
    model = nn.Sequential(layer, nn.ReLU(), layer)
    bs.prepare_qat(model, bs.Recipe("int8", "int8"))
    x = torch.randn(2, 8)
    model(x)
    with torch.no_grad():
        before = model.eval()(x)
    bs.convert(model)
    assert model[0] is model[2]
    assert torch.equal(model(x), before)


# --- what is refused, and said


def test_skips_are_said_once_and_strict_raises_before_any_change():
    model = nn.Sequential(nn.Linear(8, 8), nn.ConvTranspose1d(2, 2, 1))
    with pytest.raises(bs.SkippedError, match="no quantized ConvTranspose1d"):
        bs.prepare_qat(model, "int8", strict=True)
    assert type(model[0]) is nn.Linear
    with pytest.warns(UserWarning, match="no quantized ConvTranspose1d") as told:
        bs.prepare_qat(model, "int8")
    assert len(told) == 1
    ledger = bs.qat.ledger(model)
    assert [e.status for e in ledger if e.name in ("0", "1")] == ["quantized", "skipped"]
    bs.convert(model)
    assert bs.qat.ledger(model)["0"].bytes_after == 8 * 8 + 4 + 8 * 4


def test_sparse_embeddings_are_skipped_with_what_is_tied_to_them():
    model = nn.ModuleDict(
        {"a": nn.Embedding(4, 8, sparse=True), "b": nn.Linear(8, 4), "c": nn.Linear(8, 8)}
    )
    model["b"].weight = model["a"].weight
    with pytest.warns(UserWarning, match="sparse gradients") as told:
        bs.prepare_qat(model, "int8")
    assert "tied to a layer that cannot be trained so" in str(told[0].message)
    assert type(model["b"]) is nn.Linear
    assert isinstance(model["c"], QATLayer)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: bs.prepare_qat(nn.Linear(2, 2), "int8"), "wrap it"),
        (lambda m: bs.prepare_qat(bs.prepare_qat(m, "int8"), "int8"), "already prepared"),
        (lambda m: bs.prepare_qat(m, "int8", learn="lsq"), "one of steps, thresholds"),
        (lambda m: bs.prepare_qat(m, "int8", learn={"inputs": "steps"}), "no part 'inputs'"),
        (lambda m: bs.prepare_qat(m, bs.Recipe("int8", "int8"), observer="best"), "0: no observer"),
        (lambda m: bs.prepare_qat(m, "int8", fuse="yes"), "fuse is 'auto'"),
        (lambda m: bs.prepare_qat(m, "int8", fuse=[("0", "9")]), "expected names"),
        (lambda m: bs.prepare_qat(m, "int8", fuse=[("0", "7")]), "no pair that can be folded"),
        (lambda m: bs.prepare_qat(m, "int8", fuse=[("0", "4")]), "has 16 features"),
        (lambda m: bs.prepare_qat(m, "int8", fuse=[("0", "1"), ("0", "1")]), "another pair has"),
        (
            lambda m: bs.prepare_qat(m, bs.Recipe("int8", skip=["0"]), fuse=[("0", "1")]),
            "the convolution is not quantized",
        ),
        (bs.convert, "nothing is prepared"),
        (bs.qat.ledger, "has no ledger"),
        (bs.qat.freeze, "nothing is prepared"),
        (lambda m: bs.convert(nn.Sequential(bs.prepare_qat(m, "int8"))), "inside or around it"),
        (
            lambda m: bs.convert(bs.prepare_qat(m, "int8").append(copy.deepcopy(m[7]))),
            "8 is not in the model's ledger",
        ),
        (
            lambda m: bs.convert(bs.prepare_qat(m, bs.Recipe("int8", "int8"))),
            "0: int8:tensor:fp32: this scale is static and has seen no data",
        ),
        (
            lambda m: bs.prepare_qat(m, bs.Recipe("int8", "int8"), learn="steps").eval()(
                torch.ones(1, 3, 8, 8)
            ),
            "has seen no data",
        ),
    ],
)
def test_errors(call, message):
    model = cnn()
    with pytest.raises(ValueError, match=message):
        call(model)


def test_a_failed_prepare_changes_nothing():
    model = cnn()
    with pytest.raises(ValueError, match="no observer"):
        bs.prepare_qat(model, bs.Recipe("int8", "int8"), observer="best")
    assert [type(m) for m in model] == [type(m) for m in cnn()]


def test_conv1d_of_transformers_is_what_the_test_model_stands_for():
    pytest.importorskip("transformers")
    from transformers.pytorch_utils import Conv1D as Real

    real, ours = Real(6, 4), Conv1D(6, 4)
    ours.load_state_dict(real.state_dict())
    x = torch.randn(3, 4)
    assert torch.equal(real(x), ours(x))
    for layer in (real, ours):
        model = bs.prepare_qat(nn.Sequential(layer), bs.Recipe("int8_channel", "int8"))
        assert type(model[0]).__name__ == "QATTransposedLinear"
