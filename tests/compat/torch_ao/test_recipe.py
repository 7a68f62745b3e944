# SPDX-License-Identifier: BSD-3-Clause
"""torch.ao's mappings as recipes: its own choice for each layer."""

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.ao import quantization as ao
from torch.ao.quantization.fx.qconfig_mapping_utils import _generate_node_name_to_qconfig

import blockscale as bs
from blockscale.compat import torch_ao
from blockscale.compat.torch_ao import (
    FakeQuantize,
    MinMaxObserver,
    PerChannelMinMaxObserver,
    PlaceholderObserver,
    QConfig,
    QConfigMapping,
    power_of_2,
    to_format,
    to_observer,
    to_recipe,
)
from blockscale.compat.torch_ao.recipe import instance, to_scheme
from blockscale.core.recipe import Scheme
from tests.compat.torch_ao.configurations import (
    AFFINE,
    BY_CHANNEL,
    CHANNELS,
    FORMATS,
    SYMMETRIC,
    given,
    qconfig,
)

pytestmark = pytest.mark.filterwarnings("ignore:Please use quant_min and quant_max")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.first, self.second = nn.Conv2d(2, 2, 1), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.first(self.second(self.conv(x))))  # called in another order than made


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block, self.block2, self.head, self.norm = (
            Block(),
            Block(),
            nn.Linear(4, 2),
            nn.LayerNorm(2),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.head(self.block2(self.block(x))))


def mappings() -> list[QConfigMapping]:
    q = {bits: qconfig(bits) for bits in range(2, 9)}

    def start() -> QConfigMapping:
        return QConfigMapping().set_global(q[8])

    return [
        start(),
        QConfigMapping().set_object_type(nn.Linear, q[7]),
        start().set_object_type(nn.Linear, q[7]).set_object_type(F.relu, q[2]),
        start().set_object_type(nn.Conv2d, None).set_module_name("block2", q[6]),
        start().set_module_name("block", q[6]).set_module_name("block.first", None),
        start().set_module_name("block.first", q[5]).set_module_name("block", None),
        start().set_module_name_regex("block", q[4]).set_module_name("block2.conv", q[3]),
        start().set_module_name_regex(".*first", None).set_module_name_regex("block$", q[3]),
        start().set_module_name_regex("(?=.*2)block", q[3]).set_module_name_regex("b", q[4]),
        start().set_module_name_object_type_order("block", nn.Linear, 0, q[5]),
        start()
        .set_module_name_object_type_order("block2", nn.Linear, 1, None)
        .set_module_name("block2", q[2]),
        start()
        .set_module_name_object_type_order("", nn.Linear, 0, q[3])
        .set_module_name("head", q[2]),
    ]


LAYERS = (
    "block.conv",
    "block.first",
    "block.second",
    "block2.conv",
    "block2.first",
    "block2.second",
    "head",
)


@pytest.mark.some(3)
@pytest.mark.parametrize("index", range(12))
def test_every_layer_gets_what_torch_ao_gives_it(index: int) -> None:
    """The oracle is the function with which prepare_fx decides."""
    mapping, model = mappings()[index], Model()
    traced = fx.symbolic_trace(model)
    scopes = {
        node.name: (str(node.target), type(model.get_submodule(node.target)))
        if node.op == "call_module"
        else ("", None)
        for node in traced.graph.nodes
    }
    chosen = _generate_node_name_to_qconfig(
        traced, dict(traced.named_modules()), traced.graph, mapping, scopes
    )
    recipe = to_recipe(mapping, model)
    for node in traced.graph.nodes:
        if node.target in LAYERS:
            expected = chosen[node.name]
            weight, fmt = recipe.decide(node.target)[0].weight, recipe.decide(node.target)[0].input
            if expected is None:
                assert (weight, fmt) == (None, None)
            else:
                assert weight == to_format(expected.weight())
                assert fmt == to_format(expected.activation())
    if index in (0, 4, 5, 6):  # the others need the model
        alone = to_recipe(mapping)
        assert all(alone.decide(name)[0] == recipe.decide(name)[0] for name in LAYERS)
    else:
        with pytest.raises(ValueError, match="pass the model to to_recipe, too"):
            to_recipe(mapping)


