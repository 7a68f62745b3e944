# SPDX-License-Identifier: BSD-3-Clause
"""Which tensors operators of codes read, and what is said of those that do not fit."""

import numpy as np
import pytest
from onnx import helper

from blockscale.export.checkpoints.onnx_tensors import read_model
from blockscale.export.checkpoints.onnx_weights import ScaleParts, find_weights, scale_of
from tests.export.checkpoints.onnx_files import floats, random_bytes, save, scales, tensor

ONES = np.ones


def weight(path, node, *tensors):
    made = find_weights(read_model(save(path / "m.onnx", [node], list(tensors))))
    [(name, found)] = made.items()
    assert name == "w"
    return found


def codes(*shape, kind="int8"):
    return tensor("w", kind, shape, random_bytes(int(np.prod(shape))))


@pytest.mark.parametrize(
    ("op", "inputs", "told", "shape", "block"),
    [
        ("QLinearMatMul", ["x", "s0", "z0", "w", "s", "", "s1", "z1"], {}, (8, 5), "channel1"),
        ("QLinearConv", ["x", "s0", "z0", "w", "s", "", "s1", "z1"], {}, (5, 3, 2, 2), "channel0"),
        ("QGemm", ["x", "s0", "z0", "w", "s"], {"transB": 1}, (5, 8), "channel0"),
        ("QGemm", ["x", "s0", "z0", "w", "s"], {}, (8, 5), "channel1"),
        ("MatMulIntegerToFloat", ["x", "w", "s0", "s"], {}, (8, 5), "channel1"),
        ("DynamicQuantizeMatMul", ["x", "w", "s"], {}, (8, 5), "channel1"),
    ],
)
def test_operators_of_integers(op, inputs, told, shape, block, tmp_path):
    node = helper.make_node(op, inputs, ["y"], **told)
    found = weight(tmp_path, node, codes(*shape), floats("s", ONES(5, np.float32)))
    assert (found.op, found.block, found.shape, found.unread) == (op, block, shape, "")


def dequantize(*inputs, **told):
    return helper.make_node("DequantizeLinear", list(inputs), ["y"], **told)


@pytest.mark.parametrize(
    ("node", "scale", "zero", "reason"),
    [
        (dequantize("w", "s", axis=7), ONES(5), None, "do not match axis 7 and block_size 0"),
        (
            dequantize("w", "s", axis=1, block_size=3),
            ONES((8, 3)),
            None,
            "match axis 1 and block_size 3",
        ),
        (
            dequantize("w", "s", axis=1, block_size=-3),
            ONES((8, 2)),
            None,
            "match axis 1 and block_size -3",
        ),
        (dequantize("w", "s", "z"), ONES(5), ONES(5, np.uint8), "its zero points are uint8"),
        (
            dequantize("w", "s", "z"),
            ONES(5),
            ONES(4, np.int8),
            r"int8 \[4\], expected one int8 for each",
        ),
        (dequantize("w", "s", "made"), ONES(5), None, "zero points made are not stored"),
    ],
)
def test_what_does_not_fit(node, scale, zero, reason, tmp_path):
    import re

    tensors = [codes(8, 5), floats("s", scale.astype(np.float32))]
    tensors += [] if zero is None else [floats("z", zero)]
    assert re.search(reason, weight(tmp_path, node, *tensors).unread)


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        ({"N": 4, "K": 32, "block_size": 0}, "block_size=0"),
        ({"N": 4, "K": 32, "block_size": 16, "bits": 3}, "bits=3"),
        ({"N": 4, "K": -32, "block_size": 16}, "K=-32"),
        ({"N": 4, "K": 2**40, "block_size": 16}, "expected 4 rows of"),
        ({"N": 4, "K": 32, "block_size": 32}, "it has 8 scales, expected 4 x 1"),
        ({}, "N=0, K=0"),
    ],
)
def test_matmul_nbits_that_does_not_fit(told, reason, tmp_path):
    node = helper.make_node("MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", **told)
    scale = floats("s", ONES((4, 2), np.float32))
    found = weight(tmp_path, node, codes(4, 2, 8, kind="uint8"), scale)
    assert reason in found.unread


