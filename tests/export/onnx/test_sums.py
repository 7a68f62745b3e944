"""Sums before a layer norm or a GELU are of an operator that onnxruntime does not fuse."""

from onnx import helper

from blockscale.export.onnx.sums import keep_sums


def nodes():
    return [
        helper.make_node("Add", ["a", "b"], ["c"]),
        helper.make_node("LayerNormalization", ["c", "scale"], ["d"]),
        helper.make_node("Add", ["d", "bias"], ["e"]),
        helper.make_node("Gelu", ["e"], ["f"]),
        helper.make_node("Add", ["f", "c"], ["g"]),
        helper.make_node("Softmax", ["g"], ["h"]),
        helper.make_node("Mul", ["h", "h"], ["i"]),
        helper.make_node("LayerNormalization", ["i", "scale"], ["j"]),
    ]


def test_only_what_is_slower_together():
    given = nodes()
    assert keep_sums(given) == 2
    assert [node.op_type for node in given] == [
        "Sum", "LayerNormalization", "Sum", "Gelu", "Add", "Softmax", "Mul", "LayerNormalization",
    ]  # fmt: skip
    assert [list(node.input) for node in given] == [list(node.input) for node in nodes()]


def test_an_input_of_the_graph():
    given = [helper.make_node("Gelu", ["x"], ["y"])]
    assert keep_sums(given) == 0
