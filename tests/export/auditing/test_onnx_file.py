# SPDX-License-Identifier: BSD-3-Clause
"""ONNX files that the library writes, and damaged ones."""

import numpy as np
import pytest
import torch

import blockscale as bs
from blockscale.core.ledger import Entry, Ledger
from blockscale.export.auditing.entries import FileTensor
from blockscale.export.auditing.onnx_file import Node, OnnxGraph, reader
from blockscale.export.to_onnx.weight import rows, weight
from blockscale.files.metadata import FileError
from tests.export.to_onnx.running import made
from tests.support.onnx_weight import stored

onnx = pytest.importorskip("onnx")
helper, TensorProto = pytest.importorskip("onnx.helper"), onnx.TensorProto
CODES = np.arange(64 * 32, dtype=np.uint8).reshape(64, 32)


def tensor(name, kind, dims, raw):
    return TensorProto(name=name, data_type=kind, dims=dims, raw_data=raw)


def int4(name="fc.weight.codes"):
    return tensor(name, TensorProto.INT4, (64, 32), bytes(1024))


def scales(rows=2, name="fc.weight.scale"):
    return tensor(name, TensorProto.FLOAT, (rows, 32), np.ones((rows, 32), "f4").tobytes())


def saved(path, nodes, initializers, functions=()):
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 64])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x], [y], initializers)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    model = helper.make_model(graph, opset_imports=opsets, functions=list(functions))
    path.write_bytes(model.SerializeToString())
    return bs.export.audit(path)


def dequantize(**attributes):
    names = ["fc.weight.codes", "fc.weight.scale", "fc.weight.zero_point"]
    return helper.make_node("DequantizeLinear", names, ["w"], **attributes)


def test_blocks_that_onnxruntime_fuses(tmp_path):
    zeros = tensor("fc.weight.zero_point", TensorProto.INT4, (2, 32), bytes(32))
    nodes = [dequantize(axis=0, block_size=32), helper.make_node("MatMul", ["x", "w"], ["y"])]
    found = saved(tmp_path / "m.onnx", nodes, [int4(), scales(), zeros])
    [entry] = found
    assert (entry.name, entry.status, entry.weight) == ("fc", "quantized", "int4")
    assert entry.elements == 2048 and entry.bytes_after == 1024 + 256 + 32
    assert "MatMulNBits" in entry.details and "activations to int8" in entry.details
    other = [dequantize(axis=1, block_size=32), *nodes[1:]]
    assert "MatMulNBits" not in saved(tmp_path / "m.onnx", other, [int4(), scales()])["fc"].details


def quantized_input():
    return [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["a"]),
    ]


def test_static_int8_computes_in_integers(tmp_path):
    codes = tensor("fc.weight.codes", TensorProto.INT8, (64, 32), CODES.tobytes())
    zeros = tensor("fc.weight.zero_point", TensorProto.INT8, (32,), bytes(32))
    scale = tensor("fc.weight.scale", TensorProto.FLOAT, (32,), np.ones(32, "f4").tobytes())
    s = tensor("s", TensorProto.FLOAT, (), np.ones(1, "f4").tobytes())
    z = tensor("z", TensorProto.UINT8, (), b"\0")
    product = helper.make_node("MatMul", ["a", "w"], ["y"])
    held = [codes, zeros, scale, s, z]
    found = saved(tmp_path / "m.onnx", [*quantized_input(), dequantize(axis=1), product], held)
    assert found["fc"].weight == "int8" and "computes in integers" in found["fc"].details
    assert found["s"].status == "kept"


def test_integer_operators_and_floats(tmp_path):
    codes = tensor("fc.weight.codes", TensorProto.INT8, (64, 32), CODES.tobytes())
    plain = tensor("out.weight", TensorProto.FLOAT, (32, 8), bytes(1024))
    nodes = [
        helper.make_node("MatMulInteger", ["q", "fc.weight.codes"], ["sums"]),
        helper.make_node("MatMul", ["h", "out.weight"], ["y"]),
    ]
    found = saved(tmp_path / "m.onnx", nodes, [codes, plain])
    assert found["fc"].details == "MatMulInteger: in integers"
    assert found["out.weight"].reason == "float32 in the file, MatMul in float"


