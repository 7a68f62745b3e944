# SPDX-License-Identifier: BSD-3-Clause
"""What is chosen for the layers of float ONNX files is what `bs.calibrate` chooses for the same
layers of a torch model that is given the same inputs."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import helper, numpy_helper
from torch import nn

import blockscale as bs
from blockscale.calibration.algorithms.gptq import GPTQ
from blockscale.core.ledger import SkippedError
from blockscale.export import quantize_onnx
from blockscale.export.to_onnx.float_layers import ending_at, session_of
from blockscale.export.to_onnx.float_model import inputs_of
from tests.support.onnx_graphs import model, outputs, weights

node = helper.make_node
FMT = "int4:group8:fp32"
STATIC = bs.Recipe("int8_channel", input="uint8:tensor:fp32:asym")


def array(tensor: torch.Tensor) -> Any:
    return np.ascontiguousarray(tensor.detach().numpy())


def feeds(*shape: int, count: int = 3) -> list[dict[str, Any]]:
    """Calls whose features are of different sizes and go together, so that Gram matrices matter."""
    torch.manual_seed(3)
    mix = torch.eye(shape[-1]) + 0.5 * torch.randn(shape[-1], shape[-1])
    return [{"x": array(torch.randn(*shape) @ mix + 0.3)} for _ in range(count)]


def weight_in(path: Path, feed: dict[str, Any], at: int = 0, which: int = 1) -> Any:
    """The weight that a file's product number `at` reads, as onnxruntime decodes it."""
    proto = onnx.load(str(path))
    kinds = ("MatMul", "Gemm", "Conv", "ConvTranspose")
    product = [each for each in proto.graph.node if each.op_type in kinds][at]
    name = product.input[which]
    return session_of(ending_at(proto, [name])).run([name], feed)[0]


def attributes_of(conv: Any) -> dict[str, Any]:
    return {
        "strides": [*conv.stride], "dilations": [*conv.dilation], "group": conv.groups,
    }  # fmt: skip


def pads(conv: Any) -> dict[str, Any]:
    return {"pads": [*conv.padding, *conv.padding]}


# kind -> the layer, its node but for names, the weight as it is stored, and back, and calls
def _linear(k: int = 16, n: int = 24) -> nn.Linear:
    return nn.Linear(k, n, bias=False)


def _same(w: Any) -> Any:
    return w


def _turned(w: Any) -> Any:
    return np.ascontiguousarray(np.swapaxes(w, -1, -2))


CONV = nn.Conv2d(8, 6, 3, stride=2, padding=1, dilation=2, bias=False)
CASES: dict[str, tuple[Any, str, dict[str, Any], Any, tuple[int, ...]]] = {
    "MatMul": (_linear(), "MatMul", {}, _turned, (2, 40, 16)),
    "Gemm": (_linear(), "Gemm", {}, _turned, (64, 16)),
    "Gemm, transposed": (_linear(), "Gemm", {"transB": 1}, _same, (64, 16)),
    "Conv2d": (CONV, "Conv", attributes_of(CONV) | pads(CONV), _same, (2, 8, 9, 11)),
    "Conv1d": (nn.Conv1d(8, 6, 3, bias=False), "Conv", {}, _same, (2, 8, 30)),
    "Conv3d": (nn.Conv3d(8, 4, 2, bias=False), "Conv", {}, _same, (1, 8, 3, 4, 5)),
    "depthwise": (
        nn.Conv2d(8, 8, 3, groups=8, bias=False), "Conv", {"group": 8}, _same, (2, 8, 6, 6),
    ),
    "SAME_UPPER": (
        nn.Conv1d(8, 6, 3, padding="same", bias=False), "Conv", {"auto_pad": "SAME_UPPER"}, _same,
        (2, 8, 30),
    ),
    "VALID": (nn.Conv1d(8, 6, 4, bias=False), "Conv", {"auto_pad": "VALID"}, _same, (2, 8, 30)),
    "ConvTranspose": (
        nn.ConvTranspose1d(8, 6, 4, 2, 1, 1, bias=False), "ConvTranspose",
        {"strides": [2], "pads": [1, 1], "output_padding": [1]}, _same, (2, 8, 15),
    ),
}  # fmt: skip


