# SPDX-License-Identifier: BSD-3-Clause
"""Numbers of blocks spread by onnxruntime lie where the reference spreads them."""

import numpy as np
import pytest
import torch
from onnx import TensorProto
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

import blockscale as bs
from blockscale.core import pack as packing
from blockscale.core import reference
from blockscale.core.block import read_block
from blockscale.core.parse import parse
from blockscale.core.reference import QParams
from blockscale.export.to_onnx.scope import put_tensor
from blockscale.export.to_onnx.steps import (
    decode,
    expand,
    group,
    offset,
    repeat,
    step,
    unpack,
    whole_groups,
)
from tests.export.to_onnx.running import made, run, same

BLOCKS = [
    *("tensor", "channel0", "channel1", "channel-1", "token", "group4", "group5", "group64"),
    *("group3@0", "tile2x4", "tile4x5", "block3x*", "block2x2x4", "flat6", "flat7", "flat12@0"),
]


@pytest.mark.some(4)
@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("shape", [(6, 10), (3, 4, 10)])
def test_spread_as_the_reference_does(name, shape):
    block = read_block(name)
    if name.startswith("block2x2") and len(shape) < 3:
        pytest.skip("needs three dimensions")
    stored = block.scale_shape(shape)
    parts = torch.arange(1.0, 1 + torch.Size(stored).numel()).reshape(stored)

    def build(scope, names):
        given = put_tensor(scope.file, "parts", parts)
        return expand(scope, given, block, tuple(stored), shape)

    expected = block.expand(parts, torch.Size(shape)).expand(shape)
    assert torch.equal(run(build).expand(shape), expected)


def test_a_partial_last_block():
    parts = torch.tensor([[1.0, 2.0, 3.0]])
    found = run(lambda scope, names: repeat(scope, names[0], 1, 8, 3), parts)
    assert found.tolist() == [[1, 1, 1, 2, 2, 2, 3, 3]]


# The steps that nodes make of stored scales are the reference's, byte 255 and byte 0 included.


SPELLINGS = [
    *("int8:group8:fp32", "int8:group8:fp16", "int8:group8:bf16", "int8:group8:pow2/floor"),
    *("mxfp8", "mxint8", "bfp16", "nvfp4", "e2m1:group8:e5m2", "e2m1:group8:e4m3/inv"),
    *(
        "int4:group8:(uint8:tensor:fp16)",
        "uint4:group8:(uint6:group4:fp16):offset(uint6:group4:fp16)",
    ),
    "int4:group8:(e3m2:channel0:bf16)",
]


def parts(fmt, shape=(6, 64)):
    if not fmt.unchosen:
        return reference.choose_qparams(torch.randn(shape) * 3, fmt)
    return None


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_steps_are_the_references(spelling):
    fmt = parse(spelling)
    qparams = parts(fmt)
    found = run(lambda scope, names: step(scope, "w", fmt, qparams))
    assert same(found, reference.step_of(qparams, fmt))


@pytest.mark.parametrize("spelling", ["mxfp8", "mxint8", "bfp16"])
def test_every_byte_of_e8m0(spelling):
    fmt, every = parse(spelling), QParams(torch.arange(256, dtype=torch.uint8).reshape(1, -1))
    found = run(lambda scope, names: step(scope, "w", fmt, every))
    assert same(found, reference.step_of(every, fmt))


def test_bytes_stay_bytes():
    """The file holds e8m0 as e8m0, and mxint8's exponent is a product."""
    fmt = parse("mxint8")
    model = made(lambda scope, names: step(scope, "w", fmt, parts(fmt)))
    [stored] = model.graph.initializer
    assert (stored.name, stored.data_type) == ("w.scale", TensorProto.FLOAT8E8M0)
    assert model.opset_import[0].version == 24
    assert [node.op_type for node in model.graph.node] == ["Cast", "Constant", "Mul", "Identity"]


def test_a_product_that_is_too_small_is_stored_as_the_step():
    fmt = parse("nvfp4")
    qparams = QParams(torch.tensor([[1, 0]], dtype=torch.uint8), torch.tensor([[2.0**-149]]))
    found = run(lambda scope, names: step(scope, "w", fmt, qparams))
    assert same(found, reference.step_of(qparams, fmt))
    assert found[0, 0] == 2.0**-149


@pytest.mark.parametrize(
    "spelling", ["uint4:group8:fp16:offset", "uint4:group8:fp32:offset(uint6:group4:fp16)"]
)
def test_offsets(spelling):
    fmt = parse(spelling)
    qparams = bs.quantize(torch.randn(4, 64), fmt).qparams
    found = run(lambda scope, names: offset(scope, "w", fmt, qparams)[0])
    assert same(found, fmt.offset.value(qparams.offset, qparams.offset_outer))
    assert offset(None, "w", parse("int8"), qparams) is None


# Packed codes of every width, taken apart by onnxruntime, are the reference's values.


ELEMENTS = [
    *(f"{sign}int{bits}" for bits in range(2, 17) for sign in ("", "u")),
    *("uint1", "binary", "ternary", "log2", "log4", "log8", "nf4", "e2m1", "e3m2", "e2m3", "e4m3"),
    *("e5m2", "e1m1", "e1m3", "iq4_nl", "apot5", "log8f3", "book(-1,0,0.25)"),
]


def element(name):
    return parse(f"{name}:tensor:fp32").element


@pytest.mark.some(4)
@pytest.mark.parametrize("name", ELEMENTS)
def test_values_are_the_references(name):
    made = element(name)
    for size in (1, 7, 24, 37):
        patterns = torch.randint(2**made.bits, (3, size), dtype=torch.int32)
        codes = made.from_bits(patterns.to(torch.uint8) if made.bits <= 8 else patterns)
        packed = whole_groups(packing.pack(codes, made), made.bits)

        def build(scope, names, packed=packed, size=size):
            stored = put_tensor(scope.file, "codes", packed)
            return decode(scope, unpack(scope, stored, made, size), made)

        assert same(run(build), made.decode(codes)), (name, size)


class BitShift(OpRun):
    """As OpenVINO 2026.4 computes it: a product with, or a division by, a power of two, rounded."""

    op_domain = ""

    def _run(self, x, by, direction):
        power = 2.0 ** by.astype(np.float64)
        exact = x * power if direction == "LEFT" else x / power
        return (np.round(exact).astype(x.dtype),)


@pytest.mark.some(3)
@pytest.mark.parametrize("bits", [1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15])
def test_nothing_but_zeros_is_shifted_out(bits):
    made_of = element("uint1" if bits == 1 else f"uint{bits}")
    codes = torch.randint(2**bits, (5, 41), dtype=torch.int32)
    codes = codes.to(made_of.code_dtype)
    packed = whole_groups(packing.pack(codes, made_of), bits)

    def build(scope, names):
        stored = put_tensor(scope.file, "codes", packed)
        return unpack(scope, stored, made_of, 41)

    model = made(build)
    for new_ops in ([], [BitShift]):
        [found] = ReferenceEvaluator(model, new_ops=new_ops).run(None, {})
        assert np.array_equal(found, codes.numpy()), new_ops


def test_groups_fill_whole_bytes():
    assert [group(bits) for bits in (1, 3, 4, 6, 7, 12)] == [
        (8, 1), (8, 3), (2, 1), (4, 3), (8, 7), (2, 3),
    ]  # fmt: skip
    assert whole_groups(torch.ones(2, 4, dtype=torch.uint8), 6).shape == (2, 6)
    assert whole_groups(torch.ones(2, 5, dtype=torch.int8), 8).shape == (2, 5)