@pytest.mark.parametrize("backend", ["x86", "fbgemm", "qnnpack"])
def test_the_default_mappings_translate(backend: str) -> None:
    for make in ("get_default_qconfig_mapping", "get_default_qat_qconfig_mapping"):
        theirs = to_recipe(getattr(ao, make)(backend), Model())
        ours = to_recipe(getattr(torch_ao, make)(backend), Model())
        assert theirs == ours
        rounded = to_recipe(power_of_2(getattr(ao, make)(backend)), Model())
        assert rounded.weight.scale.rule == rounded.input.scale.rule == "nearest"


INT8 = MinMaxObserver.with_args(dtype=torch.qint8)
AXIS1 = PerChannelMinMaxObserver.with_args(ch_axis=1)


@pytest.mark.parametrize(
    ("message", "config"),
    [
        ("global: activations are quantized only along", ao.default_activation_only_qconfig),
        ("global: weight: PlaceholderObserver of dtype", ao.float16_static_qconfig),
        (
            "module_name 'head': weight: .*no integer zero point",
            QConfigMapping().set_module_name("head", ao.float_qparams_weight_only_qconfig),
        ),
        (
            "module_name_regex 'h': weight: NoopObserver",
            QConfigMapping().set_module_name_regex("h", ao.default_reuse_input_qconfig),
        ),
        (
            "object_type linear: a Recipe quantizes layers, not calls",
            QConfigMapping().set_object_type(F.linear, qconfig(8)),
        ),
        ("global: weight: its channels are channel1, expected .*channel0", QConfig(None, AXIS1)),
        ("global: activation: its channels are channel1", QConfig(AXIS1, INT8)),
        ("global: weight: unknown format 'fp99'", QConfig(None, "fp99")),
    ],
)
def test_what_is_no_recipe(message: str, config: Any) -> None:
    with pytest.raises(ValueError, match=message):
        to_recipe(config)


