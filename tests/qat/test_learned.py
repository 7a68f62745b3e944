"""Learned scales against torch's own LSQ, the papers' formulas in float64, and brute force."""

import math

import pytest
import torch
from torch import Tensor, nn

import blockscale as bs
from blockscale.core import reference
from blockscale.core.blocks import Blocks
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
