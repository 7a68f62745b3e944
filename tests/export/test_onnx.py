# SPDX-License-Identifier: BSD-3-Clause
"""ONNX files: what onnxruntime computes from them is what the converted graph computes.

Codes and scales are equal to the bit (tests/export/to_onnx/). Sums of floats are of another order,
within 1e-5 of the largest number; codes of activations made of such sums may differ by one.
"""

import copy
import sys
from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto
from torch import nn

import blockscale as bs
from blockscale.core.parse import CATALOG
from tests.export.to_onnx.running import array, exported, initializers, kinds
from tests.support import fresh
from tests.support.integer_models import INT8, PER_CHANNEL, quantized
from tests.support.layer_formats import REFERENCE
from tests.support.programs import bert, gpt2

ROOT = Path(__file__).parents[2]
UINT8 = "uint8:tensor:fp32:asym"
pytestmark = [
    pytest.mark.filterwarnings(REFERENCE, "ignore::UserWarning", "ignore::DeprecationWarning")
]


def converted(model, given, recipe, free=True):
    """A converted graph, whose first size is free."""
    batch = given if isinstance(given, dict) else (given,)
    sizes = {0: torch.export.Dim("rows")}
    args, kwargs = ((), given) if isinstance(given, dict) else (batch, {})
    shapes = dict.fromkeys(given, sizes) if isinstance(given, dict) else (sizes,)
    program = torch.export.export(model.eval(), args, kwargs, dynamic_shapes=shapes)
    prepared = bs.graph.prepare(program, recipe, observer="min_max")
    bs.calibrate(prepared, [given], progress=False)
    return bs.graph.convert(prepared)


def reference(graph, *inputs):
    with torch.no_grad(), bs.use("reference"):
        made = graph(*inputs)
    return made if isinstance(made, torch.Tensor) else next(iter(made.values()))


def close(found, expected, most=1e-5):
    assert found.shape == expected.shape
    return float((found - expected).abs().max()) <= most * float(expected.abs().max())


def mlp(k=64):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(k, 32), nn.GELU(), nn.Linear(32, 24)).eval()


X = torch.randn(6, 64, generator=torch.Generator().manual_seed(0))
FEW = ["int4:group32:fp32", "nvfp4"]
EVERY = [f for f in CATALOG if f not in FEW]
SLOW = pytest.mark.slow


def check_weights(fmt, path):
    graph = converted(mlp(), X, bs.Recipe(fmt))
    call = exported(graph, path)
    for rows in (X, X[:1]):
        expected = reference(graph, rows)
        assert close(call(rows), expected)
        # onnxruntime quantizes the inputs of MatMulNBits to int8 by itself
        assert close(call(rows, optimized=True), expected, 2e-2)


@pytest.mark.slow
@pytest.mark.parametrize("fmt", FEW)
def test_weights(fmt, tmp_path):
    check_weights(fmt, tmp_path / "model.onnx")
    if fmt == "int4:group32:fp32":
        the_file_holds_codes_alone(tmp_path / "model.onnx")


def the_file_holds_codes_alone(path):
    tensors = initializers(path)
    codes = tensors["0.weight.codes"]
    assert (codes.data_type, list(codes.dims)) == (TensorProto.INT4, [64, 32])  # [k, n]
    assert len(codes.raw_data) == 64 * 32 // 2
    assert list(tensors["0.weight.scale"].dims) == [2, 32]
    floats = [t for t in tensors.values() if t.data_type == TensorProto.FLOAT]
    assert max(array(t).size for t in floats) == 2 * 32  # scales and biases


@SLOW
@pytest.mark.parametrize("fmt", EVERY)
def test_weights_of_the_catalogue(fmt, tmp_path):
    check_weights(fmt, tmp_path / "model.onnx")


@SLOW
def test_codes_alone_beside_inputs_in_codes(tmp_path):
    graph = converted(mlp(), X, bs.Recipe("int4:group32:fp32", input="int8"))
    exported(graph, tmp_path / "model.onnx")
    the_file_holds_codes_alone(tmp_path / "model.onnx")


