# SPDX-License-Identifier: BSD-3-Clause
"""Whole models with Conv3d and ConvTranspose layers, through everything that takes a model."""

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import blockscale as bs
from blockscale.calibration import algorithms
from blockscale.core.pack import from_stored, to_stored
from blockscale.layers.layer import QLayer
from blockscale.layers.plan import Plan, plan_layers
from tests.layers.decoders import MODELS, UNet, Volumes, hifi_gan, images, made, video_mae, volumes
from tests.support.some import crossed

RECIPE = bs.Recipe("int8_channel", "int8", bias="int32")
WEIGHTS = ("absmax", "mse", "hqq", "gptq")


def convolutions(model: nn.Module) -> dict[str, QLayer]:
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, QLayer)}


def output(model: nn.Module, x: Tensor) -> Tensor:
    with torch.no_grad(), bs.use("reference"):
        y = model(x)
    return y if isinstance(y, Tensor) else y[0]


@pytest.mark.some(4)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("fmt", ["mxfp4", "int8_channel", "nvfp4", "int4:group4:fp32"])
def test_outputs_are_those_of_the_dequantized_weights(name: str, fmt: str) -> None:
    model, inputs = made(name), MODELS[name][1]
    plain, x = copy.deepcopy(model), inputs()
    ledger = bs.quantize_(model, fmt, strict=True)
    assert len(convolutions(model)) == sum(e.status == "quantized" for e in ledger)
    for n, layer in convolutions(model).items():
        plain.get_submodule(n).weight.data = layer.dequantize_weight()
    torch.testing.assert_close(output(model, x), output(plain, x), rtol=1e-5, atol=1e-5)
    for entry in ledger.quantized:
        layer = model.get_submodule(entry.name)
        assert (
            entry.bytes_before == plain.get_submodule(entry.name).weight.nbytes + layer.bias_bytes
        )
        assert entry.bytes_after == layer.weight.nbytes + layer.bias_bytes
        assert entry.elements == sum(
            p.numel() for p in plain.get_submodule(entry.name).parameters()
        )


@pytest.mark.parametrize("make", [hifi_gan, video_mae])
@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_models_of_somebody_else(make) -> None:
    """int16 weights and inputs: nothing but rounding far below what is compared."""
    model, x = make()
    expected, plain = output(model, x), copy.deepcopy(model)
    bs.quantize_(model, bs.Recipe("int16:channel0:fp32", "int16:token:fp32"), strict=True)
    kinds = {type(plain.get_submodule(n)) for n in convolutions(model)}
    assert nn.ConvTranspose1d in kinds or nn.Conv3d in kinds
    torch.testing.assert_close(output(model, x), expected, rtol=2e-3, atol=2e-3)


@pytest.mark.filterwarnings("ignore:(.|\n)*every column is rounded by itself")  # of groups
@pytest.mark.parametrize(("name", "weight"), crossed(4, MODELS, WEIGHTS))
def test_calibration(name: str, weight: str, tmp_path) -> None:
    """Static inputs and biases in steps of sums, of every layer; saved and loaded."""
    model, inputs = made(name), MODELS[name][1]
    batches = [inputs(2), inputs(3)]
    ledger = bs.calibrate(model, batches, RECIPE, "min_max", weight=weight, progress=False)
    for n, layer in convolutions(model).items():
        assert layer.input.static
        assert ledger[n].bias == ("int32:sums" if layer.bias is not None else "")
    expected = output(made(name), inputs())
    assert (output(model, inputs()) - expected).norm() < 0.05 * expected.norm()
    bs.save(model, tmp_path / "m.safetensors")
    again = bs.load(made(name), tmp_path / "m.safetensors")
    assert torch.equal(output(again, inputs()), output(model, inputs()))


def test_observers_see_channels_last() -> None:
    model = made("unet")
    seen: dict[str, Tensor] = {}
    for n, layer in model.named_children():
        layer.register_forward_hook(
            lambda _, args, y, n=n: seen.update({n: args[0].movedim(1, -1), f"{n} y": y})
        )
    recipe = bs.Recipe("int8_channel", "int8:channel-1:fp32", "int8:channel-1:fp32")
    bs.calibrate(model, [images(2)], recipe, "min_max", progress=False)
    for n in ("up", "grouped", "deep", "last", "down"):
        layer = model.get_submodule(n)
        amax = seen[n].abs().flatten(0, -2).amax(0)
        scale = (amax / torch.tensor(127.0)).clamp(min=2.0**-126)
        assert torch.equal(layer.input.scale.flatten(), scale)
        assert layer.output.scale.numel() == layer.out_channels