def case(path: Path, name: str) -> tuple[Path, nn.Sequential, list[dict[str, Any]], Any]:
    layer, op, options, stored, shape = CASES[name]
    product = node(op, ["x", "0.weight"], ["y"], **options)
    free = ["n", *shape[1:]]
    tensors = {"0.weight": stored(array(layer.weight))}
    source = model(path, [product], tensors, {"x": free})
    return source, nn.Sequential(copy.deepcopy(layer)).eval(), feeds(*shape), stored


@pytest.mark.filterwarnings("ignore:blockscale")  # of groups, that nothing is known of inputs
@pytest.mark.parametrize("name", CASES)
def test_codes_are_those_of_a_calibrated_model(name: str, tmp_path: Path) -> None:
    source, ours, calls, stored = case(tmp_path / "float.onnx", name)
    fmt = "int4:group3:fp32" if name == "depthwise" else FMT
    quantize_onnx(source, tmp_path / "q.onnx", fmt, calibrate=calls, weight="search")
    batches = [torch.from_numpy(call["x"]) for call in calls]
    bs.calibrate(ours, batches, fmt, weight="search", sequential=False, progress=False)
    expected = stored(array(ours[0].qweight.dequantize()))
    assert np.array_equal(weight_in(tmp_path / "q.onnx", calls[0]), expected)
    rounded = bs.quantize(CASES[name][0].weight.detach(), fmt) if name == "MatMul" else None
    if rounded is not None:  # it is no plain rounding
        assert not np.array_equal(expected, stored(array(rounded.dequantize())))


@pytest.mark.parametrize("weight", ["gptq", "mse", "hqq", GPTQ("absmax", sweeps=0)])
def test_every_algorithm_of_single_layers(weight: Any, tmp_path: Path) -> None:
    source, ours, calls, stored = case(tmp_path / "float.onnx", "MatMul")
    ledger = quantize_onnx(source, tmp_path / "q.onnx", FMT, calibrate=calls, weight=weight)
    batches = [torch.from_numpy(call["x"]) for call in calls]
    told = bs.calibrate(ours, batches, FMT, weight=weight, progress=False)
    expected = stored(array(ours[0].qweight.dequantize()))
    assert np.array_equal(weight_in(tmp_path / "q.onnx", calls[0]), expected)
    assert ledger["0"].details == told["0"].details


def test_a_weight_on_the_left(tmp_path: Path) -> None:
    """y = w @ x adds up the rows of x."""
    layer = _linear()
    product = node("MatMul", ["0.weight", "x"], ["y"])
    tensors = {"0.weight": array(layer.weight)}
    source = model(tmp_path / "float.onnx", [product], tensors, {"x": ["n", 16, 30]})
    calls = [{"x": _turned(call["x"])} for call in feeds(2, 30, 16)]
    quantize_onnx(source, tmp_path / "q.onnx", FMT, calibrate=calls, weight="search")
    ours = nn.Sequential(layer)
    batches = [torch.from_numpy(_turned(call["x"])) for call in calls]
    bs.calibrate(ours, batches, FMT, weight="search", progress=False)
    found = weight_in(tmp_path / "q.onnx", calls[0], which=0)
    assert np.array_equal(found, array(ours[0].qweight.dequantize()))


