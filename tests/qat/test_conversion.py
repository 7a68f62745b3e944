# SPDX-License-Identifier: BSD-3-Clause
"""The converted model has the bits of the trained one, and what is tied stays tied."""

import copy
import warnings

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.core.parse import CATALOG
from blockscale.qat.layers import QATLayer
from tests.support.qat_models import Mixed, batch, train
from tests.support.some import crossed

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


def convert(model: nn.Module) -> nn.Module:
    """`train` makes steps negative where a format has many levels: it may say so, and no more."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ANEW)
        return bs.convert(model)


FORMATS = (*CATALOG.values(), *SPELLED)
ANEW = (
    r"blockscale:(\n  \w+: scales of its (weight|input|output) were set again in training [^\n]*)+$"
)
LEARNED = [(fmt, learn) for fmt in FORMATS for learn in ("steps", "thresholds")]
SOME = [(CATALOG["int8_pow2"], "thresholds"), (CATALOG["nvfp4"], "steps"), (SPELLED[3], "steps")]


@pytest.mark.slow
@pytest.mark.some(12)
@pytest.mark.parametrize(
    ("fmt", "learn"),
    crossed(3, FORMATS, [None])
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
    assert convert(model) is model
    with torch.no_grad():
        assert torch.equal(run(), before)
    assert not any(isinstance(m, QATLayer) for m in model.modules())
    again = Mixed()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        bs.prepare_qat(again, recipe, learn=learn)
    again.load_state_dict(state)
    convert(again.eval())
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


def test_tied_weights_stay_tied():
    model = nn.ModuleDict({"a": nn.Embedding(12, 16), "b": nn.Linear(16, 12, bias=False)})
    model["b"].weight = model["a"].weight
    bs.prepare_qat(model, "int4:group16:fp32", learn="steps")
    assert model["a"].weight_quantizer is model["b"].weight_quantizer
    model["b"](model["a"](torch.arange(12))).square().mean().backward()
    assert model["a"].weight.grad is not None
    bs.convert(model)
    assert model["a"].qweight is model["b"].qweight
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


@pytest.mark.parametrize("training", [True, False])
def test_every_module_keeps_its_mode(training):
    """Also what stands where a batch norm was folded: an export refuses modules in training."""
    norms = nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4)
    model = nn.Sequential(*norms, nn.ReLU(), nn.Dropout(), nn.Flatten(), nn.Linear(4 * 36, 3))
    bs.prepare_qat(model, bs.Recipe("int8_channel", "int8:tensor:fp32"))
    model.train()(torch.randn(2, 3, 8, 8))
    bs.convert(model.train(training))
    assert {name: m.training for name, m in model.named_modules() if m.training != training} == {}
