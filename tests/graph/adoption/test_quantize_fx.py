# SPDX-License-Identifier: BSD-3-Clause
"""The older quantize_fx flow: its graph modules as programs, and its configurations as recipes."""

import copy

import pytest
import torch
from torch import nn
from torch.ao.quantization import QConfigMapping, get_default_qconfig_mapping, quantize_fx
from torch.ao.quantization import get_default_qat_qconfig_mapping as qat_mapping
from torch.ao.quantization.backend_config import get_onednn_backend_config

import blockscale as bs
from blockscale.compat.torch_ao import QConfig, to_recipe
from blockscale.compat.torch_ao import convert as convert_modules
from blockscale.compat.torch_ao import prepare as prepare_modules
from blockscale.graph.adoption.quantize_fx import from_quantize_fx
from blockscale.graph.program import import_graph
from tests.compat.torch_ao.prepared import with_quantized_weights
from tests.graph.adoption.cases import adopted, left
from tests.support.op_samples import bits

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
X = (torch.linspace(-3, 3, 4 * 3 * 36).reshape(4, 3, 6, 6),)
FREE = ({0: torch.export.Dim("batch", min=2)},)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.bn = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)
        self.fc, self.last = nn.Linear(128, 16), nn.Linear(16, 4)

    def forward(self, input):
        y = torch.relu(self.bn(self.conv(input))).flatten(1)
        return self.last(torch.relu(self.fc(y)))


def prepared(mapping, qat: bool = False):
    if qat:
        made = quantize_fx.prepare_qat_fx(Net().train(), mapping, X)
        made(*X)
        return made.eval()
    made = quantize_fx.prepare_fx(Net().eval(), mapping, X)
    made(*X)
    return made


MAPPINGS = {
    "x86": get_default_qconfig_mapping("x86"),
    "qnnpack": get_default_qconfig_mapping("qnnpack"),
    "dynamic": QConfigMapping().set_global(torch.ao.quantization.default_dynamic_qconfig),
    "partly": get_default_qconfig_mapping("onednn").set_module_name("fc", None),
}


@pytest.mark.slow
@pytest.mark.some(5)
@pytest.mark.parametrize("name", MAPPINGS)
def test_prepared_models(name: str) -> None:
    observed = prepared(MAPPINGS[name])
    theirs = quantize_fx._convert_to_reference_decomposed_fx(copy.deepcopy(observed))
    sizes = FREE if name != "dynamic" else None
    program = from_quantize_fx(observed, X, dynamic_shapes=sizes)
    with bs.use("reference"), torch.no_grad():
        graph = adopted(import_graph(program))
        expected = bits(theirs(*X))
        assert bits(graph(*X)) == expected
        assert bits(bs.graph.fuse(program)(*X)) == expected
        if sizes:
            assert bits(graph(X[0][:2])) == bits(theirs(X[0][:2]))
    assert not [each for each in left(graph) if "choose" not in each]
    state = dict(graph.named_buffers())
    assert ("fc.weight.codes" in state) == (name != "partly")
    assert state["last.weight.codes"].dtype == torch.int8


@pytest.mark.slow
def test_trained_models() -> None:
    observed = prepared(qat_mapping("x86"), qat=True)
    theirs = quantize_fx._convert_to_reference_decomposed_fx(copy.deepcopy(observed))
    program = from_quantize_fx(observed, X)
    with bs.use("reference"), torch.no_grad():
        graph = adopted(import_graph(program))
        assert bits(graph(*X)) == bits(theirs(*X))
    assert not left(graph)


@pytest.mark.slow
def test_reference_models() -> None:
    """convert_to_reference_fx: its quantized tensors and reference modules."""
    mapping = get_default_qconfig_mapping("onednn")  # all of 0 … 255, as torch.quint8 has
    observed = prepared(mapping)
    reference = quantize_fx.convert_to_reference_fx(copy.deepcopy(observed))
    decomposed = quantize_fx._convert_to_reference_decomposed_fx(copy.deepcopy(observed))
    before = str(reference.graph)
    program = from_quantize_fx(reference, X)
    assert str(reference.graph) == before
    with bs.use("reference"), torch.no_grad():
        graph = adopted(import_graph(program))
        assert not left(graph)
        same_codes = mapping.global_qconfig.activation().quant_max == 255
        assert same_codes
        assert bits(graph(*X)) == bits(decomposed(*X))


class Residual(nn.Module):
    """What torch.ao fuses for onednn into ConvAdd2d, and with relu into ConvAddReLU2d."""

    def __init__(self, relu: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 1)
        self.relu, self.rectifies = nn.ReLU(), relu

    def forward(self, input):
        y = self.second(self.first(input)) + input
        return self.relu(y) if self.rectifies else y