def test_other_errors() -> None:
    with pytest.raises(TypeError, match="expected a QConfig or a QConfigMapping, found str"):
        to_recipe("int8")
    bad = QConfigMapping().set_object_type(nn.Linear, ao.float16_static_qconfig)
    with pytest.raises(ValueError, match=r"object_type Linear, layer 'block\.first': weight"):
        to_recipe(bad, Model())

    class Untraceable(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x if x.sum() > 0 else -x

    ordered = QConfigMapping().set_module_name_object_type_order("", nn.Linear, 0, None)
    with pytest.raises(ValueError, match=r"needs a model that torch\.fx traces"):
        to_recipe(ordered, Untraceable())


def test_parts_may_be_formats() -> None:
    """So that every format goes where torch.ao's flows name a QConfig."""
    mapping = QConfigMapping().set_global(QConfig(activation="mxfp8", weight="bfp8"))
    mapping.set_module_name("block", QConfig(activation=None, weight=bs.parse("nvfp4")))
    recipe = to_recipe(mapping)
    assert recipe == bs.Recipe("bfp8", "mxfp8", rules={"block": {"weight": "nvfp4", "input": None}})
    rounded = to_recipe(power_of_2(mapping))
    assert str(rounded.decide("block.conv")[0].weight) == "e2m1:group16:pow2/nearest"
    assert rounded.weight == bs.parse("bfp8")  # e8m0 scales are powers of two
    assert power_of_2(mapping, enabled=False).global_qconfig == mapping.global_qconfig
    assert to_observer(mapping) == "moving_average"


def values() -> Tensor:
    wide = torch.randn(6, 300) * torch.tensor([1e-5, 1e-2, 1.0, 1.0, 50.0, 1e6])[:, None]
    return torch.cat([wide, (wide * 64).round() / 128])


@pytest.mark.parametrize(("arguments", "fmt"), FORMATS + CHANNELS)
def test_formats_have_torch_ao_s_bits(arguments: dict[str, Any], fmt: str) -> None:
    """Values and scales of torch.ao's fake quantizer, wherever its eps does not decide."""
    kind = ao.PerChannelMinMaxObserver if "channel" in fmt else ao.MinMaxObserver
    for x in (values(), values().abs(), -values()[:2]):
        fake = ao.FakeQuantize(kind, **arguments)
        found = to_format(fake)
        assert str(found) == fmt
        assert to_format(fake.activation_post_process) == found
        expected = fake(x)
        within = (fake.scale > 2**-23).reshape(-1, 1)
        assert torch.equal(
            torch.where(within, bs.fake_quantize(x, found), 0), torch.where(within, expected, 0)
        )
        scale = bs.choose_qparams(x, found)[0].flatten()
        assert torch.equal(scale[within.flatten()], fake.scale[within.flatten()])


@pytest.mark.parametrize(
    "arguments", [arguments for arguments, fmt in FORMATS if "half" not in fmt]
)
def test_power_of_two_formats_have_its_bits(arguments: dict[str, Any]) -> None:
    for x in values()[2:].split(1):
        fake = FakeQuantize(MinMaxObserver, power_of_2_scale=True, **arguments)
        assert torch.equal(fake(x), bs.fake_quantize(x, to_format(fake)))


def near(threshold: float, count: int) -> list[float]:
    """The float32 nearest to a number, and `count` on each side of it."""
    bits = torch.tensor(threshold, dtype=torch.float32).view(torch.int32)
    ours = bits + torch.arange(-count, count + 1, dtype=torch.int32)
    return ours.view(torch.float32).tolist()


def largest_magnitudes(levels: tuple[float, ...]) -> list[float]:
    """Through three octaves in steps of 2^-10, and every float32 around where a scale changes."""
    found = [2.0**octave * (1 + i / 1024) for octave in (-9, 0, 5) for i in range(1024)]
    for octave in (-10, -1, 0, 7):
        for level in levels:
            for power in (2.0**octave, 2.0 ** (octave + 0.5)):
                found += near(power * level, 40)
    return found


@pytest.mark.parametrize("arguments", [arguments for arguments, _ in FORMATS])
def test_one_power_for_one_range(arguments: dict[str, Any]) -> None:
    """The format takes the observer's scale and zero point, whatever the range: also where 127 and
    127.5 levels lie on different sides of a threshold."""
    kind = {**arguments, "qscheme": BY_CHANNEL[arguments["qscheme"]]}
    observer = PerChannelMinMaxObserver(**kind, power_of_2_scale=True)
    steps = float(observer.quant_max - observer.quant_min)
    high = torch.tensor(largest_magnitudes((steps, steps / 2, (steps - 1) / 2)))
    low = -high * torch.tensor([0.0, 0.3, 1.0, 1.25])[torch.arange(len(high)) % 4]
    x = torch.stack([low, high], 1)
    observer(x)
    scale, zero_point = observer.calculate_qparams()
    fmt = to_format(observer)
    expected, zero = bs.choose_qparams(x, fmt)
    within = expected.flatten() > 2.0**-23  # below it torch.ao's eps decides
    assert within.sum() > len(x) * 0.6
    assert torch.equal(scale[within], expected.flatten()[within])
    if zero is not None:
        assert torch.equal(zero_point[within], zero.flatten()[within].to(zero_point.dtype))


@pytest.mark.slow
@pytest.mark.some(8)
@pytest.mark.parametrize("arguments", [arguments for arguments, _ in FORMATS])
def test_the_power_is_nearest_to_torch_ao_s_scale(arguments: dict[str, Any]) -> None:
    for value in torch.linspace(1, 2, 601).tolist():
        found = []
        for power_of_2_scale in (True, False):
            observer = MinMaxObserver(**arguments, power_of_2_scale=power_of_2_scale)
            observer(torch.tensor([value]))
            found.append(observer.calculate_qparams()[0])
        assert found[0] == bs.round_to_power_of_2(found[1])


FLOAT_ZERO = torch.per_channel_affine_float_qparams


@pytest.mark.parametrize(
    ("message", "observer"),
    [
        (r"the affine range 0 \.\.\. 100 is not", MinMaxObserver(quant_min=0, quant_max=100)),
        (
            r"symmetric range -127 \.\.\. 128",
            MinMaxObserver(**given(torch.quint8, SYMMETRIC, 0, 255)),
        ),
        ("affine range -127", MinMaxObserver(**given(torch.qint8, AFFINE, -127, 127))),
        (r"dtype torch\.qint32 has no integers", MinMaxObserver(dtype=torch.qint32)),
        ("no integer zero point", PerChannelMinMaxObserver(qscheme=FLOAT_ZERO)),
        (r"PlaceholderObserver of dtype torch\.float16", PlaceholderObserver(dtype=torch.float16)),
        ("has a fixed scale: pass it to quantize_", ao.FixedQParamsObserver(1 / 256, 0)),
        ("NoopObserver of dtype", ao.NoopObserver()),
        ("Linear of dtype None has no integers", nn.Linear(2, 2)),
    ],
)
def test_what_is_no_format(message: str, observer: nn.Module) -> None:
    with pytest.raises(ValueError, match=message):
        to_format(observer)


# One QConfig as the formats of a layer.


def test_float_and_dynamic() -> None:
    assert to_format(nn.Identity()) is None
    assert to_format(PlaceholderObserver()) is None
    dynamic = PlaceholderObserver(dtype=torch.quint8, is_dynamic=True, power_of_2_scale=True)
    assert str(to_format(dynamic)) == "uint8:tensor:pow2/nearest:asym"
    recipe = to_recipe(torch_ao.default_dynamic_qconfig, outputs=True)
    assert str(recipe.input) == "uint8:tensor:fp32:asym:recip"
    assert recipe.output is None
    assert (
        to_recipe(torch_ao.default_qconfig, outputs=True).output
        == to_recipe(torch_ao.default_qconfig).input
    )
    assert to_recipe(None) == bs.Recipe()
    assert to_recipe(torch_ao.default_weight_only_qconfig).default == Scheme(
        bs.parse("int8:tensor:fp32:half:recip")
    )


def test_an_output_has_the_format_of_the_activation_unless_it_is_dynamic() -> None:
    config = QConfig(activation="int8", weight="int8_channel")
    weight, fmt = bs.parse("int8_channel"), bs.parse("int8")
    assert to_scheme(config) == Scheme(weight, fmt)
    assert to_scheme(config, outputs=True) == Scheme(weight, fmt, fmt)
    dynamic = PlaceholderObserver.with_args(dtype=torch.quint8, is_dynamic=True)
    found = to_scheme(QConfig(dynamic, "int8"), outputs=True)
    assert (str(found.input), found.output) == ("uint8:tensor:fp32:asym:recip", None)
    assert to_scheme(None, outputs=True) == Scheme()


def test_an_error_says_where() -> None:
    for config, message in (
        (QConfig("int8", None), "^here: activations are quantized only along with a weight"),
        (QConfig(None, "fp99"), "^here: weight: unknown format 'fp99'"),
        (
            QConfig("fp99", "int8"),
            "here: activation: unknown format 'fp99': did you mean fp8, bfp8, nvfp4.",
        ),
        (QConfig("int8_token", "int8_token"), None),
    ):
        if message is None:  # formats that are written out may have any block
            assert str(to_scheme(config).weight) == "int8:token:fp32"
            continue
        with pytest.raises(ValueError, match=message):
            to_scheme(config, "here")


def test_nothing_is_said_while_a_constructor_is_read() -> None:
    """torch.ao warns of reduce_range; that is for whoever wrote it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = instance(MinMaxObserver.with_args(dtype=torch.qint8, reduce_range=True))
    assert (made.quant_min, made.quant_max) == (-64, 63)