@pytest.mark.parametrize("lower", [False, True])
def test_sides_that_are_padded_otherwise(lower: bool, tmp_path: Path) -> None:
    """TensorFlow's SAME with a stride, and what it stands for: zeros before and after."""
    conv = nn.Conv2d(8, 6, 3, stride=2, bias=False)
    kind = "SAME_LOWER" if lower else "SAME_UPPER"
    sides = [1, 0, 1, 0] if lower else [0, 1, 0, 1]  # torch: left, right, top, bottom
    ours = nn.Sequential(nn.ZeroPad2d(sides), conv).eval()
    calls = feeds(2, 8, 10, 8)
    batches = [torch.from_numpy(call["x"]) for call in calls]
    bs.calibrate(ours, batches, FMT, weight="search", progress=False)
    expected = array(ours[1].qweight.dequantize())
    names = {"1.weight": array(conv.weight)}
    begin, end = sides[0], sides[1]
    for options in ({"auto_pad": kind}, {"pads": [begin, begin, end, end]}):
        product = node("Conv", ["x", "1.weight"], ["y"], strides=[2, 2], **options)
        source = model(tmp_path / "float.onnx", [product], names, {"x": ["n", 8, "h", "w"]})
        out = tmp_path / "q.onnx"
        quantize_onnx(source, out, FMT, calibrate=calls, weight="search", overwrite=True)
        assert np.array_equal(weight_in(out, calls[0]), expected)


def deep(path: Path, add: bool = False) -> tuple[Path, nn.Sequential]:
    """Three products, of which each is told what the others leave; Gemm, or MatMul and Add."""
    torch.manual_seed(0)
    ours = nn.Sequential(
        nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 8)
    ).eval()
    nodes, value = [], "x"
    for i in (0, 2, 4):
        out = "y" if i == 4 else f"h{i}"
        if add:
            nodes.append(node("MatMul", [value, f"{i}.weight"], [f"p{i}"]))
            nodes.append(node("Add", [f"{i}.bias", f"p{i}"], [out]))
        else:
            nodes.append(node("Gemm", [value, f"{i}.weight", f"{i}.bias"], [out], transB=1))
        if i < 4:
            nodes.append(node("Relu", [out], [f"r{i}"]))
            value = f"r{i}"
    tensors = {name: array(each) for name, each in ours.state_dict().items()}
    if add:
        tensors = {n: _turned(a) if n.endswith("weight") else a for n, a in tensors.items()}
    return model(path, nodes, tensors, {"x": ["n", 16]}), ours


@pytest.mark.parametrize("sequential", [False, True])
def test_layers_after_others(sequential: bool, tmp_path: Path) -> None:
    """Each sees the float model's inputs, or those that the quantized layers before it leave."""
    source, ours = deep(tmp_path / "float.onnx", add=True)
    calls, out = feeds(64, 16), tmp_path / "q.onnx"
    settings = {"weight": "gptq", "sequential": sequential}
    quantize_onnx(source, out, FMT, calibrate=calls, **settings)
    plain = copy.deepcopy(ours)
    bs.calibrate(ours, [torch.from_numpy(c["x"]) for c in calls], FMT, progress=False, **settings)
    near = [
        np.isclose(weight_in(out, calls[0], at=i), _turned(array(layer.qweight.dequantize())))
        for i, layer in enumerate((ours[0], ours[2], ours[4]))
    ]
    assert near[0].all()
    assert all(each.mean() > 0.9 for each in near)  # sums of onnxruntime have another order
    quantize_onnx(source, tmp_path / "r.onnx", FMT)
    with torch.no_grad():
        target = array(plain(torch.from_numpy(calls[0]["x"])))
    found = [
        np.square(outputs(tmp_path / n, calls[0]) - target).mean() for n in ("q.onnx", "r.onnx")
    ]
    assert found[0] < 0.7 * found[1]


def test_statistics_in_a_budget(tmp_path: Path) -> None:
    source, _ = deep(tmp_path / "float.onnx")
    calls = feeds(64, 16)
    for name, budget in (("a", 2e9), ("b", 1.0)):
        ledger = quantize_onnx(
            source, tmp_path / f"{name}.onnx", FMT, calibrate=calls, weight="search",
            sequential=False, budget=budget,
        )  # fmt: skip
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()
    assert ledger["2"].details == "weight by search"
    with pytest.raises(ValueError, match="can be read only once"):
        quantize_onnx(
            source, tmp_path / "c.onnx", FMT, calibrate=iter(calls), weight="search", budget=1.0
        )


