"""torch.ao's configurations as formats and recipes: its own bits, its own choice for each layer."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.ao import quantization as ao
from torch.ao.quantization.fx.qconfig_mapping_utils import _generate_node_name_to_qconfig

import blockscale as bs
from blockscale import qat
from blockscale.compat import torch_ao
from blockscale.compat.torch_ao import (
    FakeQuantize,
    HistogramObserver,
    MinMaxObserver,
    MovingAverageMinMaxObserver,
    PerChannelMinMaxObserver,
    PlaceholderObserver,
    QConfig,
    QConfigMapping,
    power_of_2,
    to_format,
    to_observer,
    to_recipe,
)
from blockscale.core.recipe import Scheme
from blockscale.graph.integer.convert import to_integer, with_integer_bias

pytestmark = pytest.mark.filterwarnings("ignore:Please use quant_min and quant_max")

SYMMETRIC, AFFINE = torch.per_tensor_symmetric, torch.per_tensor_affine


def given(dtype: torch.dtype, qscheme: torch.qscheme, *limits: int, **more: Any) -> dict[str, Any]:
    """An observer's arguments."""
    ends = dict(zip(("quant_min", "quant_max"), limits, strict=False))
    return {"dtype": dtype, "qscheme": qscheme, **ends, **more}


FORMATS: list[tuple[dict[str, Any], str]] = [
    (given(torch.quint8, AFFINE), "uint8:tensor:fp32:asym:recip"),
    (given(torch.qint8, AFFINE), "int8:tensor:fp32:asym:recip"),
    (given(torch.qint8, SYMMETRIC), "int8:tensor:fp32:half:recip"),
    (given(torch.int8, SYMMETRIC), "int8:tensor:fp32:half:recip"),
    (given(torch.quint8, SYMMETRIC), "int8:tensor:fp32:half:recip"),
    (given(torch.qint8, SYMMETRIC, reduce_range=True), "int7:tensor:fp32:half:recip"),
    (given(torch.quint8, AFFINE, reduce_range=True), "uint7:tensor:fp32:asym:recip"),
    (given(torch.int16, SYMMETRIC), "int16:tensor:fp32:half:recip"),
    (given(torch.quint8, AFFINE, 0, 15), "uint4:tensor:fp32:asym:recip"),
    (given(torch.quint8, SYMMETRIC, 0, 254), "int8:tensor:fp32:recip"),
    (given(torch.qint8, SYMMETRIC, -127, 127), "int8:tensor:fp32:recip"),
    (given(torch.qint8, SYMMETRIC, -8, 7), "int4:tensor:fp32:half:recip"),
    (given(torch.qint8, AFFINE, -2, 1), "int2:tensor:fp32:asym:recip"),
]
BY_CHANNEL = {SYMMETRIC: torch.per_channel_symmetric, AFFINE: torch.per_channel_affine}
CHANNELS = [
    ({**arguments, "qscheme": BY_CHANNEL[arguments["qscheme"]]}, fmt.replace("tensor", "channel0"))
    for arguments, fmt in FORMATS
]


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


def test_half_becomes_full_under_powers_of_two() -> None:
    """amax / 127 is rounded instead of amax / 127.5: one exponent more where √2 is between them."""
    amax = torch.linspace(1, 2, 2001)
    ratio = []
    for value in amax.tolist():
        observer = MinMaxObserver(**given(torch.qint8, SYMMETRIC), power_of_2_scale=True)
        x = torch.tensor([value])
        observer(x)
        assert str(to_format(observer)) == "int8:tensor:pow2/nearest:full"
        ratio.append(
            (bs.choose_qparams(x, to_format(observer))[0] / observer.calculate_qparams()[0]).item()
        )
    assert set(ratio) == {1.0, 2.0}
    differs = [a / 127 for a, r in zip(amax.tolist(), ratio, strict=True) if r == 2]
    assert all(s / 2**0.5 * 128 > 1 > s / 2**0.5 * 128 * 127 / 127.5 for s in differs)
    assert 1 <= len(differs) <= 12  # of 2001: about 0.4 %


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
        ("has a fixed scale: give it to quantize_", ao.FixedQParamsObserver(1 / 256, 0)),
        ("NoopObserver of dtype", ao.NoopObserver()),
        ("Linear of dtype None has no integers", nn.Linear(2, 2)),
    ],
)
def test_what_is_no_format(message: str, observer: nn.Module) -> None:
    with pytest.raises(ValueError, match=message):
        to_format(observer)


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


def qconfig(bits: int) -> QConfig:
    """One of as many different ones as there are ranges."""
    half = 2 ** (bits - 1)
    weight = MinMaxObserver.with_args(**given(torch.qint8, SYMMETRIC, -half, half - 1))
    return QConfig(MovingAverageMinMaxObserver.with_args(power_of_2_scale=True), weight)


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
        with pytest.raises(ValueError, match="give to_recipe the model, too"):
            to_recipe(mapping)


