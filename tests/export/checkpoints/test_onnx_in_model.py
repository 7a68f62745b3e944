# SPDX-License-Identifier: BSD-3-Clause
"""ONNX files loaded into models: the codes of `bs.quantize_`, wherever products turned them."""

from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import blockscale as bs

FORMATS = (
    "int4", "int4:group16:fp32", "uint4:group16:fp32:asym", "int8_channel", "int8", "fp8", "mxfp4",
    "nvfp4", "nf4", "e3m2:group8:e8m0/floor", "int16", "int3:group16:fp32:asym", "bfp8",
    "uint4:group32:fp16:offset", "e2m1:tile16x16:fp32", "int4:group16:e4m3",
)  # fmt: skip


def linears() -> nn.Sequential:
    """The second is square: which way its codes lie is in the graph alone."""
    torch.manual_seed(0)
    last = nn.Linear(48, 33, bias=False)
    return nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 48), last).eval()


def written(model: nn.Module, path: Path, *example: Any, fmt: str = "int4") -> Path:
    bs.quantize_(model, fmt)
    bs.export.onnx(model, path, example)
    return path


def same_codes(model: nn.Module, loaded: nn.Module) -> None:
    expected, found = model.state_dict(), loaded.state_dict()
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        if not name.endswith("_extra_state"):  # where int4 is `full`, as ONNX's is
            assert torch.equal(found[name].view(tensor.dtype), tensor), name


@pytest.mark.slow
@pytest.mark.parametrize("fmt", FORMATS)
def test_linear_layers(fmt: str, tmp_path: Path) -> None:
    model, x = linears(), torch.randn(3, 64)
    path = written(model, tmp_path / "m.onnx", x, fmt=fmt)
    loaded = bs.load(linears(), path)
    same_codes(model, loaded)
    assert torch.equal(loaded(x), model(x))


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 6, (3, 2), groups=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x))


@pytest.mark.slow
@pytest.mark.parametrize("fmt", ["int8_channel", "mxfp4"])
def test_convolutions(fmt: str, tmp_path: Path) -> None:
    model, x = Convolutions().eval(), torch.randn(2, 3, 8, 8)
    path = written(model, tmp_path / "m.onnx", x, fmt=fmt)
    loaded = bs.load(Convolutions().eval(), path)
    same_codes(model, loaded)
    assert torch.equal(loaded(x), model(x))


@pytest.mark.slow
@pytest.mark.parametrize("fmt", ["int4:group16:fp32", "mxfp4"])
def test_layers_that_hold_inputs_first(fmt: str, tmp_path: Path) -> None:
    from transformers.pytorch_utils import Conv1D

    torch.manual_seed(0)
    model, x = nn.Sequential(Conv1D(32, 64)).eval(), torch.randn(3, 64)
    path = written(model, tmp_path / "m.onnx", x, fmt=fmt)
    loaded = bs.load(nn.Sequential(Conv1D(32, 64)).eval(), path)
    same_codes(model, loaded)
    assert torch.equal(loaded(x), model(x))


@pytest.mark.slow
def test_another_model_is_refused_as_it_is(tmp_path: Path) -> None:
    """Turning follows the graph, and never what would fit."""
    path = written(nn.Sequential(nn.Linear(64, 48)).eval(), tmp_path / "m.onnx", torch.ones(1, 64))
    other = nn.Sequential(nn.Linear(48, 64))
    with pytest.raises(bs.FileError, match=r"0\.weight has shape \(48, 64\), this model's has"):
        bs.load(other, path)
    with pytest.raises(bs.FileError, match=r"it has 0\.bias"):
        bs.load(nn.Sequential(nn.Linear(64, 48, bias=False)), path)


@pytest.mark.slow
def test_formats_of_inputs_are_not_read(tmp_path: Path) -> None:
    model, x = nn.Sequential(nn.Linear(64, 48)).eval(), torch.ones(2, 64)
    recipe = bs.Recipe("int8_channel", input="int8:tensor:fp32")
    bs.calibrate(model, [x], recipe, progress=False)
    bs.export.onnx(model, tmp_path / "m.onnx", (x,))
    with pytest.warns(UserWarning, match="QuantizeLinear rounds 1 input"):
        loaded = bs.load(nn.Sequential(nn.Linear(64, 48)).eval(), tmp_path / "m.onnx")
    name = "0.weight.codes"
    assert torch.equal(loaded.state_dict()[name], model.state_dict()[name])