@SLOW
@pytest.mark.parametrize("fmt", [*FEW, *EVERY])
def test_weights_and_inputs_of_the_catalogue(fmt, tmp_path):
    """One layer: its input is that of the file, so that no sum is quantized."""
    torch.manual_seed(0)
    graph = converted(nn.Sequential(nn.Linear(64, 24)), X, bs.Recipe(fmt, input=fmt))
    if fmt == "nvfp4_token":
        with pytest.raises(
            ValueError, match=r"outer scales of \(e4m3:token:fp32\) are for parts of"
        ):
            exported(graph, tmp_path / "model.onnx")
        return
    call = exported(graph, tmp_path / "model.onnx")
    assert close(call(X), reference(graph, X))


class Half(nn.Module):
    """A table, sums, a norm and layers in codes and in float."""

    def __init__(self):
        super().__init__()
        self.table, self.norm = nn.Embedding(16, 64), nn.LayerNorm(64)
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 8)

    def forward(self, ids, x):
        states = self.norm(self.first(self.table(ids) + x).float()).to(x.dtype)
        return self.last(torch.nn.functional.gelu(states))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.float16, marks=SLOW)])
def test_half_precision_becomes_a_file_that_cpus_run(dtype, tmp_path):
    """It computes what the model in float32 does, whose weights have the same values."""
    torch.manual_seed(0)
    model = Half().eval()
    for part in (model.table, model.first, model.last):
        part.to(dtype)
    bs.quantize_(model, bs.Recipe("int4:group32:bf16", skip=["last"]))
    ids, x = torch.randint(16, (2, 5)), torch.randn(2, 5, 64).to(dtype)
    expected = copy.deepcopy(model).float()(ids, x.float())
    name = str(dtype).removeprefix("torch.")
    with pytest.warns(UserWarning, match=f"computes in {name}, which runtimes on CPUs do not"):
        call = exported(model, tmp_path / "model.onnx", (ids, x))
    found = call(ids, x.float())
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    stored = initializers(tmp_path / "model.onnx")
    assert stored["first.weight.scale"].data_type == TensorProto.BFLOAT16