def test_every_entry_of_a_mapping_gets_powers_of_two() -> None:
    """And what was given stays what it was."""
    q = {bits: QConfig(qconfig(bits).weight, qconfig(bits).weight) for bits in range(2, 7)}
    mapping = QConfigMapping().set_global(q[2]).set_object_type(nn.Linear, q[3])
    mapping.set_module_name_regex("b", q[4]).set_module_name("b", q[5])
    mapping.set_module_name_object_type_order("b", nn.Linear, 0, q[6])
    for enabled in (True, False):
        found, given_ones = (
            [m.global_qconfig, *(c for part in list(vars(m).values())[1:] for c in part.values())]
            for m in (power_of_2(mapping, enabled), mapping)
        )
        assert given_ones == list(q.values())
        for ours, theirs in zip(found, given_ones, strict=True):
            for a, b in zip(ours, theirs, strict=True):
                assert (a().power_of_2_scale, a().quant_max) == (enabled, b().quant_max)
                assert not b().power_of_2_scale


@pytest.mark.parametrize("backend", ["x86", "fbgemm", "qnnpack"])
def test_the_default_mappings_translate(backend: str) -> None:
    for make in ("get_default_qconfig_mapping", "get_default_qat_qconfig_mapping"):
        theirs = to_recipe(getattr(ao, make)(backend), Model())
        ours = to_recipe(getattr(torch_ao, make)(backend), Model())
        assert theirs == ours
        rounded = to_recipe(power_of_2(getattr(ao, make)(backend)), Model())
        assert rounded.weight.scale.rule == rounded.input.scale.rule == "nearest"


def test_ready_made_ones() -> None:
    for name in torch_ao.qconfig.DEFAULTS:
        ours, theirs = getattr(torch_ao, name), getattr(ao, name)
        if isinstance(theirs, QConfig):
            pairs = list(zip(ours, theirs, strict=True))
        else:
            pairs = [(ours, theirs)]
        for a, b in pairs:
            assert isinstance(a(), type(b()))
            if type(b()) not in (nn.Identity, ao.PlaceholderObserver):
                assert type(a()).__module__.startswith("blockscale.")
                assert (a().quant_min, a().quant_max, a().dtype) == (
                    b().quant_min,
                    b().quant_max,
                    b().dtype,
                )
                assert power_of_2(b)().calculate_qparams  # takes the argument
    with pytest.raises(AttributeError, match="has no attribute 'default_nothing'"):
        _ = torch_ao.default_nothing
    called = MinMaxObserver.with_args(dtype=torch.qint8).with_callable_args(eps=lambda: 0.25)
    assert power_of_2(called)().eps.item() == 0.25

    class Own(ao.MinMaxObserver):
        pass

    assert power_of_2(Own) is Own
    with pytest.raises(ValueError, match=r"only torch\.ao's observers can round"):
        power_of_2(ao.FakeQuantize.with_args(observer=Own))


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
        ("global: weight: its channels are channel1, here .* channel0", QConfig(None, AXIS1)),
        ("global: activation: its channels are channel1", QConfig(AXIS1, INT8)),
        ("global: weight: no format 'fp99'", QConfig(None, "fp99")),
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


def test_observers_by_name() -> None:
    assert to_observer(torch_ao.default_qat_qconfig) == "moving_average:0.01"
    assert to_observer(ao.get_default_qconfig()) == "mse"
    assert to_observer(torch_ao.default_qconfig) == "min_max"
    assert to_observer(torch_ao.default_dynamic_qconfig) == to_observer(None) == "moving_average"
    several = (
        QConfigMapping()
        .set_global(ao.default_qconfig)
        .set_module_name("a", ao.get_default_qconfig())
    )
    with pytest.raises(ValueError, match="several observers, min_max, mse: choose one"):
        to_observer(several)
    with pytest.raises(ValueError, match="RecordingObserver has no counterpart"):
        to_observer(ao.default_debug_qconfig)
    fixed = HistogramObserver.with_args(bins=16)
    assert (
        to_observer(QConfigMapping().set_object_type(nn.LayerNorm, QConfig(fixed, None)))
        == "moving_average"
    )


def test_training_by_a_mapping_down_to_integers() -> None:
    """prepare_qat, train, convert, and then integers alone: the same numbers all the way."""
    model = nn.Sequential(nn.Linear(16, 12), nn.ReLU(), nn.Linear(12, 4))
    weight = FakeQuantize.with_args(
        observer=MinMaxObserver, dtype=torch.qint8, qscheme=SYMMETRIC, power_of_2_scale=True
    )
    activation = FakeQuantize.with_args(observer=MovingAverageMinMaxObserver, power_of_2_scale=True)
    assert torch_ao.prepare_qat(model, QConfig(activation, weight)) is model
    for _ in range(5):
        x = torch.randn(32, 16)
        (model(x) - x[:, :4]).square().mean().backward()
        for parameter in model.parameters():
            parameter.data -= 0.05 * parameter.grad
    model.eval()
    x = torch.randn(9, 16)
    trained = model(x)
    qat.convert(model)
    assert torch.equal(model(x), trained)
    integer = to_integer(model, x)
    assert integer.exact
    assert torch.equal(integer(x), with_integer_bias(model)(x))
