# SPDX-License-Identifier: BSD-3-Clause
"""Float ONNX files quantized: onnxruntime computes what the float file computes from weights that
our reference rounded."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, numpy_helper

import blockscale as bs
from blockscale.core.ledger import SkippedError
from blockscale.export import quantize_onnx
from blockscale.export.onnx_files import feeds_of
from tests.support.onnx_graphs import model, outputs, several, weights
from tests.support.real_models import needed

IDS = {"ids": np.arange(18, dtype=np.int64).reshape(3, 6)}
FORMATS = ["int8_channel", "int4:group32:fp32", "uint4:group4:fp32:asym", "fp8", "mxfp4", "nvfp4"]


def rounded(array: Any, fmt: str, rows: Any, back: Any) -> Any:
    """An array whose rows, as a layer adds them up, were quantized by the reference."""
    given = rows(torch.from_numpy(array.copy())).contiguous()
    with bs.use("reference"):
        values = bs.fake_quantize(given, fmt)
    return np.ascontiguousarray(back(values).numpy())


def by_reference(source: Path, path: Path, fmt: str) -> Path:
    """`several` with rounded weights, written out by hand for each of its layers."""
    same = (lambda w: w, lambda r: r)
    ways = {
        "table.weight": same,
        "onnx::MatMul_7": (lambda w: w.T, lambda r: r.T),
        "conv.weight": (
            lambda w: w.permute(0, 2, 1).reshape(12, 24),
            lambda r: r.reshape(12, 3, 8).permute(0, 2, 1),
        ),
        "up.weight": (  # [12 in, 4 out of a group, 2], 2 groups
            lambda w: w.reshape(2, 6, 4, 2).permute(0, 2, 3, 1).reshape(8, 12),
            lambda r: r.reshape(2, 4, 2, 6).permute(0, 3, 1, 2).reshape(12, 4, 2),
        ),
        "head.weight": same,
    }
    proto = onnx.load(str(source))
    for tensor in proto.graph.initializer:
        if tensor.name in ways:
            array = rounded(numpy_helper.to_array(tensor), fmt, *ways[tensor.name])
            tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    onnx.save(proto, str(path))
    return path


@pytest.mark.some(2)
@pytest.mark.parametrize("fmt", FORMATS)
def test_weights(fmt: str, tmp_path: Path) -> None:
    source = several(tmp_path / "float.onnx")
    ledger = quantize_onnx(source, tmp_path / "q.onnx", fmt)
    onnx.checker.check_model(str(tmp_path / "q.onnx"), full_check=True)
    expected = outputs(by_reference(source, tmp_path / "r.onnx", fmt), IDS)
    np.testing.assert_allclose(outputs(tmp_path / "q.onnx", IDS), expected, rtol=1e-4, atol=1e-4)
    assert [(e.name, e.kind) for e in ledger.quantized] == [
        ("table", "Gather"), ("block.fc", "MatMul"), ("conv", "Conv"), ("up", "ConvTranspose"),
        ("head", "Gemm"),
    ]  # fmt: skip
    assert {e.name: e.reason for e in ledger.kept} == {
        "conv.bias": "a vector", "head.bias": "a vector",
    }  # fmt: skip
    assert ledger["block.fc"].bytes_before == 512
    stored = {t.name for t in onnx.load(str(tmp_path / "q.onnx")).graph.initializer}
    assert {"conv.weight.codes", "block.fc.weight.codes"} <= stored
    assert "conv.weight" not in stored
    bs.export.audit(tmp_path / "q.onnx", ledger).raise_if_skipped()
    assert "conv.bias" in stored


def test_old_files_and_constants(tmp_path: Path) -> None:
    nodes = [
        onnx.helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(weights(8, 4))),
        onnx.helper.make_node("Identity", ["w"], ["same"]),
        onnx.helper.make_node("MatMul", ["x", "same"], ["y"], name="head"),
    ]
    source = model(tmp_path / "float.onnx", nodes, {}, {"x": ["n", 8]}, opset=11)
    quantize_onnx(source, tmp_path / "q.onnx", "int8_channel")
    proto = onnx.load(str(tmp_path / "q.onnx"))
    assert proto.opset_import[0].version == 21
    assert [node.op_type for node in proto.graph.node] == ["DequantizeLinear", "MatMul"]
    x = {"x": weights(3, 8, seed=9)}
    expected = x["x"] @ rounded(weights(8, 4), "int8_channel", lambda w: w.T, lambda r: r.T)
    np.testing.assert_allclose(outputs(tmp_path / "q.onnx", x), expected, rtol=1e-5, atol=1e-5)


def test_tied_weights_are_stored_once(tmp_path: Path) -> None:
    node = onnx.helper.make_node
    nodes = [
        node("Gather", ["table", "ids"], ["rows"]),
        node("Transpose", ["table"], ["turned"], perm=[1, 0]),
        node("MatMul", ["rows", "turned"], ["y"]),
    ]
    table = weights(64, 32)
    source = model(tmp_path / "float.onnx", nodes, {"table": table}, {"ids": ["n"]})
    ledger = quantize_onnx(source, tmp_path / "q.onnx", "int4:group32:fp32")
    assert [e.name for e in ledger] == ["table"]
    proto = onnx.load(str(tmp_path / "q.onnx"))
    codes = [t for t in proto.graph.initializer if t.name.endswith("codes")]
    assert [(t.name, t.data_type, list(t.dims)) for t in codes] == [
        ("table.codes", TensorProto.INT4, [32, 64])
    ]
    ids = np.array([3, 0, 63])
    values = rounded(table, "int4:group32:fp32", lambda w: w, lambda r: r)
    expected = values[ids] @ values.T
    np.testing.assert_allclose(outputs(tmp_path / "q.onnx", {"ids": ids}), expected, atol=1e-4)


def mlp(path: Path) -> tuple[Path, Any]:
    """Two layers as a file, and as ours."""
    node = onnx.helper.make_node
    nodes = [
        node("Gemm", ["x", "0.weight", "0.bias"], ["h"], transB=1),
        node("Relu", ["h"], ["r"]),
        node("Gemm", ["r", "2.weight", "2.bias"], ["y"], transB=1),
    ]
    ours = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8))
    tensors = {name: each.detach().numpy() for name, each in ours.state_dict().items()}
    return model(path, nodes, tensors, {"x": ["n", 16]}), ours.eval()


@pytest.mark.some(2)
@pytest.mark.parametrize("observer", ["min_max", "mse"])
def test_static_inputs_are_those_of_a_calibrated_model(observer: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    source, ours = mlp(tmp_path / "float.onnx")
    calls = [torch.randn(32, 16) for _ in range(4)]
    recipe = bs.Recipe("int8_channel", input="uint8:tensor:fp32:asym")
    np.savez(tmp_path / "calls.npz", x=torch.stack(calls).numpy())
    ledger = quantize_onnx(
        source, tmp_path / "q.onnx", recipe, calibrate=tmp_path / "calls.npz", observer=observer
    )
    bs.calibrate(ours, calls, recipe, observer=observer, weight="absmax", progress=False)
    assert ledger["0"].details == f"static input by {observer}"
    stored = {
        t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / "q.onnx").graph.initializer
    }
    for layer in ("0", "2"):
        scale = ours[int(layer)].input.scale.float().numpy().reshape(())
        np.testing.assert_allclose(stored[f"{layer}.input.scale"].reshape(()), scale, rtol=1e-5)
    x = torch.randn(64, 16)
    found, expected = outputs(tmp_path / "q.onnx", {"x": x.numpy()}), ours(x).detach().numpy()
    near = np.isclose(found, expected, atol=1e-4)
    assert near.mean() > 0.98  # a code beside a tie may be the next
    kinds = [node.op_type for node in onnx.load(tmp_path / "q.onnx").graph.node]
    assert kinds.count("QuantizeLinear") == 2


@pytest.mark.parametrize("fmt", ["int8_token", "mxfp8", "int8:tensor:fp32"])
def test_inputs_whose_scales_are_chosen_as_it_runs(fmt: str, tmp_path: Path) -> None:
    source, ours = mlp(tmp_path / "float.onnx")
    recipe = bs.Recipe("int8_channel", input=fmt)
    quantize_onnx(source, tmp_path / "q.onnx", recipe)
    bs.quantize_(ours, recipe)
    x = torch.randn(64, 16)
    found, expected = outputs(tmp_path / "q.onnx", {"x": x.numpy()}), ours(x).detach().numpy()
    assert np.isclose(found, expected, atol=1e-4).mean() > 0.98


def test_inputs_of_convolutions_have_blocks_of_channels(tmp_path: Path) -> None:
    node = onnx.helper.make_node("Conv", ["x", "0.weight"], ["y"], pads=[1, 1, 1, 1])
    conv = torch.nn.Conv2d(32, 4, 3, padding=1, bias=False)
    tensors = {"0.weight": conv.weight.detach().numpy()}
    source = model(tmp_path / "float.onnx", [node], tensors, {"x": ["n", 32, "h", "w"]})
    ours = torch.nn.Sequential(conv).eval()
    recipe = bs.Recipe("int8_channel", input="mxfp8")
    quantize_onnx(source, tmp_path / "q.onnx", recipe)
    bs.quantize_(ours, recipe)
    x = torch.randn(2, 32, 5, 7)
    found = outputs(tmp_path / "q.onnx", {"x": x.numpy()})
    np.testing.assert_allclose(found, ours(x).detach().numpy(), atol=1e-3)


def test_what_stays_in_float_is_named(tmp_path: Path) -> None:
    source = several(tmp_path / "float.onnx")
    recipe = bs.Recipe("int8_channel", skip=["block.*", "nothing"])
    with pytest.warns(UserWarning, match="pattern 'nothing' of the recipe matches nothing"):
        ledger = quantize_onnx(source, tmp_path / "q.onnx", recipe)
    assert ledger["block.fc"].reason == "pattern 'block.*' of the recipe"
    assert ledger.unmatched == ("nothing",)


def test_strict(tmp_path: Path) -> None:
    node = onnx.helper.make_node
    nodes = [node("MatMul", ["a", "x"], ["h"]), node("MatMul", ["h", "b"], ["y"])]
    tensors = {"a": weights(4, 8), "b": weights(6, 4, seed=1)}
    source = model(tmp_path / "float.onnx", nodes, tensors, {"x": [8, 6]})
    recipe = bs.Recipe("int8_channel", input="int8_token")
    with pytest.warns(UserWarning, match="a: skipped, blocks of its input"):
        ledger = quantize_onnx(source, tmp_path / "q.onnx", recipe, dry_run=True)
    assert "run along what it does not add up" in ledger["a"].reason
    assert ledger["b"].status == "quantized"
    assert not (tmp_path / "q.onnx").exists()
    with pytest.raises(SkippedError, match="strict: a: blocks of its input"):
        quantize_onnx(source, tmp_path / "q.onnx", recipe, strict=True)
    assert not (tmp_path / "q.onnx").exists()


def test_what_is_refused(tmp_path: Path) -> None:
    source, out = several(tmp_path / "float.onnx"), tmp_path / "q.onnx"

    def refused(
        match: str, recipe: Any = "int8_channel", kind: Any = ValueError, **more: Any
    ) -> None:
        with pytest.raises(kind, match=match):
            quantize_onnx(more.pop("model", source), out, recipe, **more)
        assert not out.exists()

    refused("a format for outputs", bs.Recipe("int8_channel", output="int8_token"))
    refused("so there is nothing to calibrate", calibrate=[IDS])
    refused(r"nothing can be quantized: table: pattern '\*'", bs.Recipe("int8_channel", skip=["*"]))
    refused("is no file", model=tmp_path / "none.onnx", kind=bs.FileError)
    (tmp_path / "text.onnx").write_text("not a model")
    refused("is no ONNX file", model=tmp_path / "text.onnx", kind=bs.FileError)
    recipe = bs.Recipe("int8_channel", input="int8:tensor:fp32")
    refused("onnxruntime cannot run the model on it", recipe, calibrate=[{"ids": weights(2, 2)}])
    out.write_text("mine")
    with pytest.raises(FileExistsError):
        quantize_onnx(source, out, "int8_channel")
    assert out.read_text() == "mine"


def test_tensors_beside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from blockscale.export.to_onnx import write

    source = several(tmp_path / "float.onnx")
    proto = onnx.load(str(source))
    onnx.save(
        proto, str(tmp_path / "out.onnx"), save_as_external_data=True, size_threshold=0,
        location="out.bin",
    )  # fmt: skip
    monkeypatch.setattr(write, "LARGEST", 100)
    monkeypatch.setattr(write, "_OUTSIDE", 64)
    quantize_onnx(tmp_path / "out.onnx", tmp_path / "q.onnx", "int8_channel")
    assert (tmp_path / "q.onnx.data").is_file()
    expected = outputs(by_reference(source, tmp_path / "r.onnx", "int8_channel"), IDS)
    np.testing.assert_allclose(outputs(tmp_path / "q.onnx", IDS), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dynamo", [False, True])
def test_exports_of_torch(dynamo: bool, tmp_path: Path) -> None:
    torch.manual_seed(0)
    layer = torch.nn.Sequential(
        torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.LayerNorm(64), torch.nn.Linear(64, 8)
    ).eval()
    x = torch.randn(2, 5, 32)
    torch.onnx.export(layer, (x,), str(tmp_path / "float.onnx"), dynamo=dynamo, opset_version=18)
    ledger = quantize_onnx(tmp_path / "float.onnx", tmp_path / "q.onnx", "int8_channel")
    assert len(ledger.quantized) == 2
    name = onnx.load(str(tmp_path / "float.onnx")).graph.input[0].name
    found, expected = (outputs(tmp_path / f"{n}.onnx", {name: x.numpy()}) for n in ("q", "float"))
    assert 1e-4 < np.abs(found - expected).max() < 0.05


@pytest.mark.slow
def test_a_model_that_nobody_here_wrote(tmp_path: Path) -> None:
    """PP-OCR's direction of a line: opset 11, weights in Constant nodes, any sizes."""
    needed("rapidocr_onnxruntime")
    from benchmarks.real_models import packages

    folder = packages.directory("rapidocr_onnxruntime", "rapidocr-onnxruntime")
    source = folder / "models" / "ch_ppocr_mobile_v2.0_cls_infer.onnx"
    x = {"x": np.tanh(weights(1, 3, 48, 192))}
    expected = outputs(source, x)
    recipe = bs.Recipe("int8_channel", input="uint8:tensor:fp32:asym")
    for each, calls in (("int8_channel", None), (recipe, [x])):
        ledger = quantize_onnx(source, tmp_path / "q.onnx", each, calibrate=calls, overwrite=True)
        assert (len(ledger.quantized), len(ledger.skipped)) == (54, 0)
        np.testing.assert_allclose(outputs(tmp_path / "q.onnx", x), expected, atol=0.05)
        assert (tmp_path / "q.onnx").stat().st_size < 0.5 * source.stat().st_size