def stored_in(path: Path) -> dict[str, Any]:
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(str(path)).graph.initializer}


@pytest.mark.parametrize("add", [False, True])
def test_biases_make_up_for_mean_errors(add: bool, tmp_path: Path) -> None:
    source, ours = deep(tmp_path / "float.onnx", add)
    calls, out = feeds(64, 16), tmp_path / "q.onnx"
    ledger = quantize_onnx(source, out, "int3:channel0:fp32", calibrate=calls, bias="correct")
    batches = [torch.from_numpy(call["x"]) for call in calls]
    bs.calibrate(ours, batches, "int3:channel0:fp32", bias="correct", progress=False)
    stored = stored_in(out)
    assert np.array_equal(stored["0.bias"], array(ours[0].bias))
    for name in ("2", "4"):
        np.testing.assert_allclose(stored[f"{name}.bias"], array(ours[int(name)].bias), atol=1e-4)
    assert {ledger[name].details for name in "024"} == {"bias corrected"}
    source_bias = stored_in(source)["0.bias"]
    assert np.abs(stored["0.bias"] - source_bias).max() > 1e-3


def test_biases_of_convolutions(tmp_path: Path) -> None:
    """One that has none gets one; two that share one get their own; one that is computed stays."""
    nodes = [
        node("Conv", ["x", "a.weight"], ["a"]),
        node("Conv", ["a", "b.weight", "bias"], ["b"]),
        node("Conv", ["b", "c.weight", "bias"], ["c"]),
        node("Neg", ["bias"], ["other"]),
        node("Conv", ["c", "d.weight", "other"], ["d"]),
        node("MatMul", ["d", "e.weight"], ["y"]),
    ]
    tensors = {f"{name}.weight": weights(8, 8, 1, seed=i) for i, name in enumerate("abcd")}
    tensors |= {"bias": weights(8), "e.weight": weights(20, 8)}
    source = model(tmp_path / "float.onnx", nodes, tensors, {"x": ["n", 8, 20]})
    calls, out = feeds(2, 8, 20), tmp_path / "q.onnx"
    settings = {"weight": "search", "bias": "correct"}
    ledger = quantize_onnx(source, out, "int4:channel0:fp32", calibrate=calls, **settings)
    stored = stored_in(out)
    assert {"a.bias", "b.bias", "c.bias", "bias"} <= stored.keys()
    assert np.array_equal(stored["bias"], tensors["bias"])
    assert ledger["a.bias"].bytes_after == 32
    assert [ledger[name].details for name in "abcde"] == [
        "weight by search, no blocks: 5 passes over the whole model, bias corrected",
        *["weight by search, bias corrected"] * 2,
        "weight by search, bias not corrected: it is no stored vector that is added as it is",
        "weight by search, no bias to correct",
    ]  # fmt: skip
    conv = nn.Conv1d(8, 8, 1, bias=False)
    conv.weight = nn.Parameter(torch.from_numpy(tensors["a.weight"]))
    ours = nn.Sequential(conv).eval()
    batches = [torch.from_numpy(call["x"]) for call in calls]
    bs.calibrate(ours, batches, "int4:channel0:fp32", progress=False, **settings)
    assert np.array_equal(stored["a.bias"], array(ours[0].bias))
    onnx.checker.check_model(str(out), full_check=True)


