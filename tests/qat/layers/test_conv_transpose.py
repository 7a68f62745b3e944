# SPDX-License-Identifier: BSD-3-Clause
"""Transposed convolutions in training, alone and with their batch norm folded in."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

import blockscale as bs
from tests.support.qat_models import train

FINE = "int16:channel0:fp32"  # so fine that what remains is the arithmetic of folding
MAKERS = [
    lambda: nn.ConvTranspose1d(8, 6, 3, stride=2, padding=1, output_padding=1),
    lambda: nn.ConvTranspose1d(8, 8, 3, groups=8, dilation=2),
    lambda: nn.ConvTranspose2d(4, 6, (3, 2), stride=(2, 1), groups=2, bias=False),
    lambda: nn.ConvTranspose3d(4, 6, 2, stride=2, groups=2),
]


def image(conv: nn.Module, single: bool = False, size: int = 5) -> Tensor:
    shape = [conv.in_channels] + [size] * (conv.weight.ndim - 2)
    return torch.randn(shape if single else [2, *shape])


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("single", [False, True])
def test_evaluation_is_the_simulation_and_what_it_becomes(make, single: bool) -> None:
    model = nn.Sequential(make())
    recipe = bs.Recipe("int8_channel", "int8", "int8", bias="int32")
    bs.prepare_qat(model, recipe, observer="min_max")
    x = image(model[0], single)
    model(x)
    model.eval()
    with bs.use("reference"):
        simulated = model(x).detach()
        with torch.no_grad():
            deployed = model(x)
        bs.convert(model)
        assert type(model[0]).__name__ == "QConvTranspose"
        assert torch.equal(model(x), simulated)
        assert torch.equal(deployed, simulated)


@pytest.mark.parametrize("make", MAKERS)
def test_without_quantization_it_is_the_float_layer(make) -> None:
    layer = make()
    model = nn.Sequential(copy.deepcopy(layer))
    bs.prepare_qat(model, "int2")
    bs.qat.switch(model, quantize=False)
    x = image(layer)
    assert torch.equal(model(x), layer(x))
    size = [n + s - 1 - p for n, s, p in zip(layer(x).shape[2:], layer.stride,
                                             layer.output_padding, strict=True)]  # fmt: skip
    assert torch.equal(model[0](x, size), layer(x, size))


@pytest.mark.parametrize("make", MAKERS)
def test_a_size_that_is_asked_for(make) -> None:
    """In training, in evaluation and converted; with all sizes, of one image, too."""
    layer = make()
    model = nn.Sequential(layer)
    bs.prepare_qat(model, bs.Recipe("int8_channel", "int8_token"))
    x = image(layer)
    least = [n - p for n, p in zip(layer(x).shape[2:], layer.output_padding, strict=True)]
    size = [n + s - 1 for n, s in zip(least, layer.stride, strict=True)]
    with bs.use("reference"):
        trained = layer(x, output_size=size)
        assert list(trained.shape) == [2, layer.out_channels, *size]
        alone = layer(x[0], [layer.out_channels, *size])
        assert torch.equal(alone, layer(x[:1], size)[0])
        with pytest.raises(ValueError, match="valid sizes range"):
            layer(x, [n + 9 for n in size])
        bs.convert(model.eval())
        assert torch.equal(model[0](x, size), trained)


def decoder(groups: int = 1, momentum: float | None = 0.1) -> nn.Sequential:
    """x [batch, 8, 3, 3] -> [batch, 4, 13, 13]."""
    first = nn.ConvTranspose2d(8, 6, 3, stride=2, padding=1, output_padding=1, groups=groups)
    last = nn.ConvTranspose2d(6, 4, 3, stride=2, bias=False, groups=groups)
    norms = [nn.BatchNorm2d(n, eps=1e-2, momentum=momentum) for n in (6, 4)]
    for norm in norms:
        nn.init.uniform_(norm.weight, 0.5, 2)
        nn.init.normal_(norm.bias)
    return nn.Sequential(first, norms[0], nn.ReLU(), last, norms[1])


def images(count: int) -> list[Tensor]:
    return [
        torch.randn(6, 8, 3, 3, generator=torch.Generator().manual_seed(i)) for i in range(count)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("groups", [1, 2])
def test_training_with_a_batch_norm_is_the_float_models(groups: int) -> None:
    """Outputs, gradients and running statistics, up to the rounding of int16 weights."""
    reference = decoder(groups)
    model = bs.prepare_qat(copy.deepcopy(reference), FINE)
    assert [e.name for e in bs.qat.ledger(model) if "folded in" in e.reason] == ["0", "3"]
    for x in images(3):
        outputs = [m(x) for m in (model, reference)]
        torch.testing.assert_close(*outputs, rtol=2e-3, atol=2e-3)
        for m, y in zip((model, reference), outputs, strict=True):
            m.zero_grad()
            y.square().mean().backward()
    for name, parameter in reference.named_parameters():
        found = model.get_parameter(name).grad
        torch.testing.assert_close(found, parameter.grad, rtol=5e-2, atol=5e-3)
    for name, buffer in reference.named_buffers():
        torch.testing.assert_close(model.get_buffer(name), buffer, rtol=1e-3, atol=1e-3)


@pytest.mark.some(2)
@pytest.mark.parametrize("fmt", ["int8_channel", "int4:group32:fp32", "mxfp4"])
@pytest.mark.parametrize("groups", [1, 2])
def test_evaluation_with_a_batch_norm_is_the_folded_model(fmt: str, groups: int) -> None:
    """torch's own fusion (group by group: it knows none), then bs.quantize_: the same codes."""
    model = decoder(groups)
    train(model, images(4))
    model.eval()
    fused = nn.Sequential(_fused(model[0], model[1]), model[2], _fused(model[3], model[4]))
    expected = model(images(1)[0])
    torch.testing.assert_close(fused(images(1)[0]), expected, rtol=1e-4, atol=1e-4)
    bs.quantize_(fused, fmt)
    bs.prepare_qat(model, fmt)
    x = images(1)[0]
    with torch.no_grad():
        before = model(x)
        bs.convert(model)
        assert torch.equal(model(x), before)
    assert [type(m).__name__ for m in model[:2]] == ["QConvTranspose", "Identity"]
    for ours, theirs in ((model[0], fused[0]), (model[3], fused[2])):
        assert ours.weight.layout == theirs.weight.layout
        assert torch.equal(ours.weight.codes, theirs.weight.codes)
        assert torch.equal(ours.weight.scale, theirs.weight.scale)
        torch.testing.assert_close(ours.bias, theirs.bias, rtol=1e-6, atol=1e-6)