def test_functions_of_ours_say_their_format(tmp_path):
    packed = tensor("fc.weight.codes", TensorProto.UINT8, (64, 24), bytes(64 * 24))
    inputs = ["fc.weight.codes", "fc.weight.scale"]
    nodes = [
        helper.make_node("dequantize_e3m2_group32_e8m0_floor_1", inputs, ["w"], domain="own"),
        helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "t"], ["y"]),
    ]
    found = saved(tmp_path / "m.onnx", nodes, [packed, scales(1)])
    assert found["fc"].weight == "e3m2 group32 e8m0 floor" and found["fc"].elements == 2048
    assert found["fc"].details == "decoded to float, MatMul in float"


def test_packed_codes_say_their_format(tmp_path):
    """In their description, whatever operators read them; vectors of constants are no weights."""
    coded, values = stored("e3m2:group8:e8m0")

    def product(scope, names):
        return scope.op("MatMul", names[0], weight(scope, "fc.weight", coded, (), torch.float32))

    def table(scope, names):
        return rows(scope, "fc.weight", coded, names[0], torch.float32)

    for build, x in ((product, torch.ones(2, 12)), (table, torch.tensor([1, 2]))):
        (tmp_path / "m.onnx").write_bytes(made(build, x).SerializeToString())
        [entry] = [each for each in bs.export.audit(tmp_path / "m.onnx") if each.weight]
        assert entry.weight == "e3m2 group8 e8m0 floor" and entry.elements == values.numel()
        op = "MatMul" if build is product else "Gather"
        assert entry.details == f"decoded to float, {op} in float"
    lies = tensor("fc.weight.codes", TensorProto.UINT8, (64, 24), bytes(64 * 24))
    lies.doc_string = "int4:no such block:fp32"
    node = helper.make_node("MatMulInteger", ["q", "fc.weight.codes"], ["y"])
    assert saved(tmp_path / "m.onnx", [node], [lies])["fc"].weight == "uint8"


def test_a_planted_float_weight(tmp_path):
    """Its ledger says int4, and its name that it holds codes; the file holds floats."""
    planted = tensor("fc.weight.codes", TensorProto.FLOAT, (64, 32), bytes(64 * 32 * 4))
    node = helper.make_node("MatMul", ["x", "fc.weight.codes"], ["y"])
    saved(tmp_path / "m.onnx", [node], [planted])
    told = Ledger([Entry("fc", "linear", "quantized", weight="int4:group32:fp32", elements=2048)])
    found = bs.export.audit(tmp_path / "m.onnx", told)
    assert [entry.name for entry in found.skipped] == ["fc.weight.codes"]
    assert found.skipped[0].reason == (
        "its ledger says int4:group32:fp32: float32 in the file, MatMul in float"
    )


def test_tensors_in_another_file(tmp_path):
    outside = TensorProto(name="fc.weight", data_type=TensorProto.FLOAT, dims=(8, 8))
    outside.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "m.data"), ("offset", "4"), ("length", "256")):
        outside.external_data.add(key=key, value=value)
    node = helper.make_node("MatMul", ["x", "fc.weight"], ["y"])
    with pytest.raises(FileError, match=r"lies in m\.data, which is not there"):
        saved(tmp_path / "m.onnx", [node], [outside])
    (tmp_path / "m.data").write_bytes(bytes(259))
    with pytest.raises(FileError, match=r"ends after the end of m.data"):
        saved(tmp_path / "m.onnx", [node], [outside])
    (tmp_path / "m.data").write_bytes(bytes(260))
    assert saved(tmp_path / "m.onnx", [node], [outside])["fc.weight"].bytes_after == 256
    for place in ("../m.data", "/etc/passwd", ""):
        outside.external_data[0].value = place
        with pytest.raises(FileError, match="outside the directory"):
            saved(tmp_path / "m.onnx", [node], [outside])


def test_tensors_that_lie(tmp_path):
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    short = tensor("w", TensorProto.FLOAT, (64, 64), bytes(12))
    with pytest.raises(FileError, match=r"tensor 'w' \[64, 64\] float32 has 12 bytes"):
        saved(tmp_path / "m.onnx", [node], [short])
    with pytest.raises(FileError, match="is of type 99"):
        saved(tmp_path / "m.onnx", [node], [tensor("w", 99, (1,), b"")])
    with pytest.raises(FileError, match="has the impossible shape"):
        saved(tmp_path / "m.onnx", [node], [tensor("w", TensorProto.INT8, (-4,), b"")])