def test_presets_are_carried_out_as_far_as_a_file_can(tmp_path: Path) -> None:
    source, _ = deep(tmp_path / "float.onnx")
    calls, out = feeds(64, 16), tmp_path / "q.onnx"
    recipe = bs.Recipe(FMT, calibration={"weight": "gptq", "transform": "awq"})
    with pytest.warns(UserWarning, match="the recipe asks for the transform awq, which is not"):
        ledger = quantize_onnx(source, out, recipe, calibrate=calls, sequential=False)
    assert len(ledger.notes) == 1
    assert ledger["2"].details == "weight by gptq"
    with pytest.raises(SkippedError, match="strict: the recipe asks for the transform awq"):
        quantize_onnx(source, out, recipe, calibrate=calls, strict=True, overwrite=True)
    ledger = quantize_onnx(source, out, "w8a8-static", calibrate=calls, overwrite=True)
    assert ledger["2"].details == "static input by min_max, bias corrected"
    ledger = quantize_onnx(
        source, out, "w8a8-static", calibrate=calls, bias="keep", observer="mse", overwrite=True
    )
    assert ledger["2"].details == "static input by mse"
    with pytest.warns(UserWarning, match="preset w8a8-static asks for a calibration .*no calls"):
        quantize_onnx(source, out, "w8a8-static", overwrite=True)


def test_what_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    source, _ = deep(tmp_path / "float.onnx")
    calls, out = feeds(4, 16), tmp_path / "q.onnx"

    def refused(match: str, recipe: Any = FMT, **more: Any) -> None:
        with pytest.raises(ValueError, match=match):
            quantize_onnx(source, out, recipe, **more)
        assert not out.exists()

    refused("weight 'gptq' is chosen from calls of the model, and there are none", weight="gptq")
    refused("bias 'correct' is chosen from calls of the model", bias="correct")
    refused("asymmetric runs the float", weight=GPTQ(asymmetric=True), calibrate=calls)
    for more in ({}, {"calibrate": calls}):  # what is offered is what can be had
        offered = "'gptw'; choose from absmax, gptq, hqq, mse, search$"
        refused(f"unknown weight algorithm {offered}", weight="gptw", **more)
        refused("whole blocks .* use 'gptq', 'hqq', 'mse' or 'search'$", weight="signround", **more)
    refused("unknown bias 'mend'", bias="mend", calibrate=calls)
    refused("unknown sequential 'layers'", weight="mse", calibrate=calls, sequential="layers")
    refused("the calibration has no calls", weight="gptq", calibrate=[])
    refused("has z, and the model's inputs are x", weight="gptq", calibrate=[{"z": weights(2, 16)}])
    refused("cannot run the model on it.*\n.*batch 0", weight="gptq",
            calibrate=[{"x": weights(2, 5)}])  # fmt: skip
    refused("batches can be read only once", weight="gptq", bias="correct", calibrate=iter(calls))


def test_numbers_that_are_none(tmp_path: Path) -> None:
    """Rows with NaN are left out, which is said; without any other nothing is known of inputs."""
    source, ours, calls, stored = case(tmp_path / "float.onnx", "Gemm")
    calls[0]["x"][5, 3] = np.nan
    out = tmp_path / "q.onnx"
    with pytest.warns(UserWarning, match="0: 1 rows of its input hold a NaN or an infinity"):
        quantize_onnx(source, out, FMT, calibrate=calls, weight="search")
    batches = [torch.from_numpy(call["x"]) for call in calls]
    with pytest.warns(UserWarning, match="hold a NaN"):
        bs.calibrate(ours, batches, FMT, weight="search", progress=False)
    expected = stored(array(ours[0].qweight.dequantize()))
    assert np.array_equal(weight_in(out, calls[0]), expected)
    nothing = [{"x": np.full((4, 16), np.nan, np.float32)}]
    with pytest.warns(UserWarning, match="0: .*no data about its inputs"):
        quantize_onnx(source, out, FMT, calibrate=nothing, weight="gptq", overwrite=True)
    with pytest.raises(ValueError, match=r"nothing can be quantized: .*no finite number was seen"):
        quantize_onnx(source, tmp_path / "n.onnx", STATIC, calibrate=nothing)


