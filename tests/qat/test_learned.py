# SPDX-License-Identifier: BSD-3-Clause
"""Learned scales against torch's own LSQ, the papers' formulas in float64, and brute force."""

import copy
import math
import re

import pytest
import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.core import reference
from blockscale.core.block import Blocks
from blockscale.qat.learned import LearnedScale

FORMATS = (
    "int8:tensor:fp32",
    "int4:channel0:fp32",
    "int4:group8:fp16",
    "uint4:tensor:fp32",
    "int8:channel0:fp32:full",
    "int8:tensor:pow2/nearest",
    "int4:group8:e8m0/floor",
    "e2m1:group8:e4m3",
    "e4m3:group8:e8m0/tosa",
    "log4:channel0:fp32",
    "ternary:channel0:fp32",
    "binary:channel0:fp32",
    "int4:channel0:fp32:toward_zero",
)


def learned(fmt: str, x: Tensor, domain: str = "steps") -> LearnedScale:
    form = bs.parse(fmt)
    scale = LearnedScale(form, form.block.scale_shape(x.shape), domain)
    scale.start(x)
    return scale


def run(scale: LearnedScale, x: Tensor, elements: float = 1.0) -> Tensor:
    return scale(x, scale.qparams(), elements)


def test_against_torch():
    x = torch.randn(40, 30, requires_grad=True)
    scale = learned("int8:tensor:fp32", x.detach())
    step = torch.full((1,), 0.0123, requires_grad=True)  # some of x saturates
    with torch.no_grad():
        scale.parameter.fill_(0.0123)
    seen = torch.randn(40, 30)
    run(scale, x, x.numel()).backward(seen)
    ours, x.grad = x.grad, None
    used = scale.qparams().scale
    with torch.no_grad():
        step.copy_(used.reshape(1))  # what is stored is the step times 127, over 127
    zero = torch.zeros(1, requires_grad=True)
    factor = (x.numel() * 127) ** -0.5
    theirs = torch._fake_quantize_learnable_per_tensor_affine(x, step, zero, -127, 127, factor)
    assert torch.equal(theirs, run(scale, x))
    theirs.backward(seen)
    assert torch.equal(x.grad, ours)
    assert 0 < int((ours == 0).sum()) < x.numel()
    torch.testing.assert_close(scale.parameter.grad.reshape(1), step.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.some(4)
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("domain", ["steps", "thresholds"])
def test_the_gradients_are_the_formulas(fmt, domain):
    """LSQ, equation 3; TQT, equations 7 and 8; in float64, one block at a time."""
    form = bs.parse(fmt)
    x = torch.randn(3, 20) * 2.0
    scale = learned(fmt, x, domain)
    with torch.no_grad():
        scale.parameter.sub_(1.0 if domain == "thresholds" else scale.parameter * 0.5)
    x.requires_grad_()
    weight = torch.randn(3, 20)
    y = run(scale, x, 17.0)
    y.backward(weight)
    qparams = scale.qparams()
    inside = reference.in_range(x.detach(), qparams, form)
    assert bool(inside.any())
    assert torch.equal(x.grad, torch.where(inside, weight, 0.0))
    step = form.block.expand(reference.step_of(qparams, form), x.shape).expand(x.shape).double()
    levels = y.detach().double() / step
    per = weight.double() * torch.where(inside, levels - x.detach().double() / step, levels)
    if domain == "steps":
        per = per / math.sqrt(17.0 * form.levels.value)
    else:
        per = per * step * math.log(2.0)
    leaf = torch.zeros(scale.parameter.shape, dtype=torch.float64, requires_grad=True)
    form.block.expand(leaf, x.shape).expand(x.shape).backward(per)  # sums over each block
    torch.testing.assert_close(scale.parameter.grad.double(), leaf.grad, rtol=1e-4, atol=1e-4)


def test_where_everything_saturates_it_is_the_true_derivative():
    x = torch.tensor([[5.0, -9.0, 7.0, 40.0]])
    scale = learned("int4:tensor:fp32", x)
    with torch.no_grad():
        scale.parameter.fill_(0.25)

    def loss(value: float) -> float:
        with torch.no_grad():
            scale.parameter.fill_(value)
            return float((run(scale, x) - x).square().sum())

    slope = (loss(0.25 + 2**-10) - loss(0.25 - 2**-10)) / 2**-9
    loss(0.25)
    (run(scale, x, 1 / 7) - x).square().sum().backward()  # N * Q = 1
    assert scale.parameter.grad.item() == pytest.approx(slope, rel=1e-4)


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_thresholds_are_tqts(bits):
    """s = 2^ceil(log2 t) / 2^(bits - 1) (TQT, section 3.2) under `floor`; twice that at powers."""
    scale = learned(f"int{bits}:tensor:pow2/floor", torch.ones(1, 4), "thresholds")
    for log2_t in (-99.5, -3.0, -0.999999, -0.5, 0.0, 1e-5, 0.5, 0.9999999, 1.0, 6.3, 99.0):
        with torch.no_grad():
            scale.parameter.fill_(log2_t)
        value = scale.parameter.item()
        wanted = 2.0 ** (math.ceil(value) + value.is_integer() - (bits - 1))
        assert scale.qparams().scale.item() == wanted, log2_t


@pytest.mark.some(4)
@pytest.mark.parametrize("fmt", FORMATS[:-1])  # toward_zero turns on the last bit of a scale
@pytest.mark.parametrize("domain", ["steps", "thresholds"])
def test_it_begins_no_worse_than_the_format_and_lsq(fmt, domain):
    form = bs.parse(fmt)
    x = torch.randn(4, 32).exp()
    scale = learned(fmt, x, domain)

    def loss(values: Tensor) -> Tensor:
        return Blocks((values - x).square(), form.block).mean_magnitude()

    with torch.no_grad():
        ours = loss(run(scale, x))
    mean = Blocks(x, form.block).mean_magnitude() * 2 * form.levels.value**0.5
    low = -mean if form.element.signed else torch.zeros_like(mean)
    clean = torch.zeros_like(mean, dtype=torch.bool)
    lsq = reference.qparams_from_range(low, mean, clean, form)
    if not isinstance(form.scale, type(bs.parse("nvfp4").scale)):  # blocks share an outer scale
        assert bool((ours <= loss(reference.fake_quantize(x, lsq, form)) * 1.001).all())
        assert bool((ours <= loss(bs.fake_quantize(x, form)) * 1.001).all())
    assert float(ours.sum()) <= float(loss(bs.fake_quantize(x, form)).sum()) * 1.001


def test_lsqs_beginning_is_a_candidate():
    x = torch.cat([torch.linspace(-1, 1, 5000), torch.tensor([20.0])])[None]
    scale = learned("int4:tensor:fp32", x)
    assert scale.parameter.item() == pytest.approx(2 * x.abs().mean().item() / 7**0.5)


@pytest.mark.slow
@pytest.mark.parametrize("domain", ["steps", "thresholds"])
def test_training_finds_a_good_step(domain):
    x = torch.randn(1, 400)
    scale = learned("int3:tensor:fp32", x, domain)
    grid = torch.linspace(0.05, 1.5, 600)
    losses = [
        float((bs.fake_quantize(x, "int3:tensor:fp32", scale=s.reshape(1, 1)) - x).square().mean())
        for s in grid
    ]
    with torch.no_grad():
        scale.parameter.copy_(scale.parameter * 3 if domain == "steps" else scale.parameter + 1.5)
    optimizer = torch.optim.Adam(scale.parameters(), 0.02)
    for _ in range(300):
        optimizer.zero_grad()
        loss = (run(scale, x, x.numel()) - x).square().mean()
        loss.backward()
        optimizer.step()
    assert loss.item() < min(losses) * 1.05


def test_a_step_that_training_drives_below_zero_comes_back():
    scale = learned("int8:tensor:fp32", torch.ones(1, 4))
    with torch.no_grad():
        scale.parameter.fill_(-0.5)
    x = torch.ones(1, 4)
    y = run(scale, x)
    assert bool(y.isfinite().all())
    (-y.sum()).backward()
    assert scale.parameter.grad.item() < 0  # a larger step gives a larger y


@pytest.mark.some(3)
@pytest.mark.parametrize("value", [0.0, 1e38, float("inf")])
@pytest.mark.parametrize("fmt", ["int8:tensor:fp32", "int8:tensor:pow2/ceil", "e2m1:group4:e4m3"])
@pytest.mark.parametrize("domain", ["steps", "thresholds"])
def test_odd_parameters_give_a_scale(value, fmt, domain):
    scale = learned(fmt, torch.ones(1, 4), domain)
    with torch.no_grad():
        scale.parameter.fill_(value)
    step = reference.step_of(scale.qparams(), bs.parse(fmt))
    assert bool(step.isfinite().all())
    assert bool((step > 0).all())


def test_how_many_share_a_step():
    """N of LSQ: a weight's elements, an input's features; per scale."""
    model = nn.Sequential(nn.Linear(6, 4))
    bs.prepare_qat(model, bs.Recipe("int8:channel0:fp32", "int8:tensor:fp32"), learn="steps")
    seen = []
    for part in (model[0].weight_quantizer, model[0].input_quantizer):
        part.learned.register_forward_pre_hook(lambda _, args: seen.append(args[2]))
    model(torch.randn(5, 3, 6))
    assert sorted(seen) == [6.0, 18.0]


def test_asym_is_said_not_to_be_learned():
    model = nn.Sequential(nn.Linear(6, 4))
    with pytest.warns(UserWarning, match="input is not learned: asym has a zero point"):
        bs.prepare_qat(model, bs.Recipe("int8", "uint8"), learn="steps")
    assert model[0].input_quantizer.observer is not None
    assert model[0].weight_quantizer.learned is not None


THRESHOLDS = bs.Recipe("int8:channel0:pow2/ceil", "int8:tensor:pow2/ceil", "int8:tensor:pow2/ceil")
NOTHING_SEEN = {
    "zeros": torch.zeros(4, 8),
    "NaN": torch.full((4, 8), torch.nan),
    "no rows": torch.zeros(0, 8),
}


def error(model: nn.Module, x: Tensor, wanted: Tensor) -> float:
    with torch.no_grad():
        return float((model(x) - wanted).norm() / wanted.norm())


def step_of_training(model: nn.Module, x: Tensor, rate: float = 1e-7) -> None:
    optimizer = torch.optim.SGD(model.parameters(), rate)
    model(x).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.mark.some(8)
@pytest.mark.parametrize("domain", ["steps", "thresholds"])
@pytest.mark.parametrize("first", NOTHING_SEEN)
@pytest.mark.filterwarnings("ignore:blockscale")
def test_a_first_batch_that_says_nothing_is_no_beginning(domain, first):
    """The scales are those of a model that saw the second batch first."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8, bias=False))
    floats = copy.deepcopy(model)
    bs.prepare_qat(model, THRESHOLDS, learn=domain)
    other, x = copy.deepcopy(model), torch.randn(64, 8)
    if first == "no rows":
        assert model(NOTHING_SEEN[first]).shape == (0, 8)
    else:
        with pytest.warns(
            UserWarning, match="input of 0: a batch of only zeros, NaN or infinities"
        ):
            model(NOTHING_SEEN[first])
    assert torch.equal(model(x), other(x))
    assert error(model.eval(), x, floats(x)) < 0.02
    bs.convert(model)
    assert error(model, x, floats(x)) < 0.02


@pytest.mark.some(2)
@pytest.mark.parametrize("domain", ["steps", "thresholds"])
@pytest.mark.parametrize("fmt", ["int8:channel0:pow2/ceil", "int8:group4:fp32", "mxfp8"])
def test_rows_of_zeros_begin_when_they_have_values(domain, fmt):
    """As branches that are initialized with zeros: half of the rows here, then none."""
    model = nn.Sequential(nn.Linear(32, 4, bias=False))
    with torch.no_grad():
        model[0].weight[2:] = 0.0
    count = bs.parse(fmt).block.scale_shape((4, 32))
    half = math.prod(count) // 2
    with pytest.warns(UserWarning, match=f"0: {half} of {2 * half} learned scales of its weight"):
        bs.prepare_qat(model, fmt, learn=domain)
    scale = model[0].weight_quantizer.learned
    x = torch.eye(32)
    model(x).sum().backward()
    assert int(scale.waiting.sum()) == half
    weight = torch.cat([model[0].weight.detach()[:2], torch.randn(2, 32)])
    with torch.no_grad():
        model[0].weight.copy_(weight)
    converted = copy.deepcopy(model)
    assert error(model.train(), x, weight.T) < 0.05
    assert not scale.waiting.any()
    assert error(bs.convert(converted), x, weight.T) < 0.05  # though no batch was run between


@pytest.mark.parametrize(("fmt", "waiting"), [("int8:channel0:fp32", 1), ("int4:group4:fp32", 2)])
def test_a_padding_row_is_not_told_of(fmt, waiting):
    """Zeros on purpose (padding_idx); another row of zeros is told of."""
    model = nn.Sequential(nn.Embedding(6, 8, padding_idx=2))
    bs.prepare_qat(model, fmt, learn="steps")  # a warning would be an error
    assert model[0].weight_quantizer.learned.waiting.sum() == waiting
    bs.convert(model)
    model = nn.Sequential(nn.Embedding(6, 8, padding_idx=2))
    with torch.no_grad():
        model[0].weight[5] = 0
    with pytest.warns(UserWarning, match=f"{waiting} of {5 * waiting} learned scales"):
        bs.prepare_qat(model, fmt, learn="steps")
    with pytest.warns(UserWarning, match=f"{waiting} of {5 * waiting} scales of its weight saw"):
        bs.convert(model)


@pytest.mark.parametrize("domain", ["steps", "thresholds"])
def test_scales_grow_where_nearly_everything_saturates(domain):
    """A dummy of 1e-20 is a range, too."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8, bias=False))
    floats = copy.deepcopy(model)
    bs.prepare_qat(model, THRESHOLDS, learn=domain)
    model(torch.full((4, 8), 1e-20))
    x = torch.randn(64, 8)
    step_of_training(model, x)
    assert error(model.eval(), x, floats(x)) < 0.05
    told = "scales of its input were set again in training (steps: 1)"
    with pytest.warns(UserWarning, match=re.escape(told)):
        bs.convert(model)
    assert any(told in note for note in bs.qat.ledger(model)["0"].notes)


def test_a_scale_in_training_is_left_alone_and_a_frozen_one_does_not_grow():
    model = nn.Sequential(nn.Linear(8, 8))
    bs.prepare_qat(model, THRESHOLDS, learn="thresholds")
    model(torch.randn(64, 8))
    scale = model[0].input_quantizer.learned
    before = scale.origin.clone()
    model(3 * torch.randn(64, 8))
    assert torch.equal(scale.origin, before)
    bs.qat.freeze(model)
    model(1000 * torch.randn(64, 8))
    assert torch.equal(scale.origin, before)
    scale.requires_grad_(True)
    model(1000 * torch.ones(64, 8))
    step = reference.step_of(scale.qparams(), bs.parse("int8:tensor:pow2/ceil"))
    wanted = bs.quantize(torch.full((1, 1), 1000.0), "int8:tensor:pow2/ceil")
    assert torch.equal(step, wanted.scale)


def test_what_never_began_is_said():
    model = nn.Sequential(nn.Linear(8, 4))
    recipe = bs.Recipe("int8:channel0:fp32", "int8:channel-1:fp32")
    bs.prepare_qat(model, recipe, learn="steps")
    x = torch.randn(16, 8)
    x[:, 5:] = 0.0
    model(x)
    with pytest.warns(UserWarning, match="0: 3 of 8 scales of its input saw only zeros"):
        bs.convert(model)


def test_states_from_before_origins_load():
    """What began there begins so; what was dead waits."""
    model = nn.Sequential(nn.Linear(8, 8))
    bs.prepare_qat(model, THRESHOLDS, learn="thresholds")
    model(torch.randn(64, 8))
    state = model.state_dict()
    old = {name: value for name, value in state.items() if not name.endswith(".origin")}
    old["0.input_quantizer.learned.log2_threshold"] = torch.full((1, 1), -126.0)
    old["0.output_quantizer.learned.log2_threshold"] = torch.full((1, 1), 1.5)
    again = nn.Sequential(nn.Linear(8, 8))
    bs.prepare_qat(again, THRESHOLDS, learn="thresholds")
    again.load_state_dict(old)
    assert bool(again[0].input_quantizer.learned.waiting.all())
    wanted = bs.quantize(torch.full((1, 1), 2.0**1.5), "int8:tensor:pow2/ceil")
    assert torch.equal(again[0].output_quantizer.learned.qparams().scale, wanted.scale)
    assert torch.equal(again[0].weight_quantizer.learned.origin, torch.zeros(8, 1))
    again(torch.randn(64, 8))
    assert not again[0].input_quantizer.learned.waiting.any()


def test_what_began_goes_on_from_a_state():
    model = nn.Sequential(nn.Linear(8, 8))
    bs.prepare_qat(model, THRESHOLDS, learn="thresholds")
    model(torch.randn(64, 8))
    again = nn.Sequential(nn.Linear(8, 8))
    bs.prepare_qat(again, THRESHOLDS, learn="thresholds")
    again.load_state_dict(model.state_dict())
    x = torch.randn(64, 8)
    assert torch.equal(again(x), model(x))


@pytest.mark.slow
@pytest.mark.parametrize("learn", ["steps", "thresholds", None])
@pytest.mark.parametrize("bias", [None, "int32"])
def test_batches_without_rows(learn, bias):
    """First, in the middle and in evaluation; linear layers, convolutions, embeddings."""
    layers = nn.Sequential(
        nn.Embedding(5, 8), nn.Linear(8, 8), nn.Unflatten(-1, (2, 4)), nn.Conv1d(2, 3, 3)
    )
    recipe = bs.Recipe("int8:channel0:fp32", "int8", "int8", bias=bias)
    model = bs.prepare_qat(layers, recipe, learn=learn)
    full, none = torch.randint(0, 5, (6,)), torch.zeros(0, dtype=torch.long)
    for x in (none, full, none, full):
        y = model(x)
        assert y.shape == (len(x), 3, 2)
        y.square().sum().backward()
        bs.qat.switch(model, quantize=True)
        model.eval()
        with torch.no_grad():
            assert model(none).shape == (0, 3, 2)
        model.train()
    for parameter in model.parameters():
        assert bool(parameter.grad.isfinite().all())
    with torch.no_grad():
        wanted = model.eval()(full)
        assert torch.equal(bs.convert(model)(full), wanted)
        assert model(none).shape == (0, 3, 2)


@pytest.mark.parametrize("learn", ["steps", "thresholds"])
def test_zeros_beside_an_outer_scale_of_their_own_have_no_gradient(learn):
    """A row of zeros under the smallest outer scale has a step whose inverse is infinite."""
    model = nn.Sequential(nn.Linear(32, 4, bias=False))
    with torch.no_grad():
        model[0].weight[2:] = 0.0
    with pytest.warns(UserWarning, match="0: 4 of 8 learned scales of its weight"):
        bs.prepare_qat(model, "nvfp4_token", learn=learn)
    model(torch.randn(3, 32)).square().sum().backward()
    slope = model[0].weight_quantizer.learned.parameter.grad
    assert (slope[:2] != 0).all() and (slope[2:] == 0).all()
