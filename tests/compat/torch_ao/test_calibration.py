# SPDX-License-Identifier: BSD-3-Clause
"""prepare and convert, compared with bs.calibrate and with torch.ao's own flow."""

import copy
import importlib
import inspect
import pkgutil
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.ao import quantization as ao

import blockscale as bs
from blockscale.compat import torch_ao
from blockscale.compat.torch_ao import QConfig, QConfigMapping, convert, prepare, to_recipe
from tests.compat.torch_ao.configurations import SYMMETRIC, given

INT8 = ao.MinMaxObserver.with_args(**given(torch.qint8, SYMMETRIC))
STATIC = QConfig(ao.MinMaxObserver, INT8)


def net() -> nn.Sequential:
    torch.manual_seed(1)
    layers = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5)
    return nn.Sequential(*layers).eval()


def images() -> list[Tensor]:
    return [torch.randn(2, 3, 8, 8) * (1 + i) for i in range(3)]


def shown(model: nn.Module, data: list[Tensor]) -> nn.Module:
    for x in data:
        model(x)
    return model


def test_every_name_is_what_it_says() -> None:
    """No submodule takes the place of a function, whatever is imported in whatever order."""
    names = [m.name for m in pkgutil.iter_modules(torch_ao.__path__)]
    for name in names:
        importlib.import_module(f"{torch_ao.__name__}.{name}")
    for name in ("prepare", "prepare_qat", "convert", "to_recipe", "to_format", "to_observer"):
        assert inspect.isfunction(getattr(torch_ao, name))
        assert name not in names


@pytest.mark.some(3)
@pytest.mark.parametrize("outputs", [False, True])
@pytest.mark.parametrize(
    ("config", "observer"),
    [
        (STATIC, "min_max"),
        (torch_ao.power_of_2(STATIC), "min_max"),
        (torch_ao.get_default_qconfig_mapping("onednn"), "mse"),
        (QConfig("int8:channel-1:fp32", "int8_channel"), "moving_average"),
        (QConfig("int8:channel-1:(e4m3:tensor:fp32)", "mxfp8"), "moving_average"),
    ],
)
def test_the_same_as_calibrate(config: object, observer: str, outputs: bool) -> None:
    data, float_model, expected = images(), net(), net()
    model = net()
    assert prepare(model, config, (data[0],), outputs=outputs) is model
    assert torch.equal(shown(model, data)(data[0]), float_model(data[0]))  # it only looks
    assert convert(model) is model
    recipe = to_recipe(config, expected, outputs=outputs)
    # the fourth one is that of `shown(...)(data[0])`
    bs.calibrate(expected, [*data, data[0]], recipe, observer, progress=False)
    assert torch.equal(model(data[0]), expected(data[0]))
    assert {n: str(b) for n, b in model.named_buffers()} == {
        n: str(b) for n, b in expected.named_buffers()
    }
    assert len(bs.qat.ledger(model).quantized) == 2
    assert not any(module._forward_hooks for module in model.modules())


def test_scales_are_torch_ao_s() -> None:
    """The same data through torch.ao's own prepare and convert: the same input scales."""
    theirs = nn.Sequential(ao.QuantStub(), nn.Linear(6, 4), ao.DeQuantStub()).eval()
    ours = nn.Sequential(nn.Linear(6, 4))
    theirs.qconfig = STATIC
    data = [torch.randn(5, 6) for _ in range(4)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.ao says that it is deprecated
        ao.prepare(theirs, inplace=True)
        shown(theirs, data)
        stub = theirs[0].activation_post_process.calculate_qparams()
    convert(shown(prepare(ours, STATIC), data))
    assert torch.equal(ours[0].input.scale.flatten(), stub[0])
    assert torch.equal(ours[0].input.zero_point.flatten(), stub[1])


def test_a_copy_is_prepared_by_itself() -> None:
    data, model = images(), prepare(net(), STATIC)
    other = copy.deepcopy(model)
    convert(shown(model, data))
    with pytest.raises(ValueError, match=r"the input of 0: 'min_max' .* saw no data"):
        convert(other)
    assert torch.equal(convert(shown(other, data))(data[0]), model(data[0]))


def test_copies_as_torch_ao_s() -> None:
    data, model = images(), net()
    prepared = shown(prepare(model, STATIC, inplace=False), data)
    quantized = convert(prepared, inplace=False)
    assert "_observed" not in vars(model)
    assert type(model[0]) is type(prepared[0]) is nn.Conv2d
    assert torch.equal(prepared(data[0]), model(data[0]))
    assert torch.equal(convert(prepared)(data[0]), quantized(data[0]))


def test_attributes_of_torch_ao_s_eager_mode() -> None:
    model = net()
    model.qconfig = STATIC
    model[0].qconfig = None
    assert type(convert(shown(prepare(model), images()))[0]) is nn.Conv2d
    assert str(model[3].input.format) == "uint8:tensor:fp32:asym:recip"
    with pytest.raises(ValueError, match=r"or set model\.qconfig, as torch\.ao"):
        prepare(net())


def test_dynamic_activations_stay_dynamic() -> None:
    mapping = QConfigMapping().set_global(STATIC)
    mapping.set_module_name("3", torch_ao.default_dynamic_qconfig)
    model = convert(shown(prepare(net(), mapping), images()))
    assert model[0].input.static
    assert not model[3].input.static


def test_convert_is_qat_s_after_training() -> None:
    model = torch_ao.prepare_qat(net().train(), STATIC)
    with pytest.raises(ValueError, match="already prepared"):
        prepare(model, STATIC)
    shown(model, images()).eval()
    x = images()[0]
    with torch.no_grad():
        expected = model(x)
        assert torch.equal(convert(model)(x), expected)


def test_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="not prepared: prepare or prepare_qat it first"):
        convert(net())
    model = prepare(net(), STATIC)
    with pytest.raises(ValueError, match="already prepared"):
        prepare(model, STATIC)
    with pytest.raises(TypeError, match="expected a QConfig or a QConfigMapping"):
        prepare(net(), 3)
    with pytest.raises(ValueError, match="unknown observer 'nothing'"):
        prepare(net(), STATIC, observer="nothing")
    both = nn.Sequential(net(), nn.Embedding(4, 4, max_norm=1.0))
    with pytest.raises(bs.SkippedError):
        prepare(both, STATIC, strict=True)
    assert not any(module._forward_hooks for module in both.modules())


def test_convolutions_in_space_and_transposed_ones() -> None:
    """An observer of their inputs sees channels, as in bs.calibrate."""
    torch.manual_seed(2)
    layers = nn.Conv3d(3, 4, 2), nn.ReLU(), nn.ConvTranspose3d(4, 6, 2, stride=2, groups=2)
    model, data = nn.Sequential(*layers).eval(), [torch.randn(2, 3, 4, 4, 4) for _ in range(2)]
    expected, config = copy.deepcopy(model), QConfig("int8:channel-1:fp32", "int8_channel")
    bs.calibrate(expected, data, to_recipe(config), "moving_average", progress=False)
    found = convert(shown(prepare(model, config), data))
    assert found[2].input.scale.numel() == 4
    state = expected.state_dict()
    for name, value in found.state_dict().items():
        same = (
            torch.equal(value, state[name]) if isinstance(value, Tensor) else value == state[name]
        )
        assert same, name