class Tied(nn.Module):
    """A table whose transpose is the last layer's weight."""

    def __init__(self):
        super().__init__()
        self.table, self.between = nn.Embedding(96, 64), nn.Linear(64, 64)
        self.head = nn.Linear(64, 96, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids):
        return self.head(self.between(self.table(ids)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "fmt", ["int4:group32:fp16", *(pytest.param(f, marks=SLOW) for f in ("mxfp4", None))]
)
def test_a_tied_table_is_stored_once(fmt, tmp_path):
    """In codes and in float; onnxruntime makes MatMulNBits of the int4 head as before."""
    torch.manual_seed(0)
    model, ids = Tied().eval(), torch.randint(96, (3, 7))
    skip = [] if fmt else ["table", "head"]
    bs.quantize_(model, bs.Recipe(fmt or "int8_channel", skip=skip))
    call = exported(model, tmp_path / "model.onnx", ids)
    stored = initializers(tmp_path / "model.onnx")
    bits = bs.parse(fmt).bits if fmt else 32
    large = [t for t in stored.values() if len(t.raw_data) == 96 * 64 * bits // 8]
    assert [len(t.dims) for t in large] == [2], [t.name for t in large]
    assert not [name for name in stored if "_1" in name]
    with torch.no_grad(), bs.use("reference"):
        expected = model(ids)
    assert close(call(ids), expected)
    assert close(call(ids, optimized=True), expected, 2e-2)


class Positions(nn.Module):
    """Rows of a table at places that the model holds."""

    def __init__(self):
        super().__init__()
        self.table, self.last = nn.Embedding(9, 64), nn.Linear(64, 8)
        self.register_buffer("places", torch.tensor([3, 0, 8]))

    def forward(self, x):
        return self.last(x[:, None] + self.table(self.places))


@pytest.mark.slow
def test_rows_at_places_that_the_model_holds(tmp_path):
    graph = converted(Positions(), X, bs.Recipe("int8_channel"))
    call = exported(graph, tmp_path / "model.onnx")
    assert close(call(X), reference(graph, X))
    assert initializers(tmp_path / "model.onnx")["table.weight.codes"].data_type == TensorProto.INT8


class Net(nn.Module):
    """Batch norm, groups, depthwise, transposed, grouped transposed."""

    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.groups = nn.Conv2d(16, 16, 3, padding=1, groups=4, stride=2)
        self.depth = nn.Conv2d(16, 16, 3, groups=16, padding=1)
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.up_groups = nn.ConvTranspose2d(8, 8, 3, stride=2, groups=2, padding=1)
        self.last = nn.Linear(8, 10)
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2)

    def forward(self, x):
        y = torch.relu(self.norm(self.first(x)))
        y = torch.relu(self.groups(y)) + self.depth(y)[:, :, ::2, ::2]
        return self.last(self.up_groups(torch.relu(self.up(y))).mean((2, 3)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("weight", "inputs"),
    [
        ("int8_channel", UINT8),
        pytest.param("int4:group32:fp32", "int8_token", marks=SLOW),
        pytest.param("mxfp8", "mxfp8", marks=SLOW),
        pytest.param("nvfp4", "nvfp4", marks=SLOW),
        pytest.param("binary", "log4", marks=SLOW),
    ],
)
def test_convolutions(weight, inputs, tmp_path):
    torch.manual_seed(0)
    images = torch.randn(4, 3, 8, 8)
    graph = converted(Net(), images, bs.Recipe(weight, input=inputs))
    call = exported(graph, tmp_path / "model.onnx")
    for some in (images, images[:1]):
        expected = reference(graph, some)
        assert close(call(some), expected, 1e-2)
        assert close(call(some, optimized=True), expected, 1e-2)


@pytest.mark.parametrize(
    ("build", "recipe"),
    [
        pytest.param(gpt2, bs.Recipe("int8_channel", input=UINT8), marks=SLOW),
        pytest.param(bert, bs.Recipe("mxfp6", input="mxfp8"), marks=SLOW),
        pytest.param(gpt2, bs.Recipe("int4:group32:fp32", input="int8_token"), marks=SLOW),
    ],
    ids=["gpt2", "bert", "gpt2 int4"],
)
def test_transformers(build, recipe, tmp_path):
    torch.manual_seed(0)
    ids = torch.randint(50, (3, 7))
    graph = converted(build(), {"input_ids": ids}, recipe)
    call = exported(graph, tmp_path / "model.onnx")
    [first, *_] = onnx.load(str(tmp_path / "model.onnx")).graph.output
    assert first.name == "last_hidden_state"
    for rows in (ids, ids[:1]):
        assert close(call(rows), reference(graph, rows), 2e-2)


@pytest.mark.slow
def test_a_quantized_model(tmp_path):
    """Without a graph: what bs.quantize_ made."""
    model = mlp()
    bs.quantize_(model, bs.Recipe("mxfp4", input="int8_token"), strict=True)
    call = exported(model, tmp_path / "a.onnx", X, dynamic_batch=True)
    expected = model(X).detach()
    assert close(call(X), expected) and close(call(X[:2]), expected[:2])


@SLOW
def test_a_program_of_quantized_layers(tmp_path):
    model = mlp()
    bs.quantize_(model, bs.Recipe("mxfp4", input="int8_token"), strict=True)
    call = exported(torch.export.export(model, (X,)), tmp_path / "model.onnx")
    assert close(call(X), model(X).detach())


class Small(nn.Module):
    """A convolutional network whose every operation has an integer form."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 8, 3, groups=8)
        self.last = nn.Linear(72, 5)
        self.first.weight.data *= 4.0 ** torch.arange(-4, 4).reshape(8, 1, 1, 1)

    def forward(self, x):
        y = nn.functional.max_pool2d(torch.relu(self.first(x)), 2)
        y = nn.functional.avg_pool2d(self.second(y + y), 2)
        return self.last(torch.flatten(y, 1))


@pytest.mark.slow
@pytest.mark.parametrize(
    "inputs", [pytest.param(INT8, marks=SLOW), "uint8:tensor:pow2/nearest:asym"]
)
def test_integers_and_shifts_alone(inputs, tmp_path):
    """Bit for bit what training under power-of-two scales computed; no product of floats."""
    torch.manual_seed(0)
    images = torch.randn(2, 1, 16, 16)
    model = quantized(Small(), images, PER_CHANNEL, inputs)
    integer = bs.graph.to_integer(model, images).eval()
    call = exported(integer, tmp_path / "model.onnx", images, dynamic_batch=True)
    for each in (images, images[:1], 100 * images, images * 0, images.round() / 32):
        assert torch.equal(call(each), integer(each))
        assert torch.equal(call(each, optimized=True), integer(each))
    used = kinds(tmp_path / "model.onnx")
    assert {"ConvInteger", "MatMulInteger", "BitShift"} <= used
    assert not used & {"Conv", "MatMul", "Gemm", "DequantizeLinear"}
    stored = initializers(tmp_path / "model.onnx").values()
    codes = {TensorProto.INT8, TensorProto.UINT8}
    assert {t.data_type for t in stored} <= {*codes, TensorProto.INT32, TensorProto.INT64}


@pytest.mark.slow
def test_power_of_two_scales_stay_powers_of_two(tmp_path, capsys):
    graph = converted(mlp(), X, bs.Recipe("int8:channel0:pow2/nearest", input="int8_pow2"))
    call = exported(graph, tmp_path / "model.onnx")
    assert capsys.readouterr() == ("", "")  # torch's exporter tells of itself
    assert close(call(X), reference(graph, X), 0.0)  # sums of such products are exact
    scales = [t for n, t in initializers(tmp_path / "model.onnx").items() if n.endswith(".scale")]
    assert len(scales) == 4
    for each in scales:
        assert (torch.frexp(torch.from_numpy(array(each).copy())).mantissa == 0.5).all()


OPSETS = [
    ("mxint8", 24),
    *(pytest.param(f, n, marks=SLOW) for f, n in {"int8": 21, "nvfp4": 21, "int2": 25}.items()),
]


@pytest.mark.slow
@pytest.mark.parametrize(("fmt", "least"), OPSETS)
def test_the_lowest_opset_that_holds_it(fmt, least, tmp_path):
    path, graph = tmp_path / "model.onnx", converted(mlp(), X, bs.Recipe(fmt))
    bs.export.onnx(graph, path)
    assert [e.version for e in onnx.load(str(path)).opset_import if not e.domain] == [least]
    if least > 21:
        with pytest.raises(ValueError, match=rf"opset 21 is too low: .* needs opset {least}"):
            bs.export.onnx(graph, tmp_path / "low.onnx", opset=21)
        assert not (tmp_path / "low.onnx").exists()


@SLOW
def test_a_higher_opset_runs(tmp_path):
    graph = converted(mlp(), X, bs.Recipe("nvfp4", input="nvfp4"))
    call = exported(graph, tmp_path / "model.onnx", opset=25)
    assert close(call(X), reference(graph, X))


def finished(stage):
    program = torch.export.export(mlp(), (X,))
    prepared = bs.graph.prepare(program, bs.Recipe("int8_channel", input="int8"))
    bs.calibrate(prepared, [X], progress=False)
    made = bs.graph.convert(prepared)
    steps = {
        "prepared": lambda: prepared,
        "fused": lambda: bs.graph.fuse(made),
        "lowered": lambda: bs.graph.lower(bs.graph.fuse(made), "reference"),
    }
    return steps[stage]() if stage in steps else made


@pytest.mark.some(6)
@pytest.mark.parametrize("stage", ["prepared", "fused", "lowered"])
def test_only_converted_graphs(stage, tmp_path):
    with pytest.raises(ValueError, match=rf"a {stage} graph has no .*result of bs\.graph\.convert"):
        bs.export.onnx(finished(stage), tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_an_example_of_another_shape(tmp_path):
    for wrong in (torch.randn(6, 63), torch.randn(2, 64), {"y": X}):
        with pytest.raises(ValueError, match="cannot be called with the example"):
            bs.export.onnx(finished("converted"), tmp_path / "model.onnx", wrong)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("opset", [13, 20, 29])
def test_an_opset_that_there_is_not(opset, tmp_path):
    with pytest.raises(ValueError, match=rf"must be 21 .* to 28 .*, got {opset}: leave it out"):
        bs.export.onnx(mlp(), tmp_path / "model.onnx", X, opset=opset)


def test_an_opset_that_the_installed_onnx_has_not(tmp_path, monkeypatch):
    monkeypatch.setattr(onnx.defs, "onnx_opset_version", lambda: 27)
    with pytest.raises(
        ValueError, match=r"onnx 1\..* has opsets up to 27, got 28: install a newer"
    ):
        bs.export.onnx(mlp(), tmp_path / "model.onnx", X, opset=28)
    assert not list(tmp_path.iterdir())


SMALL = {"mxfp6_e2m3": "FLOAT6E2M3", "mxfp6": "FLOAT6E3M2", "mxfp4": "FLOAT4E2M1"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "fmt", ["mxfp6_e2m3", *(pytest.param(f, marks=SLOW) for f in ("mxfp6", "mxfp4"))]
)
@pytest.mark.skipif(onnx.defs.onnx_opset_version() < 28, reason="needs onnx with opset 28")
def test_opset_28_has_types_of_six_and_four_bits(fmt, tmp_path):
    """No runtime reads them yet: onnx's own reference computes what the graph does."""
    from onnx.reference import ReferenceEvaluator

    graph = converted(mlp(), X, bs.Recipe(fmt, input=fmt))
    bs.export.onnx(graph, tmp_path / "model.onnx", opset=28)
    model = onnx.load(tmp_path / "model.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert (model.ir_version, model.opset_import[0].version) == (14, 28)
    codes = [t for t in model.graph.initializer if t.name.endswith(".codes")]
    kind = TensorProto.DataType.Value(SMALL[fmt])
    assert [t.data_type for t in codes] == [kind, kind]
    assert "BitwiseAnd" not in {node.op_type for node in model.graph.node}
    [y] = ReferenceEvaluator(model).run(None, {model.graph.input[0].name: X.numpy()})
    assert close(torch.from_numpy(y), reference(graph, X))
    bs.export.onnx(graph, tmp_path / "below.onnx", opset=27)
    below = onnx.load(tmp_path / "below.onnx")
    assert kind not in {t.data_type for t in below.graph.initializer}
    assert "BitwiseAnd" in {node.op_type for node in below.graph.node}


def test_a_file_that_is_there(tmp_path):
    path, model = tmp_path / "model.onnx", mlp()
    path.write_text("mine")
    with pytest.raises(FileExistsError, match=r"exists: remove it, or pass overwrite=True"):
        bs.export.onnx(model, path, X)
    assert path.read_text() == "mine"


@pytest.mark.slow
def test_tensors_of_a_large_model_that_are_there(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["blockscale.export.to_onnx.write"], "LARGEST", 1000)
    graph = converted(mlp(), X, bs.Recipe("int8_channel"))
    (tmp_path / "model.onnx.data").write_text("mine")
    with pytest.raises(FileExistsError, match=r"model\.onnx\.data exists"):
        bs.export.onnx(graph, tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()
    call = exported(graph, tmp_path / "model.onnx")
    assert close(call(X), reference(graph, X))


def test_a_missing_package(tmp_path, monkeypatch):
    module = sys.modules["blockscale.export.to_onnx"]
    find = module.importlib.util.find_spec
    hidden = {"onnxscript"}
    monkeypatch.setattr(
        module.importlib.util, "find_spec", lambda name: None if name in hidden else find(name)
    )
    with pytest.raises(
        ModuleNotFoundError, match=r"onnxscript .* pip install 'blockscale\[onnx\]'"
    ):
        bs.export.onnx(mlp(), tmp_path / "model.onnx", X)
    [target] = [each for each in bs.export.targets() if each.name == "onnx"]
    assert target.unavailable.startswith("onnxscript is not installed")


def test_importing_it_imports_no_onnx():
    script = "import sys, blockscale as bs; bs.export.onnx; print('onnx' in sys.modules)"
    done = fresh.run(script, cwd=ROOT, ready=fresh.WITH_OURS)
    assert done.stdout == "False\n", done.stderr
