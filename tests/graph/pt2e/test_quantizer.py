# SPDX-License-Identifier: BSD-3-Clause
"""pt2e_quantizer through torchao's flow gives the bits of the module flow, for every format."""

import copy

import pytest
import torch
from torch import nn

import blockscale as bs
from blockscale.calibration.observers import make
from blockscale.core.parse import CATALOG, parse
from blockscale.graph.pt2e import pt2e_quantizer
from tests.graph.pt2e.flow import (
    Net,
    adopted,
    batches,
    exported,
    targets,
    through_modules,
    through_pt2e,
)
from tests.support import fresh
from tests.support.op_samples import bits

pytest.importorskip("torchao")
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


def check(recipe: object, observer: str = "min_max", model: nn.Module | None = None, data=None):
    model, data = model or Net().eval(), data or batches()
    with bs.use("reference"), torch.no_grad():
        graph = through_pt2e(model, recipe, data, observer)
        modules = through_modules(model, recipe, data, observer)
        whole = adopted(graph)
        for batch in (*data, batches(3, 5)[-1]) if isinstance(model, Net) else data:
            expected = bits(modules(*batch))
            assert bits(graph(*batch)) == expected
            assert bits(whole(*batch)) == expected
    return whole, modules


FEW = ("int8_channel", "uint8", "int4", "mxfp4", "nvfp4", "nf4", "ternary", "bfp8")


@pytest.mark.slow
@pytest.mark.some(12)
@pytest.mark.parametrize(
    "fmt", [pytest.param(f, marks=[pytest.mark.slow] * (f not in FEW)) for f in CATALOG]
)
def test_every_format_as_the_modules(fmt: str) -> None:
    observer = "mean" if fmt in ("binary", "ternary") else "min_max"
    rules = {}
    own = fmt
    if parse(fmt).block.name.startswith("channel"):  # of weights; an input's are counted from last
        own = str(parse(fmt)).replace("channel0", "token")
    recipe = bs.Recipe(fmt, own, rules=rules)
    whole, modules = check(recipe, observer)
    names = dict(modules.named_buffers())
    for name, buffer in whole.named_buffers():
        if name.endswith((".codes", ".scale", ".zero_point", ".outer")):
            assert bits(buffer) == bits(names[name]), name
    assert not any(name.endswith("weight") for name, _ in whole.named_parameters())


@pytest.mark.slow
@pytest.mark.some(12)
@pytest.mark.parametrize("formats", [("int8_channel", "uint8"), ("int4", "int8:channel-1:fp32")])
@pytest.mark.parametrize("observer", ["mse", "percentile:99", "moving_average", "entropy"])
def test_observers(observer: str, formats: tuple[str, str]) -> None:
    check(bs.Recipe(*formats), observer)


@pytest.mark.slow
def test_rules_outputs_and_different_formats_of_one_tensor() -> None:
    recipe = bs.Recipe(
        "int8_channel",
        "uint8",
        output="int8",
        rules={"table": {"weight": "nf4", "input": None}, "last": "mxfp4", "conv": None},
        skip=["grouped"],
    )
    whole, _ = check(recipe)
    assert "blockscale.embedding.default" in targets(whole)