def test_padding_is_left_out(tmp_path: Path) -> None:
    layer = _linear()
    nodes = [
        node("Unsqueeze", ["attention_mask", "last"], ["mask"]),
        node("Mul", ["x", "mask"], ["seen"]),
        node("Sub", ["x", "seen"], ["hidden"]),
        node("Add", ["seen", "hidden"], ["whole"]),
        node("MatMul", ["whole", "0.weight"], ["y"]),
    ]
    tensors = {"0.weight": _turned(array(layer.weight)), "last": np.array([2])}
    inputs = {"x": ["n", "t", 16], "attention_mask": ["n", "t"]}
    source = model(tmp_path / "float.onnx", nodes, tensors, inputs)
    mask = np.array([[1, 1, 1, 1, 0, 0], [1, 1, 1, 0, 0, 0]], np.float32)
    calls = [call | {"attention_mask": mask} for call in feeds(2, 6, 16)]
    out = tmp_path / "q.onnx"
    ledger = quantize_onnx(source, out, FMT, calibrate=calls, weight="search")
    assert "padding left out: 15 of 36 tokens by attention_mask" in ledger["0"].details
    ours = nn.Sequential(layer)
    rows = [torch.from_numpy(call["x"])[torch.from_numpy(mask).bool()] for call in calls]
    bs.calibrate(ours, rows, FMT, weight="search", progress=False)
    found = weight_in(out, calls[0])
    assert np.array_equal(found, _turned(array(ours[0].qweight.dequantize())))


def test_tables_ties_and_stacks(tmp_path: Path) -> None:
    """A table that a product shares has its codes without data, as in torch; a stack is rounded."""
    nodes = [
        node("Gather", ["table", "ids"], ["rows"]),
        node("MatMul", ["rows", "stack"], ["h"]),
        node("Transpose", ["table"], ["turned"], perm=[1, 0]),
        node("MatMul", ["h", "turned"], ["y"]),
    ]
    tensors = {"table": weights(40, 16), "stack": weights(3, 16, 16, seed=1)}
    source = model(tmp_path / "float.onnx", nodes, tensors, {"ids": [3, 5]})
    calls = [{"ids": np.arange(15).reshape(3, 5) - 7}]
    with pytest.warns(UserWarning, match="stack: plain rounding: it is a stack of matrices"):
        ledger = quantize_onnx(source, tmp_path / "q.onnx", FMT, calibrate=calls, weight="gptq")
    assert [each.name for each in ledger.quantized] == ["table", "stack"]
    assert "no data about its inputs" in ledger["table"].details
    ours = nn.Sequential(nn.Embedding(40, 16))
    ours[0].weight = nn.Parameter(torch.from_numpy(tensors["table"]))
    bs.calibrate(ours, [torch.arange(5)], FMT, weight="gptq", progress=False)
    found = weight_in(tmp_path / "q.onnx", calls[0], at=1)
    assert np.array_equal(found, _turned(array(ours[0].qweight.dequantize())))


def test_what_leads_to_some_values(tmp_path: Path) -> None:
    source, _ = deep(tmp_path / "float.onnx")
    proto = onnx.load(str(source))
    assert inputs_of(proto.graph) == {"x": 2}
    some = ending_at(proto, ["r0"])
    assert [each.op_type for each in some.graph.node] == ["Gemm", "Relu"]
    assert [each.name for each in proto.graph.output] == ["y"]  # as it was


def test_the_rewritten_model_gives_biases_their_inputs(tmp_path: Path) -> None:
    """The second layer's bias makes up for what the first one's static input does, too."""
    source, ours = deep(tmp_path / "float.onnx")
    calls, recipe = feeds(64, 16), bs.Recipe("int3:channel0:fp32", input="uint8:tensor:fp32:asym")
    quantize_onnx(source, tmp_path / "q.onnx", recipe, calibrate=calls, bias="correct")
    batches = [torch.from_numpy(call["x"]) for call in calls]
    bs.calibrate(ours, batches, recipe, bias="correct", progress=False)
    stored = stored_in(tmp_path / "q.onnx")
    np.testing.assert_allclose(stored["2.bias"], array(ours[2].bias), atol=1e-3)