class Whole(nn.Module):
    """Whole numbers, so that sums are exact in any order."""

    def __init__(self, conv: nn.Module, asked: list[int] | None = None):
        super().__init__()
        self.conv, self.asked = conv, asked

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x, self.asked) if self.asked else self.conv(x)


CONVS = [
    (nn.Conv3d(3, 4, (2, 3, 1), padding=1, stride=(1, 2, 1)), None),
    (nn.ConvTranspose1d(6, 4, 4, stride=2, padding=1), [13]),
    (nn.ConvTranspose2d(4, 6, (2, 3), stride=2, padding=(0, 1), output_padding=1), None),
]


@pytest.mark.parametrize(("conv", "asked"), CONVS, ids=str)
def test_weights_by_gptq_know_what_reaches_the_outputs(conv: nn.Module, asked) -> None:
    """The gram matrix, spelled out: each column of the rows is torch's own output for a weight of
    a single one."""
    conv = copy.deepcopy(conv)
    conv.bias.data.zero_()
    size = (6, 5, 4)[: len(conv.kernel_size)]
    batches = [torch.randint(-3, 4, (2, conv.in_channels, *size)).float() for _ in range(2)]
    model = Whole(conv, asked)
    [plan] = (p for p in plan_layers(model, bs.Recipe("int4:group4:fp32")) if isinstance(p, Plan))
    stored = to_stored(conv.weight.detach(), plan.layout)
    columns, probe = [], copy.deepcopy(model)
    for i in range(stored.shape[1]):
        one = torch.zeros_like(stored)
        one[0, i] = 1
        probe.conv.weight.data = from_stored(one, plan.layout, conv.weight.shape).contiguous()
        with torch.no_grad():
            columns.append(torch.cat([probe(x)[:, 0].flatten() for x in batches]))
    rows = torch.stack(columns, 1).double().round()
    gram = rows.T @ rows / len(rows)
    expected, _ = algorithms.weights("gptq").quantize(stored, plan.format, gram, "conv")
    bs.calibrate(model, batches, "int4:group4:fp32", weight="gptq", progress=False)
    assert torch.equal(model.conv.weight.codes, expected.packed)
    assert torch.equal(model.conv.weight.scale, expected.scale)


@pytest.mark.parametrize("transform", ["smoothquant", "awq", "hadamard"])
def test_transforms(transform: str) -> None:
    """Of the channels of a layer in one group; of others the ledger says why not."""
    model = made("unet")
    with torch.no_grad():
        model.norm2.weight[3] *= 60  # a channel that spoils the scale of all
        model.norm2.bias[3] += 20
    expected = output(model, images())
    plain = copy.deepcopy(model)
    recipe = bs.Recipe("int8_channel", "int4", rules={"*norm*": None})
    ledger = bs.calibrate(model, [images()], recipe, "min_max", transform=transform, progress=False)
    assert any(layer.before is not None for layer in convolutions(model).values())
    for name in ("up", "last"):
        assert f"{transform}: " in ledger[name].details
        assert "groups" not in ledger[name].details
    for name in ("grouped", "deep"):
        assert model.get_submodule(name).before is None
        assert "not transformed, its convolution has groups" in ledger[name].details
    bs.calibrate(plain, [images()], recipe, "min_max", progress=False)
    errors = [(output(m, images()) - expected).norm() for m in (model, plain)]
    assert errors[0] < errors[1]
    for layer in (model.up, model.last):
        if layer.before is None:
            continue
        x = torch.randn(2, layer.in_channels, 5, 4)
        values = layer.input(layer.before(x.movedim(1, -1))).movedim(-1, 1)
        dense = layer.weight.dequantize(torch.float32)
        expected = F.conv_transpose2d(values, dense, layer.bias, layer.stride)
        assert torch.equal(output(layer, x), expected)