class Both(nn.Module):
    """Two layers that read one tensor."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b = nn.Linear(32, 8), nn.Linear(32, 8)

    def forward(self, x):
        return self.a(x) + self.b(x)


def test_edges_of_one_tensor_keep_their_own_formats() -> None:
    """torchao merges observers of one tensor by dtype alone, unless it is told not to."""
    recipe = bs.Recipe("int8_channel", "int8", rules={"b": {"input": "int4:group16:fp32"}})
    data = [(torch.randn(3, 32),)]
    whole, _ = check(recipe, model=Both(), data=data)
    targets_of = {str(n.target): n for n in whole.graph.nodes if n.op == "call_function"}
    assert targets_of["blockscale.choose_quantize.default"].args[1] == "int4:group16:fp32"
    assert targets_of["blockscale.quantize.default"].args[4] == "int8:tensor:fp32"


@pytest.mark.some(5)
@pytest.mark.parametrize("bias", ["int32", "int16:sums", "int8", "mxint8"])
def test_biases(bias: str) -> None:
    """Derived: a bias in steps of input times weight, also under blocks that torchao's own derived
    specs cannot spell; and biases with formats of their own."""
    recipe = bs.Recipe("int8_channel", "uint8", bias=bias)
    whole, modules = check(recipe)
    names = dict(modules.named_buffers())
    assert bits(whole.get_buffer("fc.bias.codes")) == bits(names["fc.bias.codes"])
    assert bits(whole.get_buffer("fc.bias.scale")) == bits(names["fc.bias.scale"])


class Adds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Linear(16, 16)

    def forward(self, x):
        return torch.cat([torch.softmax(self.a(x) + 3 * x, -1), x], -1)


def test_an_ops_inputs_share_one_scale() -> None:
    data = [(torch.randn(3, 16),), (torch.randn(3, 16),)]
    rules = {"op:add": {"input": "uint8", "shared": True}, "op:softmax": {"output": "fp8"}}
    graph = through_pt2e(Adds(), bs.Recipe(rules=rules), data)
    whole = adopted(graph)
    add = next(n for n in whole.graph.nodes if "aten.add" in str(n.target))
    first, second = add.args
    assert first.args[1] is second.args[1] and first.args[2] is second.args[2]
    model = Adds()
    with torch.no_grad():
        seen = [part for (x,) in data for part in (model.a(x), 3 * x)]
    observer = make("min_max", "uint8")
    for part in seen:
        observer.observe(part)
    expected = observer.qparams()
    assert bits(whole.get_buffer("add.inputs.scale")) == bits(expected.scale)
    assert bits(whole.get_buffer("add.inputs.zero_point")) == bits(expected.zero_point)
    for (x,) in data:
        with torch.no_grad():
            one, two = (
                bs.fake_quantize(p, "uint8", expected.scale, expected.zero_point)
                for p in (model.a(x), 3 * x)
            )
            assert bits(add_of(whole, x)) == bits(one + two)


def add_of(graph, x):
    """What the graph's sum is."""
    seen = {}

    class Look(torch.fx.Interpreter):
        def run_node(self, node):
            seen[str(node.target)] = super().run_node(node)
            return seen[str(node.target)]

    Look(graph).run(x)
    return seen["aten.add.Tensor"]


@pytest.mark.slow
def test_batch_norms_are_folded_before() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1))
    for _ in range(3):
        model(torch.randn(8, 3, 6, 6))
    model.eval()
    folded = nn.Sequential(
        torch.nn.utils.fusion.fuse_conv_bn_eval(model[0], model[1]), nn.Identity(), *model[2:]
    )
    data = [(torch.randn(4, 3, 6, 6),)]
    recipe = bs.Recipe("mxint8", "uint8")
    with bs.use("reference"), torch.no_grad():
        whole = adopted(through_pt2e(model, recipe, data))
        expected = through_modules(folded, recipe, data)
        assert bits(whole(*data[0])) == bits(expected(*data[0]))
    assert not any("norm" in target for target in targets(whole))


@pytest.mark.slow
def test_the_ledger_and_patterns_that_match_nothing() -> None:
    quantizer = pt2e_quantizer(bs.Recipe("int8", rules={"nowhere": "int4"}, skip=["fc"]))
    from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e

    with pytest.warns(UserWarning, match="'nowhere' of the recipe matches nothing"):
        prepare_pt2e(exported(Net().eval(), batches()[0]), quantizer)
    assert quantizer.ledger["fc"].status == "kept"
    assert quantizer.ledger["conv"].weight == "int8:tensor:fp32"
    assert quantizer.ledger.unmatched == ("nowhere",)


def test_edges_without_data_are_named_in_one_error() -> None:
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    quantizer = pt2e_quantizer(bs.Recipe("int8", "uint8"))
    prepared = prepare_pt2e(exported(Net().eval(), batches()[0]), quantizer)
    message = "no data: the input of conv, the input of fc, .* the input of up: run batches"
    with pytest.raises(ValueError, match=message):
        convert_pt2e(prepared)


@pytest.mark.slow
def test_formats_that_do_not_fit() -> None:
    from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e

    graph = exported(Net().eval(), batches()[0])
    with pytest.raises(ValueError, match="must be supplied"):
        prepare_pt2e(graph, pt2e_quantizer(bs.Recipe("int8:group32:e8m0/given")))
    with pytest.raises(ValueError, match="unknown observer"):
        pt2e_quantizer(bs.Recipe("int8"), observer="nothing")