INPUTS: dict[str, int | None] = {"x": 2, "length": 1}


def saved(path: Path, **arrays: Any) -> Path:
    np.savez(path, **arrays)
    return path


def test_calls(tmp_path: Path) -> None:
    x, length = weights(3, 4, 5), np.arange(6).reshape(3, 2)
    several = feeds_of(saved(tmp_path / "a.npz", x=x, length=length), INPUTS)
    assert len(several) == 3
    assert np.array_equal(several[2]["x"], x[2])
    assert np.array_equal(several[2]["length"], [4, 5])
    [one] = feeds_of(saved(tmp_path / "b.npz", x=x[0], length=length[0]), INPUTS)
    assert one["x"].shape == (4, 5)


@pytest.mark.parametrize(
    ("arrays", "match"),
    [
        ({"x": weights(4, 5)}, "holds x, and the model's inputs are x, length: an array for each"),
        ({"x": weights(4), "length": np.ones(2)}, "x has 1 dimensions, expected 2 for one call"),
        ({"x": weights(3, 4, 5), "length": np.ones((2, 2))}, r"calls of each input: x 3, length 2"),
        ({"x": weights(0, 4, 5), "length": np.ones((0, 2))}, "not 0"),
    ],
)
def test_arrays_that_do_not_fit(arrays: dict[str, Any], match: str, tmp_path: Path) -> None:
    path = saved(tmp_path / "a.npz", **arrays)
    with pytest.raises(ValueError, match=match):
        feeds_of(path, INPUTS)


def test_what_is_no_file_of_arrays(tmp_path: Path) -> None:
    with pytest.raises(bs.FileError, match="does not exist"):
        feeds_of(tmp_path / "none.npz", INPUTS)
    (tmp_path / "text.npz").write_text("text")
    with pytest.raises(bs.FileError, match=r"write one by np.savez\(path, x=…, length=…\)"):
        feeds_of(tmp_path / "text.npz", INPUTS)
    np.savez(tmp_path / "objects.npz", x=np.array([{}], object), length=np.ones(1))
    with pytest.raises(bs.FileError, match=r"no \.npz file of arrays"):
        feeds_of(tmp_path / "objects.npz", INPUTS)
