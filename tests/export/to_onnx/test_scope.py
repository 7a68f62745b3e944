# SPDX-License-Identifier: BSD-3-Clause
"""Names are taken once, equal constants are one, the highest need is kept."""

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, numpy_helper

from blockscale.core.block import read_block
from blockscale.core.parse import parse
from blockscale.export.to_onnx.scope import (
    LOWEST,
    File,
    OpsetNeeds,
    Scope,
    native,
    put,
    put_codes,
    put_tensor,
    put_zeros,
    refusal,
    split,
)
from tests.export.to_onnx.running import run


def test_names_are_taken_once():
    file = File()
    file.reserve(["a"])
    assert [file.name(name) for name in ("a", "a", "b", "a_1")] == ["a_1", "a_2", "b", "a_1_1"]


def test_equal_constants_are_one():
    scope = Scope(File(), "layer")
    first, same, other = scope.floats(1.0), scope.floats(1.0), scope.floats(-1.0)
    assert first == same != other
    assert first != scope.constant(np.array(1.0))  # of another type
    assert scope.floats(0.0) != scope.floats(-0.0)
    assert all(node.op_type == "Constant" for node in scope.nodes)
    assert first.startswith("layer.")


def test_the_highest_need_is_kept():
    needs = OpsetNeeds()
    assert needs.opset == LOWEST
    for opset, why in ((24, "a"), (22, "b"), (24, "c")):
        needs.at_least(opset, why)
    assert (needs.opset, needs.because) == (24, "a")


@pytest.mark.parametrize("kind", ["FLOAT", "INT32", "FLOAT16"])
def test_casts(kind):
    found = run(lambda scope, names: scope.cast(names[0], kind), torch.tensor([1.75, -2.25]))
    expected = {"FLOAT": [1.75, -2.25], "INT32": [1, -2], "FLOAT16": [1.75, -2.25]}
    assert found.tolist() == expected[kind]


# A tensor split into blocks and joined again is the tensor; free sizes stay free.


CASES = [
    ("tensor", (None, None)),
    ("token", (None, 10)),
    ("group4", (None, 10)),
    ("group5", (None, None, 10)),
    ("tile2x4", (None, 6, 10)),
    ("group3@1", (None, 7, None)),
    ("group3@-2", (None, 7, 10)),
    ("channel1", (None, None, 10)),
]


@pytest.mark.parametrize(("name", "sizes"), CASES)
def test_there_and_back(name, sizes):
    block, x = read_block(name), torch.randn([3 if n is None else n for n in sizes])
    assert refusal(block, sizes) is None

    def build(scope, names):
        parts = split(scope, names[0], block, sizes)
        return parts.join(scope, parts.x)

    assert torch.equal(run(build, x), x)


@pytest.mark.parametrize(("name", "sizes"), CASES)
def test_one_number_a_block(name, sizes):
    block, x = read_block(name), torch.rand([3 if n is None else n for n in sizes])

    def build(scope, names):
        parts = split(scope, names[0], block, sizes)
        return scope.op("ReduceMax", parts.x, scope.ints(*parts.axes), keepdims=1)

    stored = block.scale_shape(x.shape)
    expected = torch.zeros(stored)
    every = block.expand(torch.arange(expected.numel()).reshape(stored), x.shape).expand(x.shape)
    expected = expected.flatten().scatter_reduce(0, every.flatten(), x.flatten(), "amax")
    assert torch.equal(run(build, x).flatten(), expected)


def test_what_cannot_be_split():
    assert "flat8 run over the flattened tensor" in refusal(read_block("flat8"), (4, 4))
    assert "whose size is dynamic: make" in refusal(read_block("group8"), (4, None))
    assert "more than one size after" in refusal(read_block("group2@0"), (4, None, None))


# Codes in ONNX's own types: packed as onnx itself reads them.


NATIVE = ("int2", "uint2", "int4", "uint4", "int8", "uint8", "int16", "uint16", "e4m3", "e5m2")