def test_every_cut_is_an_error_or_a_whole_file(tmp_path):
    nodes = [dequantize(axis=0, block_size=32), helper.make_node("MatMul", ["x", "w"], ["y"])]
    saved(tmp_path / "m.onnx", nodes, [int4(), scales()])
    data = (tmp_path / "m.onnx").read_bytes()
    (tmp_path / "cut.onnx").write_bytes(data[:1000])
    with pytest.raises(FileError, match="cannot be audited"):
        bs.export.audit(tmp_path / "cut.onnx")
    for size in range(1, len(data), 37):
        (tmp_path / "cut.onnx").write_bytes(data[:size])
        try:
            bs.export.audit(tmp_path / "cut.onnx")
        except FileError:
            continue


# What nodes compute with a tensor.


def read(tensor, *nodes):
    reader(tensor, OnnxGraph(list(nodes)))
    return tensor


def codes(kind="int8", bits=8):
    return FileTensor("fc.weight.codes", kind, (64, 32), bits, 2048)


def test_nothing_reads_it():
    assert not read(codes()).low and not codes().reader


def test_a_table_of_rows_is_a_weight_and_indices_are_not():
    gather = Node("Gather", "", ["fc.weight.codes", "ids"], ["rows"], {})
    assert read(codes(), gather).low
    ids = FileTensor("ids", "int64", (4,), 64, 32)
    assert not read(ids, gather).low


@pytest.mark.parametrize("op", ["LSTM", "GRU", "RNN"])
def test_weights_of_recurrent_layers(op):
    """Cut into the order of ONNX's gates on the way."""
    nodes = (
        Node("DequantizeLinear", "", ["fc.weight.codes", "s"], ["v"], {}),
        Node("Slice", "", ["v", "a", "b"], ["w"], {}),
        Node(op, "", ["x", "w", "r"], ["y"], {}),
    )
    assert read(codes(), *nodes).reader == f"decoded to float, {op} in float"


def test_rows_are_gathered_along_the_first_dimension():
    """Along others, nodes take packed bytes apart, or spread scales over blocks."""
    nodes = (
        Node("Gather", "", ["fc.weight.codes", "places"], ["v"], {"axis": 2}),
        Node("MatMul", "", ["x", "v"], ["y"], {}),
    )
    assert read(codes(), *nodes).reader == "decoded to float, MatMul in float"


def test_scales_are_no_weights():
    nodes = (
        Node("DequantizeLinear", "", ["w", "s"], ["v"], {}),
        Node("MatMul", "", ["x", "v"], ["y"], {}),
    )
    assert not read(FileTensor("s", "float8e8m0", (2, 2), 8, 4), *nodes).low
    assert read(FileTensor("w", "int8", (2, 2), 8, 4), *nodes).low


@pytest.mark.parametrize(("level", "told"), [(0, "in float"), (4, "to int8")])
def test_matmulnbits(level, told):
    names = ["x", "fc.weight.codes", "s"]
    node = Node("MatMulNBits", "com.microsoft", names, ["y"], {"accuracy_level": level})
    assert told in read(codes("uint8"), node).reader


def test_without_zero_points_onnxruntime_fuses_nothing():
    def nodes(*zero):
        return (
            Node("DequantizeLinear", "", ["q", "s", *zero], ["a"], {}),
            Node("DequantizeLinear", "", ["fc.weight.codes", "t", *zero], ["w"], {"axis": 1}),
            Node("MatMul", "", ["a", "w"], ["y"], {}),
        )

    assert "in integers" in read(codes(), *nodes("z")).reader
    assert "in integers" not in read(codes(), *nodes()).reader


def test_a_bias_on_the_way_to_the_next_product_is_a_vector():
    bias = FileTensor("b", "float32", (4,), 32, 16)
    nodes = (Node("Add", "", ["y", "b"], ["h"], {}), Node("MatMul", "", ["h", "w"], ["z"], {}))
    assert not read(bias, *nodes).reader
    assert read(FileTensor("w", "float32", (4, 4), 32, 64), *nodes).reader == "MatMul in float"


def test_loops_end():
    nodes = (
        Node("Cast", "", ["fc.weight.codes", "b"], ["a"], {}),
        Node("Cast", "", ["a"], ["b"], {}),
    )
    assert not read(codes(), *nodes, Node("Cast", "", ["b"], ["a"], {})).low