@pytest.mark.slow
@pytest.mark.some(5)
@pytest.mark.parametrize("relu", [False, True])
def test_residual_convolutions_of_onednn(relu: bool) -> None:
    """Weights as codes, from the observed and from the reference model, with torch.ao's bits."""
    onednn = get_onednn_backend_config()
    mapping = get_default_qconfig_mapping("onednn")
    observed = quantize_fx.prepare_fx(Residual(relu).eval(), mapping, X, backend_config=onednn)
    observed(*X)
    name = "ConvAddReLU2d" if relu else "ConvAdd2d"
    assert type(observed.second).__name__ == name
    theirs, reference = (
        convert(copy.deepcopy(observed), backend_config=onednn)
        for convert in (
            quantize_fx._convert_to_reference_decomposed_fx, quantize_fx.convert_to_reference_fx,
        )
    )  # fmt: skip
    with bs.use("reference"), torch.no_grad():
        expected = bits(theirs(*X))
        for model in (observed, reference):
            graph = bs.graph.fuse(from_quantize_fx(model, X))
            assert bits(graph(*X)) == expected
            names = [n for n, _ in graph.named_buffers() if n.endswith("weight.codes")]
            assert names == ["first.weight.codes", "second.0.weight.codes"]
            ops = [str(node.target) for node in graph.graph.nodes]
            assert not any("aten.conv" in op for op in ops)
        given = from_quantize_fx(observed, X, backend_config=onednn)
        assert bits(bs.graph.fuse(given)(*X)) == expected


@pytest.mark.slow
@pytest.mark.parametrize("relu", [False, True])
def test_residual_convolutions_in_formats(relu: bool) -> None:
    mapping = QConfigMapping().set_global(QConfig("bfp8", "mxfp4", ch_axis=1))
    observed = quantize_fx.prepare_fx(
        Residual(relu).eval(), mapping, X, backend_config=get_onednn_backend_config()
    )
    observed(*X)
    program = from_quantize_fx(observed, X)
    with bs.use("reference"), torch.no_grad():
        expected = bits(with_quantized_weights(observed, mapping.global_qconfig)(*X))
        assert bits(program.module()(*X)) == expected


def test_a_backend_of_somebody_s_own() -> None:
    class Theirs(nn.Linear):
        pass

    observed = prepared(MAPPINGS["x86"])
    observed.fc.__class__ = Theirs
    with pytest.raises(
        ValueError,
        match=r"none of torch\.ao's backends has fc \(Theirs\), .* pass the backend",
    ):
        from_quantize_fx(observed, X)


NORMS = {1: nn.InstanceNorm1d, 2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d}


@pytest.mark.slow
@pytest.mark.some(6)
@pytest.mark.parametrize("dims", NORMS)
def test_instance_norms(dims: int) -> None:
    """Of torch.ao's static map: one op from codes to codes."""
    convs = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
    torch.manual_seed(0)
    layers = convs[dims](3, 4, 1), NORMS[dims](4, affine=True), convs[dims](4, 2, 1)
    x = (torch.randn(2, 3, *(4,) * dims),)
    mapping = get_default_qconfig_mapping("onednn")
    observed = quantize_fx.prepare_fx(nn.Sequential(*layers).eval(), mapping, x)
    observed(*x)
    theirs = quantize_fx._convert_to_reference_decomposed_fx(copy.deepcopy(observed))
    with bs.use("reference"), torch.no_grad():
        graph = bs.graph.fuse(from_quantize_fx(observed, x))
        assert bits(graph(*x)) == bits(theirs(*x))
    assert any("fused_instance_norm" in str(node.target) for node in graph.graph.nodes)


def test_what_is_refused() -> None:
    observed = prepared(MAPPINGS["x86"])
    with pytest.raises(ValueError, match="packed for a backend"):
        from_quantize_fx(quantize_fx.convert_fx(copy.deepcopy(observed)), X)
    with pytest.raises(TypeError, match="found a Net: export a float model"):
        from_quantize_fx(Net(), X)
    with pytest.raises(ValueError, match="training mode"):
        from_quantize_fx(copy.deepcopy(observed).train(), X)
    dynamic = quantize_fx.convert_to_reference_fx(prepared(MAPPINGS["dynamic"]))
    with pytest.raises(ValueError, match="chosen at run time"):
        from_quantize_fx(dynamic, X)


@pytest.mark.slow
@pytest.mark.parametrize("fmt", ["bfp8", "mxfp8", "int8"])
def test_a_mapping_as_a_recipe(fmt: str) -> None:
    """The founding package's path: QConfigMapping -> graph, block floating point and all."""
    mapping = QConfigMapping().set_global(QConfig(activation=fmt, weight=fmt))
    mapping.set_module_name("last", None)
    model = Net().eval()
    model.conv = torch.nn.utils.fusion.fuse_conv_bn_eval(model.conv, model.bn)
    model.bn = nn.Identity()
    recipe = to_recipe(mapping, model)
    with bs.use("reference"), torch.no_grad():
        program = torch.export.export(model, X)
        graph = bs.graph.prepare(program, recipe, observer="min_max")
        graph(*X)
        made = bs.graph.convert(graph)
        modules = prepare_modules(copy.deepcopy(model), mapping, observer="min_max")
        modules(*X)
        convert_modules(modules)
        assert bits(made(*X)) == bits(modules(*X))
        assert bits(bs.graph.fuse(made)(*X)) == bits(modules(*X))
