# SPDX-License-Identifier: BSD-3-Clause
"""Which nodes read weights, what their layers are called, and how their weights lie."""

from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnx import helper

from blockscale.core.pack import to_stored
from blockscale.export.to_onnx.float_model import FloatModel, Site
from blockscale.export.to_onnx.weight import move
from tests.support.onnx_graphs import model, several, weights

node = helper.make_node


def found(path: Path) -> tuple[FloatModel, list[Site]]:
    read = FloatModel.of(onnx.load(str(path)))
    return read, read.sites()


def test_weights_are_moved_back_to_where_the_file_has_them(tmp_path: Path) -> None:
    read, sites = found(several(tmp_path / "float.onnx"))
    assert [(site.layer, site.kind, site.data) for site in sites] == [
        ("table", "Gather", "ids"), ("block.fc", "MatMul", "rows"), ("conv", "Conv", "turned"),
        ("up", "ConvTranspose", "r"), ("head", "Gemm", "m"),
    ]  # fmt: skip
    for site in sites:
        values = read.values(site.tensor)
        assert torch.equal(move(to_stored(values, site.layout), site.moves), values)


@pytest.mark.parametrize(
    ("nodes", "shape", "layout"),
    [
        ([node("MatMul", ["x", "w"], ["y"])], (8, 4), "transposed"),
        ([node("MatMul", ["w", "x"], ["y"])], (4, 8), "plain"),
        ([node("MatMul", ["x", "w"], ["y"])], (2, 8, 4), "transposed"),
        ([node("Gemm", ["x", "w"], ["y"], transB=1)], (4, 8), "plain"),
        ([node("Gemm", ["x", "w"], ["y"])], (8, 4), "transposed"),
        (
            [node("Transpose", ["w"], ["t"], perm=[1, 0]), node("MatMul", ["x", "t"], ["y"])],
            (4, 8),
            "plain",
        ),
        (
            [node("Transpose", ["w"], ["t"]), node("Gemm", ["x", "t"], ["y"], transB=1)],
            (8, 4),
            "transposed",
        ),
        ([node("Identity", ["w"], ["t"]), node("Gather", ["t", "ids"], ["y"])], (9, 4), "plain"),
        ([node("Gather", ["w", "ids"], ["y"], axis=1)], (9, 4), None),
        ([node("Add", ["x", "w"], ["y"])], (4, 4), None),
        ([node("MatMul", ["x", "w"], ["y"])], (8,), None),
    ],
)
def test_how_weights_lie(
    nodes: list[Any], shape: tuple[int, ...], layout: str | None, tmp_path: Path
) -> None:
    inputs: dict[str, list[Any]] = {"x": ["n", 8], "ids": ["n"]}
    path = model(tmp_path / "float.onnx", nodes, {"w": weights(*shape)}, inputs)
    read, sites = found(path)
    assert [site.layout for site in sites] == ([] if layout is None else [layout])
    for site in sites:
        turned = read.values("w").mT if nodes[0].op_type == "Transpose" else read.values("w")
        assert torch.equal(move(to_stored(read.values("w"), site.layout), site.moves), turned)


def test_two_tensors_of_one_name_are_told_apart(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", ["x", "onnx::MatMul_1"], ["h"], name="/fc/MatMul"),
        node("MatMul", ["h", "onnx::MatMul_2"], ["y"], name="/fc/MatMul_1"),
    ]
    tensors = {"onnx::MatMul_1": weights(8, 8), "onnx::MatMul_2": weights(8, 8, seed=1)}
    _, sites = found(model(tmp_path / "float.onnx", nodes, tensors, {"x": ["n", 8]}))
    assert [site.layer for site in sites] == ["fc", "fc.1"]


def test_what_graphs_inside_of_nodes_read_is_known(tmp_path: Path) -> None:
    inner = helper.make_graph(
        [node("MatMul", ["x", "w"], ["then"])], "then", [], [onnx.ValueInfoProto(name="then")]
    )
    other = helper.make_graph(
        [node("Identity", ["x"], ["else"])], "else", [], [onnx.ValueInfoProto(name="else")]
    )
    nodes = [node("If", ["ids"], ["y"], then_branch=inner, else_branch=other)]
    path = model(tmp_path / "float.onnx", nodes, {"w": weights(8, 8)}, {"ids": [], "x": ["n", 8]})
    read, sites = found(path)
    assert read.hidden == {"w"}
    assert sites == []


def test_halves(tmp_path: Path) -> None:
    values = torch.randn(4, 8).bfloat16()
    raw = values.view(torch.int16).numpy().tobytes()
    tensor = helper.make_tensor("w", onnx.TensorProto.BFLOAT16, [4, 8], raw, raw=True)
    graph = helper.make_graph([node("MatMul", ["w", "x"], ["y"])], "g", [], [], [tensor])
    read = FloatModel.of(helper.make_model(graph))
    assert torch.equal(read.values("w"), values)


def test_where_biases_are(tmp_path: Path) -> None:
    node, n = helper.make_node, weights(4)
    nodes = [
        node("Gemm", ["x", "a", "bias"], ["1"]),
        node("Gemm", ["1", "a", "bias"], ["2"], beta=2.0),
        node("Gemm", ["2", "a"], ["3"]),
        node("MatMul", ["3", "a"], ["4"]),
        node("Add", ["4", "wide"], ["5"]),
        node("MatMul", ["5", "a"], ["6"]),
        node("Add", ["6", "6"], ["7"]),
        node("MatMul", ["7", "a"], ["8"]),
        node("Add", ["8", "one"], ["y"]),
    ]
    tensors = {"a": weights(4, 4), "bias": n, "wide": n.reshape(1, 4), "one": n.reshape(4, 1)}
    path = model(tmp_path / "m.onnx", nodes, tensors, {"x": ["n", 4]})
    found = FloatModel.of(onnx.load(str(path)))
    odd = "bias not corrected: it is no stored vector that is added as it is"
    assert [found.bias_of(site) for site in found.sites()] == [
        ("1", 2, "bias"), odd, "no bias to correct", ("5", 1, "wide"), "no bias to correct", odd,
    ]  # fmt: skip