def test_comparison() -> None:
    """Layer by layer, also where a call asks for a size."""
    model = made("unet")
    quantized = copy.deepcopy(model)
    bs.quantize_(quantized, bs.Recipe("int8_channel", "int8_token"))
    found = bs.compare(model, quantized, [images(), images(2, 10)])
    layers = {layer.name: layer for layer in found.layers}
    assert layers.keys() == convolutions(quantized).keys()
    assert all(layer.isolated.sqnr > 25 and layer.calls == 2 for layer in layers.values())


@pytest.mark.parametrize("name", MODELS)
def test_training(name: str, tmp_path) -> None:
    model, inputs = made(name), MODELS[name][1]
    bs.prepare_qat(model, RECIPE)
    folded = [e.name for e in bs.qat.ledger(model) if "folded in" in e.reason]
    assert folded == {"unet": ["first", "down", "up", "grouped"],
                      "volumes": ["conv", "up", "row"]}[name]  # fmt: skip
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(3):
        optimizer.zero_grad()
        model(inputs(4)).square().mean().backward()
        optimizer.step()
    model.eval()
    expected = output(model, inputs())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bs.convert(model)
    assert torch.equal(output(model, inputs()), expected)
    assert not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())
    bs.save(model, tmp_path / "m.safetensors")
    other = MODELS[name][0]()
    for norm in [
        n for n, m in other.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)
    ]:
        setattr(other, norm, nn.Identity())
    for conv in ("down", "grouped") if name == "unet" else ():
        layer = other.get_submodule(conv)  # folding gave them a bias
        layer.bias = nn.Parameter(torch.zeros(layer.out_channels))
    assert torch.equal(
        output(bs.load(other, tmp_path / "m.safetensors").eval(), inputs()), expected
    )


@pytest.mark.slow
def test_exported_with_free_sizes(tmp_path) -> None:
    auto, batch = torch.export.Dim.AUTO, torch.export.Dim("batch", min=2, max=8)
    for model, free in ((made("unet"), {0: auto, 2: auto}), (made("volumes"), {0: batch})):
        inputs = images if isinstance(model, UNet) else volumes
        bs.quantize_(model, bs.Recipe("int4:group8:fp32", "int8_token"))
        program = torch.export.export(model, (inputs(3),), dynamic_shapes=(free,))
        bs.export.program(program, tmp_path / "m.pt2", overwrite=True)
        run = torch.export.load(tmp_path / "m.pt2").module()
        state = torch.export.load(tmp_path / "m.pt2").state_dict
        assert not any(n.endswith((".up.weight", ".conv.weight")) for n in state)
        cases = [images(3), images(2, 12), images(5, 7)] if inputs is images else [volumes(5)]
        for x in cases:
            assert torch.equal(output(run, x), output(model, x))


@pytest.mark.slow
def test_compiled() -> None:
    torch.compiler.reset()
    for name in MODELS:
        model, inputs = made(name), MODELS[name][1]
        bs.quantize_(model, bs.Recipe("int8_channel", "int8_token", "int8"))
        run = torch.compile(model, fullgraph=True, backend="aot_eager")
        assert torch.equal(output(run, inputs()), output(model, inputs()))
    torch.compiler.reset()


def test_other_dtypes() -> None:
    for dtype in (torch.bfloat16, torch.float16):
        for name in MODELS:
            model, x = made(name).to(dtype), MODELS[name][1]().to(dtype)
            expected = output(model, x)
            bs.quantize_(model, "int8_channel")
            assert output(model, x).dtype == dtype
            assert (output(model, x) - expected).float().norm() < 0.05 * expected.float().norm()


def test_what_is_decided_of_a_volume() -> None:
    plans = [
        p for p in plan_layers(Volumes(), bs.Recipe("int8", bias="int8")) if isinstance(p, Plan)
    ]
    assert {
        p.name: (p.layout, p.stored, p.features("input"), p.features("output")) for p in plans
    } == {
        "conv": ("channels_last", (8, 54), 2, 8),
        "up": ("transposed_channels_last:2", (4, 32), 8, 4),
        "row": ("transposed_channels_last", (3, 12), 4, 3),
    }
