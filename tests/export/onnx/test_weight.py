"""Weights in a file are the reference's numbers, to the bit, however they lie."""

import pytest
import torch

import blockscale as bs
from blockscale.core.catalog import CATALOG
from blockscale.core.operand import operand
from blockscale.core.parse import parse
from blockscale.export.onnx.weight import moved, plain, rows, weight
from tests.export.onnx.running import made, run, same

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


def stored(spelling, shape=(12, 40)):
    torch.manual_seed(0)
    fmt = parse(spelling)
    x = torch.randn(shape) * 2.0 ** torch.randint(-3, 3, (shape[0], *[1] * (len(shape) - 1)))
    with bs.use("reference"):
        q = bs.quantize(x, fmt)
        return operand(q.packed, q.qparams, fmt, shape[-1]), q.dequantize()


@pytest.mark.some(4)
@pytest.mark.parametrize("moves", MOVES)
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_values_are_the_references(spelling, moves):
    coded, expected = stored(spelling)

    def build(scope, names):
        return weight(scope, "w", coded, MOVES[moves], torch.float32)

    assert same(run(build, optimized=moves == "turned"), moved(expected, MOVES[moves]))


@pytest.mark.parametrize(
    "spelling", ["int4:group8:fp32", "e2m1:channel0:fp32", "binary:token:fp32"]
)
@pytest.mark.parametrize("shape", [(5,), (3, 4, 9)])
def test_other_ranks(spelling, shape):
    if len(shape) == 1 and "token" in spelling:
        shape = (1, 5)
    coded, expected = stored(spelling, shape)
    assert same(run(lambda scope, names: weight(scope, "w", coded, (), torch.float32)), expected)


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


def test_functions_for_what_onnx_lacks():
    first = operators("e3m2:group8:e8m0")
    assert [node.op_type for node in first] == [
        "Cast", "dequantize_e3m2_group8_e8m0_floor", "Transpose",
    ]  # fmt: skip
    assert plain("uint4:group32:(uint6:group8:fp16)") == "uint4_group32_uint6_group8_fp16"


def test_half_precision():
    coded, expected = stored("int8:channel0:fp32")
    found = run(lambda scope, names: weight(scope, "w", coded, (), torch.float16))
    assert torch.equal(found, expected.half())
