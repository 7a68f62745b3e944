# SPDX-License-Identifier: BSD-3-Clause
"""Weights in a file are the reference's numbers, to the bit, however they lie."""

import pytest
import torch

from blockscale.core.parse import CATALOG
from blockscale.export.to_onnx.weight import TURNED, as_products_read_it, move, rows, weight
from tests.export.to_onnx.running import made, run, same
from tests.support.onnx_weight import stored

SPELLINGS = [
    *CATALOG.values(),
    *("int4:group32:fp16", "uint4:group16:bf16:asym", "int3:group32:fp32", "uint7:token:fp32:asym"),
    *("int12:group8:fp32", "int8:tile4x16:fp32", "int4:tile8x8:e8m0", "e4m3:tile4x4:fp32"),
    *("int4:flat24:fp32", "nf4:flat16@0:fp32", "e2m1:group16:e4m3/inv", "book3:group16:fp32"),
    *(
        "uint4:group32:(uint6:group8:fp16):offset(uint6:group8:fp16)",
        "uint4:group16:fp16:asym(fp16)",
    ),
    *("iq4_nl:group32:fp16", "apot4:channel0:fp32", "log8f3:token:fp32", "e3m3:channel1:fp32"),
    *("int8:channel1:fp32", "int4:group8@0:fp32", "int4:group8:(e4m3:channel0:fp32)"),
]
MOVES = {
    "as it is": (),
    "turned": (("permute", (1, 0)),),
    "a convolution's": (("view", (12, 2, 2, 10)), ("permute", (0, 3, 1, 2))),
}


@pytest.mark.some(4)
@pytest.mark.parametrize("moves", MOVES)
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_values_are_the_references(spelling, moves):
    coded, expected = stored(spelling)

    def build(scope, names):
        return weight(scope, "w", coded, MOVES[moves], torch.float32)

    assert same(run(build, optimized=moves == "turned"), move(expected, MOVES[moves]))


@pytest.mark.parametrize(
    "spelling", ["int4:group8:fp32", "e2m1:channel0:fp32", "binary:token:fp32"]
)
@pytest.mark.parametrize("shape", [(5,), (3, 4, 9)])
def test_other_ranks(spelling, shape):
    if len(shape) == 1 and "token" in spelling:
        shape = (1, 5)
    coded, expected = stored(spelling, shape)
    assert same(run(lambda scope, names: weight(scope, "w", coded, (), torch.float32)), expected)


@pytest.mark.some(4)
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_rows(spelling):
    coded, table = stored(spelling)
    indices = torch.tensor([[3, 0, 11], [7, 7, 2]])

    def build(scope, names):
        return rows(scope, "w", coded, names[0], torch.float32)

    assert same(run(build, indices), table[indices])


def operators(spelling, moves="turned"):
    coded, _ = stored(spelling)
    model = made(lambda scope, names: weight(scope, "w", coded, MOVES[moves], torch.float32))
    return [node for node in model.graph.node if node.op_type not in ("Constant", "Identity")]


def test_blocks_run_along_the_sum():
    """[k, n] with axis 0, a zero point of the codes' type: what onnxruntime fuses."""
    [node] = operators("int4:group8:fp32")
    assert node.op_type == "DequantizeLinear" and len(node.input) == 3
    assert {a.name: a.i for a in node.attribute} == {"axis": 0, "block_size": 8}
    [node] = operators("int8:channel0:fp32")
    assert {a.name: a.i for a in node.attribute} == {"axis": 1}
    [node] = operators("int8:channel0:fp32", "a convolution's")
    assert {a.name: a.i for a in node.attribute} == {"axis": 0}


def test_standard_operators_for_what_onnx_lacks():
    """Bits are masked before they are shifted to the right: OpenVINO rounds what is shifted out."""
    nodes = operators("e3m2:group8:e8m0")
    kinds = [node.op_type for node in nodes]
    assert {node.domain for node in nodes} == {""} and kinds[-2:] == ["Mul", "Transpose"]
    assert kinds[2:4] == ["BitwiseAnd", "BitShift"] and kinds[5:7] == ["BitwiseAnd", "BitShift"]


def test_half_precision():
    coded, expected = stored("int8:channel0:fp32")
    found = run(lambda scope, names: weight(scope, "w", coded, (), torch.float16))
    assert torch.equal(found, expected.half())


TIED = [
    "int4:group8:fp32", "uint4:group8:fp16:asym", "int8:channel0:fp32", "int8:channel1:fp32",
    "int8:tensor:fp32", "e4m3:channel0:fp32", "e5m2:group8:bf16", "int4:group4@0:fp32",
    "uint8:group8:fp32:asym", "int8:group8:e8m0", "int16:channel0:fp32", "mxfp4", "nvfp4",
    "int5:group8:fp32", "int4:group8:(e4m3:tensor:fp32)",
]  # fmt: skip


@pytest.mark.some(3)
@pytest.mark.parametrize("spelling", TIED)
def test_a_table_and_a_product_read_one_weight(spelling):
    """Stored once, in the form that runtimes fuse where there is one; both get the reference's."""
    coded, values = stored(spelling)
    indices, x = torch.tensor([[3, 0, 11], [7, 7, 2]]), torch.randn(4, 40)

    def build(scope, names):
        if as_products_read_it(coded, TURNED):
            scope.file.transposed.add("w")
        table = rows(scope, "w", coded, names[0], torch.float32)
        turned = weight(scope, "w", coded, TURNED, torch.float32)
        product = scope.op("MatMul", names[1], turned)
        both = (
            scope.op("Reshape", table, scope.ints(-1)),
            scope.op("Reshape", product, scope.ints(-1)),
        )
        return scope.op("Concat", *both, axis=0)

    model = made(build, indices, x)
    names = [each.name for each in model.graph.initializer]
    assert sorted(set(names)) == sorted(names) and not [n for n in names if n.endswith("_1")]
    found = run(build, indices, x)
    assert same(found[:240], values[indices].flatten())
    torch.testing.assert_close(found[240:], (x @ values.T).flatten())
    optimized = run(build, indices, x, optimized=True)
    assert same(optimized[:240], values[indices].flatten())
    error = (optimized[240:] - found[240:]).abs().max() / found[240:].abs().max()
    assert error < 2e-2  # MatMulNBits quantizes inputs to int8
