# SPDX-License-Identifier: BSD-3-Clause
"""Convolutions in training, alone."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

import blockscale as bs
from tests.support.qat_models import cnn, train


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Conv1d(8, 8, 3, padding="same", groups=2),
        lambda: nn.Conv1d(8, 8, 3, padding=2, dilation=2, padding_mode="replicate"),
        lambda: nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0), padding_mode="circular"),
        lambda: nn.Conv2d(4, 8, 3, groups=4, bias=False),
        lambda: nn.Conv3d(4, 6, (3, 2, 1), stride=(2, 1, 1), padding=(1, 0, 2)),
        lambda: nn.Conv3d(4, 6, 3, padding="same", padding_mode="circular", groups=2),
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


# A convolution trains with its batch norm as the two float layers do.

FINE = "int16:channel0:fp32"  # so fine that what remains is the arithmetic of folding


def prepared(model: nn.Module, fmt: str = FINE, **settings) -> nn.Module:
    return bs.prepare_qat(model, fmt, **settings)


@pytest.mark.slow
@pytest.mark.some(5)
@pytest.mark.parametrize("momentum", [0.3, None])
@pytest.mark.parametrize("affine", [True, False])
def test_training_is_the_float_models(momentum, affine):
    """Outputs, gradients and running statistics, up to the rounding of int16 weights."""
    reference = cnn()
    for i, n in ((1, 8), (4, 16)):
        reference[i] = nn.BatchNorm2d(n, eps=1e-2, momentum=momentum, affine=affine)
        if affine:
            nn.init.uniform_(reference[i].weight, -2, 2)
            nn.init.normal_(reference[i].bias)
            reference[i].weight.data[3] = 0.0  # as residual networks start
    model = prepared(copy.deepcopy(reference))
    for seed in range(3):
        x = torch.randn(6, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
        outputs = [m(x) for m in (model, reference)]
        torch.testing.assert_close(*outputs, rtol=2e-3, atol=2e-3)
        for m, y in zip((model, reference), outputs, strict=True):
            m.zero_grad()
            y.square().mean().backward()
    for name, parameter in reference.named_parameters():
        close = {"rtol": 5e-2, "atol": 5e-3}
        torch.testing.assert_close(model.get_parameter(name).grad, parameter.grad, **close)
    for name, buffer in reference.named_buffers():
        torch.testing.assert_close(model.get_buffer(name), buffer, rtol=1e-3, atol=1e-3)


def test_what_is_quantized_in_training_is_the_folded_weight():
    """One scale for the tensor, so that quantizing before folding gives other codes."""
    model = prepared(cnn(), "int4:tensor:fp32")
    conv, norm = model[0], model[1]
    nn.init.uniform_(norm.weight, 0.1, 3)
    nn.init.uniform_(norm.running_var, 0.1, 3)
    factor = (norm.weight / (norm.running_var + norm.eps).sqrt()).reshape(-1, 1, 1, 1).detach()
    weight = bs.fake_quantize(conv.weight * factor, "int4:tensor:fp32") / factor
    x = torch.randn(4, 3, 8, 8)
    y = nn.functional.conv2d(x, weight, conv.bias, padding=1)
    wanted = nn.functional.batch_norm(y, None, None, norm.weight, norm.bias, True)
    torch.testing.assert_close(norm(conv(x)), wanted, rtol=1e-4, atol=1e-5)


def test_without_quantization_it_is_the_float_model_bit_for_bit():
    reference = cnn()
    model = prepared(copy.deepcopy(reference), "int2")
    bs.qat.switch(model, quantize=False)
    x = [torch.randn(4, 3, 8, 8) for _ in range(3)]
    assert train(model, x) == train(reference, x)
    bs.qat.switch(model, freeze_norms=True)
    reference[1].eval()
    reference[4].eval()
    y = [m(x[0]) for m in (model, reference)]
    assert torch.equal(*y)


@pytest.mark.some(2)
@pytest.mark.parametrize("fmt", ["int8_channel", "int4:group32:fp32", "mxfp4", "binary"])
def test_evaluation_is_the_folded_model(fmt):
    """torch's own fusion, then bs.quantize_: the same codes, and the same bits but for the bias."""
    model = cnn()
    model[1].eps, model[4].eps = 1e-2, 1e-3
    train(model, [torch.randn(8, 3, 8, 8) for _ in range(4)])
    model.eval()
    fused = nn.Sequential(
        fuse_conv_bn_eval(model[0], model[1]),
        model[2],
        fuse_conv_bn_eval(model[3], model[4]),
        *model[5:],
    )
    fused = copy.deepcopy(fused)
    bs.quantize_(fused, fmt)
    prepared(model, fmt)
    x = torch.randn(4, 3, 8, 8)
    with torch.no_grad():
        before = model(x)
    bs.convert(model)
    assert [type(m).__name__ for m in model[:2]] == ["QConv", "Identity"]
    with torch.no_grad():
        assert torch.equal(model(x), before)
    for ours, theirs in ((model[0], fused[0]), (model[3], fused[2])):
        assert torch.equal(ours.weight.codes, theirs.weight.codes)
        assert torch.equal(ours.weight.scale, theirs.weight.scale)
        torch.testing.assert_close(ours.bias, theirs.bias, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(before, fused(x), rtol=1e-4, atol=1e-5)
    ledger = bs.qat.ledger(model)
    assert ledger["1.weight"].reason == "folded into 0"
    assert ledger["1.weight"].bytes_after == 0


def test_frozen_batch_norms_train_as_they_evaluate():
    model = prepared(cnn(), "int4:group32:fp32")
    x = torch.randn(4, 3, 8, 8)
    train(model, [x, x])
    bs.qat.switch(model, freeze_norms=True)
    statistics = model[1].running_mean.clone()
    model.train()
    y = model(x)
    with bs.use("reference"), torch.no_grad():
        assert torch.equal(model.eval()(x), y)
    assert torch.equal(model[1].running_mean, statistics)
    y.square().mean().backward()  # gamma and beta learn through the folded weight and bias
    assert model[1].weight.grad.abs().sum() > 0
    assert model[1].bias.grad.abs().sum() > 0
    assert model[1].training is False  # as model.eval() left it: freezing is no mode


def test_a_batch_norm_that_the_user_put_into_evaluation():
    model = prepared(cnn(), "int8_channel")
    model.train()
    model[1].eval()
    before = model[1].running_mean.clone()
    x = torch.randn(4, 3, 8, 8)
    model(x)
    assert torch.equal(model[1].running_mean, before)
    with bs.use("reference"), torch.no_grad():
        y = model[0](x)
        assert torch.equal(model[0].eval()(x), y)
    assert not torch.equal(model[4].running_mean, torch.zeros(16))