@pytest.mark.slow
def test_layers_that_cannot_be_quantized_are_skipped() -> None:
    from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e

    quantizer = pt2e_quantizer(bs.Recipe("int8:group16@2:fp32"))
    with pytest.warns(UserWarning, match="fc: skipped"):
        prepared = prepare_pt2e(exported(Net().eval(), batches()[0]), quantizer)
    assert {entry.status for entry in quantizer.ledger if entry.kind == "Linear"} == {"skipped"}
    assert not any(node.op == "call_module" for node in prepared.graph.nodes)


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.fc = nn.Conv1d(3, 8, 2), nn.Linear(8, 4)

    def forward(self, x):
        return self.fc(torch.relu(self.conv(x)).mean(-1))


@pytest.mark.slow
@pytest.mark.parametrize("fmt", ["int8_channel", "mxfp4", "bfp8"])
def test_training(fmt: str) -> None:
    """Fake quantizers pass a gradient; converted equals prepared in evaluation, and the modules."""
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_qat_pt2e

    model, x = Small(), torch.randn(4, 3, 9)
    recipe = bs.Recipe(fmt, "uint8")
    quantizer = pt2e_quantizer(recipe, observer="min_max", qat=True)
    prepared = prepare_qat_pt2e(exported(model, (x,)), quantizer)
    optimizer = torch.optim.SGD(prepared.parameters(), 0.1)
    with bs.use("reference"):
        before = [p.detach().clone() for p in prepared.parameters()]
        for _ in range(3):
            optimizer.zero_grad()
            prepared(x).square().sum().backward()
            optimizer.step()
        after = list(prepared.parameters())
        assert all(not torch.equal(a, b) for a, b in zip(after, before, strict=True))
        for module in prepared.modules():
            if hasattr(module, "disable_observer"):
                module.disable_observer()
        with torch.no_grad():
            expected = bits(prepared(x))
            whole = adopted(convert_pt2e(copy.deepcopy(prepared)))
            assert bits(whole(x)) == expected
    assert not [n for n, _ in whole.named_parameters() if n.endswith("weight")]


def test_training_refuses_what_it_cannot_convert() -> None:
    from torchao.quantization.pt2e.quantize_pt2e import prepare_qat_pt2e

    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    graph = exported(model.eval(), (torch.randn(4, 3, 6, 6),))
    with pytest.raises(ValueError, match="cannot train a batch norm after a convolution"):
        prepare_qat_pt2e(graph, pt2e_quantizer("int8", qat=True))
    recipe = bs.Recipe("int8", "uint8", bias="int32")
    graph = exported(Small(), (torch.randn(4, 3, 9),))
    with pytest.raises(ValueError, match="cannot train a bias in steps of sums"):
        prepare_qat_pt2e(graph, pt2e_quantizer(recipe, qat=True))


@pytest.mark.slow
def test_the_result_exports_and_loads(tmp_path) -> None:
    data = batches()
    whole = adopted(through_pt2e(Net().eval(), bs.Recipe("int4", "uint8"), data))
    batch = torch.export.Dim("batch", min=2)
    sizes = ({0: batch}, {0: batch})
    program = torch.export.export(whole, data[0], dynamic_shapes=sizes)
    torch.export.save(program, tmp_path / "net.pt2")
    loaded = torch.export.load(tmp_path / "net.pt2").module()
    with torch.no_grad():
        for case in (data[0], batches(1, 7)[0]):
            assert bits(loaded(*case)) == bits(whole(*case))


@pytest.mark.slow
def test_a_missing_torchao_is_named() -> None:
    code = """
import sys
sys.modules["torchao"] = None
import blockscale as bs
from blockscale.calibration.observers import make
from blockscale.graph.pt2e import pt2e_quantizer
assert "torchao.quantization" not in sys.modules
try:
    pt2e_quantizer("int8")
except ImportError as error:
    print(error)
"""
    ran = fresh.run(code, ready=fresh.WITH_OURS)
    assert "torchao is not installed: pip install torchao, or blockscale[test]" in ran.stdout
