# SPDX-License-Identifier: BSD-3-Clause
"""What nodes compute with a tensor."""

import pytest

from blockscale.export.auditing.entries import Stored
from blockscale.export.auditing.onnx_nodes import Graph, Node, reader


def read(tensor, *nodes):
    reader(tensor, Graph(list(nodes)))
    return tensor


def codes(kind="int8", bits=8):
    return Stored("fc.weight.codes", kind, (64, 32), bits, 2048)


def test_nothing_reads_it():
    assert not read(codes()).low and not codes().reader


def test_a_table_of_rows_is_a_weight_and_indices_are_not():
    gather = Node("Gather", "", ["fc.weight.codes", "ids"], ["rows"], {})
    assert read(codes(), gather).low
    ids = Stored("ids", "int64", (4,), 64, 32)
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
    assert not read(Stored("s", "float8e8m0", (2, 2), 8, 4), *nodes).low
    assert read(Stored("w", "int8", (2, 2), 8, 4), *nodes).low


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
    bias = Stored("b", "float32", (4,), 32, 16)
    nodes = (Node("Add", "", ["y", "b"], ["h"], {}), Node("MatMul", "", ["h", "w"], ["z"], {}))
    assert not read(bias, *nodes).reader
    assert read(Stored("w", "float32", (4, 4), 32, 64), *nodes).reader == "MatMul in float"


def test_loops_end():
    nodes = (
        Node("Cast", "", ["fc.weight.codes", "b"], ["a"], {}),
        Node("Cast", "", ["a"], ["b"], {}),
    )
    assert not read(codes(), *nodes, Node("Cast", "", ["b"], ["a"], {})).low
