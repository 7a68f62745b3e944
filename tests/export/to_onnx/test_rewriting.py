# SPDX-License-Identifier: BSD-3-Clause
"""What is written in the place of weights and inputs, and what the ledger says of it."""

from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

import blockscale as bs
from blockscale.core.ledger import Ledger
from blockscale.export.to_onnx.float_model import FloatModel
from blockscale.export.to_onnx.rewriting import Rewriting
from tests.support.onnx_graphs import model, several, weights

node = helper.make_node


def rewritten(path: Path, recipe: Any, opset: int = 21) -> tuple[Any, Ledger]:
    proto = onnx.version_converter.convert_version(onnx.load(str(path)), opset)
    ledger = Rewriting(FloatModel.of(proto), bs.Recipe.read(recipe)).run("model.onnx")
    return proto, ledger


def branches(path: Path) -> Path:
    """q and k of one input, by one tensor each, and a third that reads the first's tensor again."""
    nodes = [
        *(node("MatMul", ["x", name], [f"h{i}"]) for i, name in enumerate("qkq")),
        node("Sum", ["h0", "h1", "h2"], ["y"]),
    ]
    return model(path, nodes, {"q": weights(8, 4), "k": weights(8, 4, seed=1)}, {"x": ["n", 8]})


def test_what_is_read_twice_is_written_once(tmp_path: Path) -> None:
    recipe = bs.Recipe("int8_channel", input="uint8:tensor:fp32:asym")
    proto, ledger = rewritten(branches(tmp_path / "float.onnx"), recipe)
    kinds = [each.op_type for each in proto.graph.node]
    assert kinds.count("QuantizeLinear") == 1
    assert kinds.count("DequantizeLinear") == 3  # x, q and k
    assert [each.name for each in ledger.quantized] == ["q", "k"]
    assert {each.name for each in proto.graph.initializer} == {
        f"{name}.{part}" for name in "qk" for part in ("codes", "scale", "zero_point")
    }


@pytest.mark.parametrize(("opset", "kind"), [(21, "UINT8"), (24, "FLOAT8E8M0")])
def test_exponents_leave_the_opset_as_it_is(opset: int, kind: str, tmp_path: Path) -> None:
    """Later ones have a type of exponents, and ops that onnxruntime has no kernels for."""
    proto, _ = rewritten(branches(tmp_path / "float.onnx"), "mxfp4", opset)
    types = {each.name: each.data_type for each in proto.graph.initializer}
    assert types["q.scale"] == TensorProto.DataType.Value(kind)
    assert proto.opset_import[0].version == opset


def test_a_later_opset_in_which_the_model_does_not_run_is_refused(tmp_path: Path) -> None:
    nodes = [node("RandomNormalLike", ["x"], ["r"]), node("MatMul", ["r", "w"], ["y"])]
    path = model(tmp_path / "float.onnx", nodes, {"w": weights(32, 8)}, {"x": ["n", 32]})
    rewritten(path, "mxfp4")
    with pytest.raises(
        ValueError, match=r"needs opset 24, and there onnxruntime cannot run .*Rand"
    ):
        rewritten(path, bs.Recipe("int8_channel", input="mxfp8"))


def test_old_files_name_their_tensors_as_inputs_too(tmp_path: Path) -> None:
    proto = onnx.load(str(several(tmp_path / "float.onnx")))
    for tensor in list(proto.graph.initializer):
        value = helper.make_tensor_value_info(tensor.name, 1, list(tensor.dims))
        proto.graph.input.append(value)
    onnx.save(proto, str(tmp_path / "old.onnx"))
    made, _ = rewritten(tmp_path / "old.onnx", "int8_channel")
    assert [each.name for each in made.graph.input] == ["ids", "conv.bias", "head.bias"]


def test_a_weight_that_a_graph_inside_reads_stays(tmp_path: Path) -> None:
    def branch(name: str, weight: str) -> Any:
        outputs = [helper.make_tensor_value_info(name, 1, ["n", 8])]
        return helper.make_graph([node("MatMul", ["x", weight], [name])], name, [], outputs)

    nodes = [
        node("MatMul", ["x", "w"], ["h"]),
        node("MatMul", ["h", "v"], ["g"]),
        node("ReduceSum", ["g"], ["s"], keepdims=0),
        node("Cast", ["s"], ["b"], to=TensorProto.BOOL),
        node("If", ["b"], ["y"], then_branch=branch("t", "w"), else_branch=branch("e", "u")),
    ]
    tensors = {name: weights(8, 8, seed=i) for i, name in enumerate("wvu")}
    path = model(tmp_path / "float.onnx", nodes, tensors, {"x": [8, 8]})
    proto, ledger = rewritten(path, "int8_channel")
    assert ledger["w"].status == "skipped"
    assert ledger["w"].reason == "a graph inside of a node reads it"
    assert ledger["v"].status == "quantized"
    assert (ledger["u"].status, ledger["u"].reason) == ("kept", ledger["w"].reason)
    assert {"w", "u"} <= {each.name for each in proto.graph.initializer}