def element(name):
    return parse(f"{name}:tensor:fp32").element


@pytest.mark.some(4)
@pytest.mark.parametrize("name", NATIVE)
@pytest.mark.parametrize("shape", [(4, 8), (3, 5), (7,)])
def test_onnx_reads_what_was_stored(name, shape):
    made, file = element(name), File()
    codes = made.from_bits(torch.randint(2 ** min(made.bits, 8), shape, dtype=torch.uint8))
    stored = file.tensors[put_codes(file, "w.codes", made, codes)]
    read = numpy_helper.to_array(stored).astype(np.float32)
    expected = made.decode(codes).numpy()
    assert np.array_equal(read, expected, equal_nan=True)
    onnx.checker.check_tensor(stored)
    assert len(stored.raw_data) == -(-codes.numel() * made.bits // 8)


def test_the_first_number_is_in_the_lowest_bits():
    file = File()
    put_codes(file, "w", element("int4"), torch.tensor([1, -1, 7], dtype=torch.int8))
    assert file.tensors["w"].raw_data == bytes([0xF1, 0x07])
    put_codes(file, "v", element("int2"), torch.tensor([1, -1, -2, 0, 1], dtype=torch.int8))
    assert file.tensors["v"].raw_data == bytes([0b00101101, 1])
    assert (file.needs.opset, "v is stored as int2") == (25, file.needs.because)


@pytest.mark.parametrize(
    ("name", "kind"), [("e2m3", "FLOAT6E2M3"), ("e3m2", "FLOAT6E3M2"), ("e2m1", "FLOAT4E2M1")]
)
def test_small_floats_have_a_type_where_opset_28_is_asked_for(name, kind):
    """Every code of theirs comes back by onnx's own reader, and 27 knows none."""
    file, made = File(28), element(name)
    codes = made.from_bits(torch.arange(2**made.bits, dtype=torch.uint8))[:-1]  # no whole byte
    stored = file.tensors[put_codes(file, "w", made, codes)]
    assert stored.data_type == TensorProto.DataType.Value(kind)
    read = numpy_helper.to_array(stored).astype(np.float32)
    assert np.array_equal(read, made.decode(codes).numpy())
    assert file.needs.opset == (28 if made.bits == 6 else 23)
    assert native(made, 27) is None


def test_what_onnx_has_no_type_for():
    for name in ("int3", "ternary", "binary", "e2m1", "e3m2", "nf4", "log4", "e4m3r0", "uint1"):
        assert native(element(name)) is None, name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64])
def test_tensors_as_they_are(dtype):
    file, given = File(), torch.tensor([[1.5, -2.0, 3e4]]).to(dtype)
    stored = file.tensors[put_tensor(file, "w", given)]
    read = numpy_helper.to_array(stored).astype(np.float64)
    assert np.array_equal(read, given.double().numpy())


def test_zero_points_have_the_type_of_the_codes():
    file, made = File(), element("uint4")
    put_zeros(file, "z", made, torch.tensor([[3], [15]], dtype=torch.int32), (2,))
    put_zeros(file, "none", made, None, (3,))
    assert file.tensors["z"].data_type == TensorProto.UINT4
    assert numpy_helper.to_array(file.tensors["z"]).astype(int).tolist() == [3, 15]
    assert numpy_helper.to_array(file.tensors["none"]).astype(int).tolist() == [0, 0, 0]


def test_names_are_not_taken_twice():
    """But for an equal tensor, which is put once: two ops read it."""
    file = File()
    names = [put(file, "w", "UINT8", (1,), each) for each in (b"1", b"2", b"3", b"2", b"1")]
    assert names == ["w", "w_1", "w_2", "w_1", "w"] and list(file.tensors) == names[:3]
    assert (
        put(file, "w", "INT8", (1,), b"1") == "w_3" and put(file, "v", "UINT8", (1,), b"1") == "v"
    )