def test_decoded_in_two_ways(tmp_path):
    nodes = [dequantize("w", "s"), helper.make_node("DequantizeLinear", ["w", "t"], ["u"])]
    tensors = [codes(8, 5), floats("s", ONES(5, np.float32)), floats("t", ONES(1, np.float32))]
    made = find_weights(read_model(save(tmp_path / "m.onnx", nodes, tensors)))
    assert made["w"].unread == "operators of the file decode it in different ways"
    twice = [nodes[0], helper.make_node("DequantizeLinear", ["w", "s"], ["u"])]
    made = find_weights(read_model(save(tmp_path / "m.onnx", twice, tensors)))
    assert made["w"].unread == ""


def test_biases_and_activations_are_none(tmp_path):
    nodes = [dequantize("x", "s"), helper.make_node("DequantizeLinear", ["w", "s"], ["u"])]
    tensors = [tensor("w", "int32", (5,), random_bytes(20)), floats("s", ONES(5, np.float32))]
    assert find_weights(read_model(save(tmp_path / "m.onnx", nodes, tensors))) == {}


E8M0 = tensor("b", "float8e8m0", (4,), random_bytes(4))
E4M3 = tensor("c", "float8e4m3fn", (4,), random_bytes(4))
OUTER = floats("o", scales(()))
EXPAND = helper.make_node("Expand", ["o", "n"], ["q"])
CAST = helper.make_node("Cast", ["b"], ["p"], to=1)


@pytest.mark.parametrize(
    ("nodes", "tensors", "found"),
    [
        ([], [floats("s", scales((4,), "float16"))], ("fp16", ["s"])),
        ([], [tensor("s", "float8e8m0", (4,), random_bytes(4))], ("e8m0/given", ["s"])),
        ([helper.make_node("Cast", ["b"], ["s"], to=1)], [E8M0], ("e8m0/given", ["b"])),
        ([CAST, helper.make_node("Mul", ["p", "o"], ["s"])], [E8M0, OUTER],
         ("e8m0/given", ["b", "o"])),
        ([helper.make_node("DequantizeLinear", ["c", "o"], ["s"])], [E4M3, OUTER],
         ("e4m3", ["c", "o"])),
        ([helper.make_node("Cast", ["c"], ["p"], to=1), helper.make_node("Mul", ["o", "p"], ["s"])],
         [E4M3, OUTER], ("e4m3", ["c", "o"])),
        ([helper.make_node("Cast", ["c"], ["p"], to=1), EXPAND,
          helper.make_node("Mul", ["q", "p"], ["s"])],
         [E4M3, OUTER, floats("n", np.array([4]))], ("e4m3", ["c", "o"])),
        ([], [tensor("s", "int8", (4,), random_bytes(4))], "its scale s is int8"),
        ([], [], "its scale s is not a tensor of the file"),
        ([helper.make_node("Exp", ["o"], ["s"])], [OUTER], "its scale s is computed by Exp"),
        ([helper.make_node("Mul", ["x", "y2"], ["s"])], [], (
        "a product (Mul) of tensors that are not stored"
)),
        ([helper.make_node("DequantizeLinear", ["c", "o"], ["s"])],
         [E4M3, floats("o", scales((4,)))], "has scales of its own, float32 [4]"),
        ([helper.make_node("DequantizeLinear", ["x", "o"], ["s"])], [OUTER], "are not float8"),
    ],
)  # fmt: skip
def test_scale_of(nodes, tensors, found, tmp_path):
    last = helper.make_node("Identity", ["s"], ["y"])
    model = read_model(save(tmp_path / "m.onnx", [*nodes, last], tensors))
    parts = scale_of("s", model, model.graph.makers)
    if isinstance(found, str):
        assert isinstance(parts, str) and found in parts
    else:
        assert isinstance(parts, ScaleParts)
        assert (parts.spelling, [each.name for each in parts.tensors]) == found