@pytest.mark.parametrize(("op", "turned"), [("MatMul", True), ("Gemm", True), ("Gemm B", False)])
def test_which_way_a_product_reads(op: str, turned: bool, tmp_path: Path) -> None:
    """Of a square weight the graph alone says it: codes of int8 in groups along the inputs."""
    torch.manual_seed(0)
    weight = torch.randint(-127, 128, (32, 32), dtype=torch.int8)  # [n, k]
    scale = torch.rand(32, 2) + 0.5
    codes, steps = (weight.T, scale.T) if turned else (weight, scale)
    tensors = [
        numpy_helper.from_array(codes.contiguous().numpy(), "0.weight"),
        numpy_helper.from_array(steps.contiguous().numpy(), "s"),
    ]
    options: dict[str, Any] = {"transB": 1} if op == "Gemm B" else {}
    nodes = [
        helper.make_node(
            "DequantizeLinear", ["0.weight", "s"], ["w"], axis=0 if turned else 1, block_size=16
        ),
        helper.make_node(op.split()[0], ["x", "w"], ["y"], **options),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 32]) for name in "xy")
    model = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y], tensors), ir_version=10,
        opset_imports=[helper.make_opsetid("", 21)],
    )  # fmt: skip
    onnx.save(model, str(tmp_path / "m.onnx"))
    loaded = bs.load(nn.Sequential(nn.Linear(32, 32, bias=False)), tmp_path / "m.onnx")
    values = weight.float() * scale.repeat_interleave(16, 1)
    assert torch.equal(loaded[0].dequantize_weight(), values)
    assert str(loaded[0].qweight.fmt) == "int8:group16:fp32:full"


def packed_file(path: Path, about: str, **changed: Any) -> Path:
    parts = {
        "codes": ("uint8", [4, 16], bytes(range(64))), "scale": ("uint8", [4, 1], bytes([127] * 4)),
    } | changed  # fmt: skip
    tensors = [
        helper.make_tensor(f"w.{name}", getattr(TensorProto, kind.upper()), shape, raw, raw=True)
        for name, (kind, shape, raw) in parts.items()
    ]
    tensors[0].doc_string = about
    x = helper.make_tensor_value_info("w.codes", TensorProto.UINT8, parts["codes"][1])
    graph = helper.make_graph([], "g", [], [x], tensors)
    path.write_bytes(helper.make_model(graph).SerializeToString())
    return path


def test_packed_codes_are_read_by_their_description(tmp_path: Path) -> None:
    path = packed_file(tmp_path / "m.onnx", "e2m1:group32:e8m0/floor [4, 31]")
    with bs.checkpoint(path) as result:
        assert result.stored["w"].shape == (4, 31) and list(result) == ["w"]
        found = result["w"]
        assert isinstance(found, bs.QTensor)
        table = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
        low = torch.arange(64, dtype=torch.int32).reshape(4, 16)
        every = torch.stack([low & 15, low >> 4], -1).reshape(4, 32)[:, :31]
        values = torch.where(every > 7, -table[every % 8], table[every % 8])
        assert torch.equal(found.dequantize(), values)


def test_packed_rows_end_in_zeros(tmp_path: Path) -> None:
    """Rows of 5 codes of 6 bits are 4 bytes, and 6 in the file: whole groups of codes."""
    q = bs.quantize(torch.randn(4, 5), "e3m2:group8:e8m0/floor")
    rows = torch.zeros(4, 6, dtype=torch.uint8)
    rows[:, :4] = q.packed
    parts = {
        "codes": ("uint8", [4, 6], rows.numpy().tobytes()),
        "scale": ("uint8", [4, 1], q.qparams.scale.numpy().tobytes()),
    }
    path = packed_file(tmp_path / "m.onnx", "e3m2:group8:e8m0/floor [4, 5]", **parts)
    with bs.checkpoint(path) as result:
        found = result["w"]
        assert isinstance(found, bs.QTensor) and torch.equal(found.dequantize(), q.dequantize())


@pytest.mark.parametrize(
    ("about", "changed", "match"),
    [
        ("e2m1:group32:e8m0/floor [4, 33]", {}, r"its codes are uint8 \[4, 16\], expected \[4, 17"),
        ("e2m1:group32:e8m0/floor [5, 32]", {}, r"expected \[5, 16\]"),
        ("e2m1:group16:e8m0/floor [4, 32]", {}, r"its scale is uint8 \[4, 1\], expected"),
        ("e2m1:group16:e4m3 [4, 32]", {"scale": ("uint8", [4, 2], bytes(8))}, "its outer is not"),
        ("e2m1:tile2x2x2:fp32 [4, 32]", {}, "tile2x2x2"),
    ],
)
def test_what_contradicts_its_description_is_not_read(
    about: str, changed: dict[str, Any], match: str, tmp_path: Path
) -> None:
    path = packed_file(tmp_path / "m.onnx", about, **changed)
    with bs.checkpoint(path) as result, pytest.raises(bs.FileError, match=match):
        result["w"]


def test_files_without_a_shape_stay_bytes(tmp_path: Path) -> None:
    """Those of earlier versions say their format alone."""
    with bs.checkpoint(packed_file(tmp_path / "m.onnx", "e2m1:group32:e8m0/floor")) as result:
        assert result.stored["w.codes"].format is None and set(result) == {"w.codes", "w.scale"}
    assert onnx.load(str(tmp_path / "m.onnx")).graph.initializer[0].doc_string.startswith("e2m1")