class Net(nn.Module):
    """A convolution, one of groups, two products of one input, and one of their product."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1, stride=2)
        self.deep = nn.Conv2d(16, 16, 3, groups=16, padding=1)
        self.q, self.v = nn.Linear(16, 32, bias=False), nn.Linear(16, 32)
        self.out = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.deep(self.conv(x).relu()).relu().flatten(2).transpose(1, 2)
        result: torch.Tensor = self.out((self.q(x) * self.v(x)).mean(1))
        return result


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_an_export_of_torch(tmp_path: Path) -> None:
    torch.manual_seed(0)
    ours, source, out = Net().eval(), tmp_path / "float.onnx", tmp_path / "q.onnx"
    x = [torch.randn(4, 3, 8, 8) for _ in range(4)]
    torch.onnx.export(ours, (x[0],), source, input_names=["x"], dynamo=True, verbose=False)
    plain, calls = copy.deepcopy(ours), [{"x": array(each)} for each in x]
    settings = {"weight": "gptq", "bias": "correct", "sequential": False}
    quantize_onnx(source, out, FMT, calibrate=calls, **settings)
    quantize_onnx(source, tmp_path / "r.onnx", FMT)
    told = bs.calibrate(ours, x, FMT, progress=False, **settings)
    assert len(told.quantized) == 5
    for at, name in enumerate(("conv", "deep", "q", "v", "out")):
        expected = array(ours.get_submodule(name).qweight.dequantize())
        found = weight_in(out, calls[0], at)
        found = found if found.shape == expected.shape else found.T
        assert np.isclose(found, expected).mean() > (1 - 1e-9 if at < 2 else 0.9), name
    stored = stored_in(out)
    assert np.array_equal(stored["conv.bias"], array(ours.conv.bias))
    with torch.no_grad():
        target = array(plain(x[0]))
    lost = [
        np.square(outputs(tmp_path / n, calls[0]) - target).mean() for n in ("q.onnx", "r.onnx")
    ]
    assert lost[0] < lost[1]


def test_static_inputs_of_what_torch_has_no_layer_for(tmp_path: Path) -> None:
    """A stack of matrices, and a transposed convolution that is cut on one side: their scales are
    observed, their weights and biases as they would be without data."""
    nodes = [
        node("MatMul", ["x", "a"], ["h"]),
        node("Reshape", ["h", "shape"], ["flat"]),
        node("ConvTranspose", ["flat", "b", "bias"], ["y"], pads=[0, 1], strides=[2]),
    ]
    tensors = {"a": weights(3, 8, 8), "b": weights(3, 4, 2, seed=1), "bias": weights(4)}
    tensors["shape"], calls = np.array([0, 3, -1]), feeds(1, 3, 5, 8)
    source = model(tmp_path / "float.onnx", nodes, tensors, {"x": ["n", 3, 5, 8]})
    out, settings = tmp_path / "q.onnx", {"bias": "correct", "sequential": True}
    with pytest.warns(UserWarning, match="b: plain rounding: what it pads depends on its output"):
        ledger = quantize_onnx(source, out, STATIC, calibrate=calls, weight="gptq", **settings)
    assert [ledger[name].details for name in "ab"] == ["static input by mse"] * 2
    observer = bs.observers.make("mse", STATIC.input)
    for call in calls:
        observer.observe(torch.from_numpy(call["x"]))
    stored = stored_in(out)
    assert np.array_equal(stored["a.input.scale"].ravel(), array(observer.qparams().scale).ravel())
    assert np.array_equal(stored["bias"], tensors["bias"])
    quantize_onnx(source, tmp_path / "r.onnx", STATIC.weight)
    assert np.array_equal(weight_in(out, calls[0]), weight_in(tmp_path / "r.onnx", calls[0]))
