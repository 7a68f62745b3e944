# SPDX-License-Identifier: BSD-3-Clause
"""torch.ao's mappings as recipes: its own choice for each layer."""

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
    MinMaxObserver,
    PerChannelMinMaxObserver,
    QConfig,
    QConfigMapping,
    power_of_2,
    to_format,
    to_observer,
    to_recipe,
)
from tests.compat.torch_ao.configurations import (
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
