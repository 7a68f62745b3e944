# SPDX-License-Identifier: BSD-3-Clause
"""torch.compile, autocast, activation checkpointing, stochastic rounding, functional tools."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import blockscale as bs
from tests.support.qat_models import cnn, train

RECIPES = {
    "integers, dynamic": (bs.Recipe("int4:group16:fp32", "int8:token:fp32"), None),
    "mx": (bs.Recipe("mxfp4", "mxfp8", "mxfp8"), None),
    "steps": (bs.Recipe("int4:channel0:fp32", "int8", "int8"), "steps"),
    "thresholds": (bs.Recipe("int8:tensor:pow2/floor", "int8:tensor:pow2/floor"), "thresholds"),
    "static": (bs.Recipe("int8_channel", "int8"), None),
    "biases": (bs.Recipe("int8_channel", "int8", bias="int32"), None),
    "biases, steps": (bs.Recipe("int8_channel", "int8", bias="int32"), "steps"),
}


# Said by torch about torch, while dynamo traces an autograd.Function or a break in the graph
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
]


@pytest.fixture(autouse=True)
def _fresh():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.slow
def test_compiled():
    """Weights with learned steps, dynamic inputs, static outputs; the whole matrix is slow."""
    model = nn.Sequential(nn.Linear(16, 8), nn.ReLU())
    recipe = bs.Recipe("int4:channel0:fp32", "mxfp8", "int8")
    bs.prepare_qat(model, recipe, learn={"weight": "steps"})
    x = [torch.randn(4, 16) for _ in range(2)]
    train(model, x[:1])
    bs.qat.switch(model, observe=False)
    other = copy.deepcopy(model)
    run = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert train(run, x) == train(other, x)
    run.eval()
    other.eval()
    with torch.no_grad():
        assert torch.equal(run(x[0]), other(x[0]))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:blockscale")
def test_compiled_scales_begin_and_grow():
    """Rows of zeros get values, and a batch of another size comes: a program without a branch."""
    model = nn.Sequential(nn.Linear(16, 8), nn.ReLU())
    with torch.no_grad():
        model[0].weight[4:] = 0.0
    recipe = bs.Recipe("int8:channel0:pow2/ceil", "int8:channel-1:fp32")
    bs.prepare_qat(model, recipe, learn={"weight": "thresholds", "input": "steps"})
    x = [torch.randn(4, 16) for _ in range(3)]
    x[0][:, 3] = 0.0
    train(model, x[:1], 0.0)
    weight, taken = (model[0].quantizers()[i].learned for i in (0, 1))
    assert (int(weight.waiting.sum()), int(taken.waiting.sum())) == (4, 1)
    with torch.no_grad():
        model[0].weight[5] = 1.0
    x[2] *= 50
    other = copy.deepcopy(model)
    run = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert train(run, x[1:], 0.0) == train(other, x[1:], 0.0)
    for ours, theirs in zip(model.buffers(), other.buffers(), strict=True):
        assert torch.equal(ours, theirs)
    assert (int(weight.waiting.sum()), int(taken.waiting.sum())) == (3, 0)
    assert int(taken.grew) == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_compiled_without_a_graph_break(name):
    recipe, learn = RECIPES[name]
    model = bs.prepare_qat(cnn(), recipe, learn=learn)
    x = [torch.randn(4, 3, 8, 8) for _ in range(3)]
    train(model, x[:1])  # learned scales begin, observers see
    bs.qat.switch(model, observe=False)
    other = copy.deepcopy(model)
    run = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert train(run, x) == train(other, x)
    run.eval()
    other.eval()
    with torch.no_grad():
        assert torch.equal(run(x[0]), other(x[0]))


@pytest.mark.slow
def test_compiled_while_observers_look():
    """A graph breaks at each observer; it is the same model still."""
    model = bs.prepare_qat(cnn(), bs.Recipe("int8", "int8"))
    other = copy.deepcopy(model)
    x = [torch.randn(4, 3, 8, 8) for _ in range(2)]
    assert train(torch.compile(model, backend="aot_eager"), x) == train(other, x)
    ours, theirs = (m[0].input_quantizer.stored.scale for m in (model, other))
    assert torch.equal(ours, theirs)


@pytest.mark.slow
def test_compiled_by_inductor():
    model = bs.prepare_qat(cnn(), bs.Recipe("mxfp4", "int8"), learn="steps")
    x = [torch.randn(4, 3, 8, 8) for _ in range(3)]
    train(model, x[:1])
    other = copy.deepcopy(model)
    assert train(torch.compile(model, fullgraph=True), x) == pytest.approx(
        train(other, x), rel=1e-3
    )


@pytest.mark.some(4)
@pytest.mark.parametrize("name", RECIPES)
def test_autocast_gives_what_float_layers_give(name):
    recipe, learn = RECIPES[name]
    model = bs.prepare_qat(cnn(), recipe, learn=learn)
    x = torch.randn(4, 3, 8, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = model(x)
        assert y.dtype == torch.bfloat16
        loss = y.float().square().mean()
    loss.backward()
    assert all(p.grad is not None and bool(p.grad.isfinite().all()) for p in model.parameters())
    assert all(p.grad.dtype == torch.float32 for p in model.parameters())
    torch.testing.assert_close(y.float(), model(x), rtol=0.2, atol=0.2)
    model.eval()
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        before = model(x)
        bs.convert(model)
        assert torch.equal(model(x), before)


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_computes_the_same_again(reentrant):
    """Stochastic rounding draws the same numbers, observers count once, and the batch norm's
    factor is that of the first time."""
    recipe = bs.Recipe("int4:channel0:fp32:stochastic", "int8", "int8:tensor:fp32:stochastic")
    model = bs.prepare_qat(cnn(), recipe)
    with torch.no_grad():  # so that running statistics, and with them the factor, move a lot
        model[0].weight.mul_(9)
    other = copy.deepcopy(model)
    x = torch.randn(4, 3, 8, 8, requires_grad=True)
    torch.manual_seed(3)
    model(x).square().mean().backward()
    wanted, x.grad = x.grad, None
    torch.manual_seed(3)
    checkpoint(other, x, use_reentrant=reentrant).square().mean().backward()
    assert torch.equal(x.grad, wanted)
    for name, parameter in model.named_parameters():
        assert torch.equal(other.get_parameter(name).grad, parameter.grad), name
    for i in (0, 3, 7):
        ours, theirs = (m[i].input_quantizer.observer.samples for m in (other, model))
        assert ours == theirs


def test_stochastic_rounding_is_drawn_anew_and_reproducible():
    model = bs.prepare_qat(nn.Sequential(nn.Linear(32, 32)), "int4:group32:fp32:stochastic")
    x = torch.randn(4, 32)

    def run(seed):
        torch.manual_seed(seed)
        return model(x), model(x)

    (a, b), (c, d), (e, _) = run(1), run(1), run(2)
    assert torch.equal(a, c)
    assert torch.equal(b, d)
    assert not torch.equal(a, b)
    assert not torch.equal(a, e)
    model.eval()
    with torch.no_grad():
        assert torch.equal(model(x), model(x))  # the numbers that the quantized model will have


def test_stochastic_rounding_is_unbiased():
    """The mean over draws is the weight: that is what it is for."""
    model = bs.prepare_qat(nn.Sequential(nn.Linear(16, 16)), "int4:group16:fp32:stochastic")
    weight = model[0].weight
    draws = torch.stack([model[0].weight_quantizer(weight).detach() for _ in range(400)])
    step = weight.abs().amax(1, keepdim=True) / 7
    assert bool(((draws.mean(0) - weight).abs() < 0.5 * step * 5 / 400**0.5).all())