def _fused(conv: nn.ConvTranspose2d, norm: nn.BatchNorm2d) -> nn.ConvTranspose2d:
    """torch's fusion of each group by itself, put together."""
    parts = []
    for i in range(conv.groups):
        take = [slice(i * n // conv.groups, (i + 1) * n // conv.groups) for n in
                (conv.in_channels, conv.out_channels)]  # fmt: skip
        part = nn.ConvTranspose2d(*(each.stop - each.start for each in take), conv.kernel_size)
        part.weight.data = conv.weight.data[take[0]].clone()
        part.bias = None if conv.bias is None else nn.Parameter(conv.bias.data[take[1]].clone())
        own = nn.BatchNorm2d(take[1].stop - take[1].start, eps=norm.eps)
        own.load_state_dict({n: t if t.ndim == 0 else t[take[1]]
                             for n, t in norm.state_dict().items()})  # fmt: skip
        parts.append(fuse_conv_bn_eval(part.eval(), own.eval(), transpose=True))
    whole = copy.deepcopy(conv)
    whole.weight = nn.Parameter(torch.cat([part.weight.data for part in parts]))
    whole.bias = nn.Parameter(torch.cat([part.bias.data for part in parts]))
    return whole


def test_frozen_batch_norms_train_as_they_evaluate() -> None:
    model = bs.prepare_qat(decoder(2), "int4:group32:fp32")
    train(model, images(2))
    bs.qat.switch(model, freeze_norms=True)
    model.train()
    x = images(1)[0]
    y = model(x)
    with bs.use("reference"), torch.no_grad():
        assert torch.equal(model.eval()(x), y)
    y.square().mean().backward()
    assert model[1].weight.grad.abs().sum() > 0


def test_a_batch_norm_over_three_dimensions() -> None:
    for conv in (nn.Conv3d(3, 4, 3), nn.ConvTranspose3d(3, 4, 3, stride=2)):
        model = nn.Sequential(conv, nn.BatchNorm3d(4))
        reference = copy.deepcopy(model)
        bs.prepare_qat(model, FINE)
        x = torch.randn(4, 3, 5, 5, 5)
        torch.testing.assert_close(model(x), reference(x), rtol=2e-3, atol=2e-3)
        model.eval()
        with torch.no_grad():
            before = model(x)
            assert torch.equal(bs.convert(model)(x), before)
        torch.testing.assert_close(before, reference.eval()(x), rtol=2e-3, atol=2e-3)


# Said by torch about torch, while dynamo traces an autograd.Function
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_compiled_and_learned_steps() -> None:
    torch.compiler.reset()
    model = decoder(2)
    bs.prepare_qat(model, bs.Recipe("int4:channel0:fp32", "int8"), learn={"weight": "steps"})
    train(model, images(1))
    bs.qat.switch(model, observe=False)
    other = copy.deepcopy(model)
    run = torch.compile(model, backend="aot_eager", fullgraph=True)
    assert train(run, images(2)) == train(other, images(2))
    torch.compiler.reset()
