# SPDX-License-Identifier: BSD-3-Clause
"""ONNX files as checkpoints: onnxruntime's own values, of random codes and scales, to the bit."""

import itertools

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

import blockscale as bs
from tests.export.checkpoints.onnx_files import (
    TYPES,
    floats,
    random_bytes,
    run,
    same,
    save,
    scales,
    tensor,
)
from tests.export.checkpoints.onnx_files import scales as any_scales
from tests.export.checkpoints.onnx_files import tensor as stored

BITS = {"int4": 4, "uint4": 4, "int2": 2, "uint2": 2, "int16": 16, "uint16": 16, "float4e2m1": 4}
KINDS = ("int8", "uint8", "int16", "uint16", "int4", "uint4", "int2", "uint2", "float8e4m3fn",
         "float8e5m2")  # fmt: skip
SHAPES = [  # shape, of scales, axis, block
    ((6, 10), (), None, 0), ((6, 10), (1,), None, 0), ((6, 10), (10,), 1, 0),
    ((6, 10), (6,), -2, 0), ((6, 64), (6, 4), 1, 16), ((64, 6), (4, 6), 0, 16),
    ((5, 7), (5, 2), -1, 4), ((3, 4, 6, 2), (3,), 0, 0),
]  # fmt: skip


def dequantize_linear(path, kind, shape, of_scales, axis, block, dtype="float32", zero=False):
    bits, count = BITS.get(kind, 8), int(np.prod(of_scales))
    tensors = [stored("w", kind, shape, random_bytes((int(np.prod(shape)) * bits + 7) // 8))]
    tensors.append(floats("s", any_scales(of_scales, dtype)))
    if zero:
        tensors.append(stored("z", kind, of_scales, random_bytes((count * bits + 7) // 8, 5)))
    told = {"axis": axis} if axis is not None else {}
    told |= {"block_size": block} if block else {}
    inputs = ["w", "s", "z"][: 2 + zero]
    node = helper.make_node("DequantizeLinear", inputs, ["y"], **told)
    return save(path, [node], tensors, (), TYPES[dtype], 25 if bits == 2 else 21)


def check(path, name, expected):
    with bs.checkpoint(path) as model:
        assert model.producer == "ONNX" and not model.stored[name].unread
        q = model[name]
        assert isinstance(q, bs.QTensor) and str(q.format) == model.stored[name].format
        assert same(q.dequantize(expected.dtype), expected), q.format
        return q


@pytest.mark.parametrize(
    ("kind", "shape", "dtype"),
    [
        ("int8", SHAPES[2], "float32"), ("uint4", SHAPES[5], "float16"),
        ("int4", SHAPES[6], "float32"), ("float8e5m2", SHAPES[4], "float32"),
        ("uint2", SHAPES[3], "float16"), ("int16", SHAPES[7], "float32"),
    ],
)  # fmt: skip
def test_dequantize_linear(kind, shape, dtype, tmp_path):
    zero = not kind.startswith("float")
    path = dequantize_linear(tmp_path / "m.onnx", kind, *shape, dtype, zero)
    check(path, "w", run(path))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_dequantize_linear(kind, tmp_path):
    for shape, dtype, zero in itertools.product(SHAPES, ("float32", "float16"), (False, True)):
        if not zero or not kind.startswith("float"):
            path = dequantize_linear(tmp_path / "m.onnx", kind, *shape, dtype, zero)
            check(path, "w", run(path))


def test_e2m1_which_onnxruntime_has_no_kernel_for(tmp_path):
    """By torch's own table, through the bits of ml_dtypes."""
    import ml_dtypes

    raw = random_bytes(6 * 32 // 2)
    scale = any_scales((6, 2))
    tensors = [stored("w", "float4e2m1", (6, 32), raw), floats("s", scale)]
    node = helper.make_node("DequantizeLinear", ["w", "s"], ["y"], axis=1, block_size=16)
    path = save(tmp_path / "m.onnx", [node], tensors, (), 1, 23)
    codes = np.frombuffer(raw, np.uint8)
    every = np.stack([codes & 15, codes >> 4], -1).reshape(6, 32)
    values = every.astype(np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    check(path, "w", torch.from_numpy(values * np.repeat(scale, 16, 1)))


def test_scales_that_nodes_make(tmp_path):
    """e8m0 by a Cast, and e4m3 under one float32, as ModelOpt writes NVFP4."""
    raw, values = random_bytes(4 * 32), np.frombuffer(random_bytes(8, 7), np.uint8) % 120
    codes = np.frombuffer(raw, np.int8).reshape(4, 32).astype(np.float32)
    tensors = [stored("w", "int8", (4, 32), raw)]
    tensors += [stored("c", "float8e4m3fn", (4, 2), values.tobytes())]
    tensors += [floats("o", np.array(0.37, np.float32))]
    nodes = [helper.make_node("DequantizeLinear", ["c", "o"], ["s"])]
    nodes += [helper.make_node("DequantizeLinear", ["w", "s"], ["y"], axis=1, block_size=16)]
    path = save(tmp_path / "m.onnx", nodes, tensors)
    q = check(path, "w", run(path))
    assert str(q.format) == "int8:group16:e4m3:full"
    raw = bytes((codes.astype(np.int8) & 0x77).view(np.uint8).tobytes())
    tensors = [stored("w", "float8e4m3fn", (4, 32), raw)]
    tensors += [stored("c", "float8e8m0", (4, 2), (values + 60).astype(np.uint8).tobytes())]
    nodes = [helper.make_node("Cast", ["c"], ["s"], to=1), nodes[1]]
    path = save(tmp_path / "n.onnx", nodes, tensors, (), 1, 24)
    q = check(path, "w", _powers(raw, values + 60.0))
    assert str(q.format) == "e4m3:group16:e8m0/given"


def _powers(raw, exponents):
    codes = torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(torch.float8_e4m3fn)
    steps = torch.ldexp(torch.ones(4, 2), torch.from_numpy(exponents).int().reshape(4, 2) - 127)
    return codes.float().reshape(4, 32) * steps.repeat_interleave(16, 1)


def matmul_nbits(path, n, k, g, bits, dtype="float32", zero=""):
    blocks = -(-k // g)
    shape = (n, blocks, g * bits // 8)
    tensors = [stored("b", "uint8", shape, random_bytes(int(np.prod(shape))))]
    tensors.append(floats("s", any_scales((n, blocks), dtype)))
    if zero == "packed":
        size = -(-blocks * bits // 8)
        tensors.append(stored("z", "uint8", (n, size), random_bytes(n * size, 4)))
    if zero == "floats":
        found = np.random.default_rng(3).standard_normal((n, blocks)) * 3
        tensors.append(floats("z", found.astype(dtype)))
    x = helper.make_tensor_value_info("x", TYPES[dtype], [k, k])
    node = helper.make_node(
        "MatMulNBits", ["x", "b", "s", "z"][: 4 if zero else 3], ["y"], domain="com.microsoft",
        N=n, K=k, bits=bits, block_size=g,
    )  # fmt: skip
    return save(path, [node], tensors, (x,), TYPES[dtype])


def values(path, k, dtype):
    """What onnxruntime makes of each row: the product with 1 is exact, only 0 may lose its sign."""
    return run(path, {"x": np.eye(k, dtype=dtype)}).T.contiguous()


@pytest.mark.some(3)
@pytest.mark.parametrize("zero", ["", "packed", "floats"])
@pytest.mark.parametrize(("n", "k", "g"), [(5, 64, 16), (7, 33, 16), (4, 80, 32)])
def test_matmul_nbits(n, k, g, zero, tmp_path):
    for bits, dtype in itertools.product((2, 4, 8), ("float32", "float16")):
        path = matmul_nbits(tmp_path / "m.onnx", n, k, g, bits, dtype, zero)
        with bs.checkpoint(path) as model:
            if zero == "floats" and bits == 8:  # onnxruntime refuses that, too
                assert "its zero points are" in model.stored["b"].unread
                continue
            found, expected = model["b"], values(path, k, dtype)
            assert found.shape == (n, k)
            assert torch.equal(found.dequantize(expected.dtype), expected), (bits, dtype)


@pytest.mark.parametrize(
    ("kind", "bits"), [("int4", 4), ("uint4", 4), ("uint8", 4), ("uint8", 8), ("uint8", 2)]
)
@pytest.mark.parametrize("zero", [False, True])
def test_gather_block_quantized(kind, bits, zero, tmp_path):
    rows, columns, g = 8, 64, 16
    each = 8 // bits if kind == "uint8" else 1
    tensors = [stored("b", kind, (rows, columns // each), random_bytes(rows * columns * bits // 8))]
    tensors.append(floats("s", any_scales((rows, columns // g))))
    if zero:
        shape = (rows, -(-(columns // g) // each))
        tensors.append(stored("z", kind, shape, random_bytes(rows * columns // g * bits // 8, 4)))
    indices = helper.make_tensor_value_info("i", TensorProto.INT64, [rows])
    node = helper.make_node(
        "GatherBlockQuantized", ["b", "i", "s", "z"][: 3 + zero], ["y"], domain="com.microsoft",
        bits=bits, gather_axis=0, quantize_axis=1, block_size=g,
    )  # fmt: skip
    path = save(tmp_path / "m.onnx", [node], tensors, (indices,))
    check(path, "b", run(path, {"i": np.arange(rows)}))


def test_codes_scales_and_names_as_they_are(tmp_path):
    tensors = [stored("w.codes", "int4", (4, 16), random_bytes(32))]
    tensors.append(floats("w.scale", any_scales((4, 2))))
    tensors.append(floats("bias", np.arange(3, dtype=np.float32)))
    node = helper.make_node("DequantizeLinear", ["w.codes", "w.scale"], ["y"], axis=1, block_size=8)
    path = save(tmp_path / "m.onnx", [node], tensors)
    with bs.checkpoint(path) as model:
        assert list(model) == ["w", "bias"]
        assert model.evidence == "its name ends in .onnx: IR version 10, opset 21"
        q = model["w"]
        assert bytes(q.packed.flatten().tolist()) == random_bytes(32)
        assert torch.equal(q.qparams.scale, torch.from_numpy(any_scales((4, 2))))
        assert model["bias"].tolist() == [0.0, 1.0, 2.0]
        assert model.stored["w"].nbytes == 32 + 32 and model.file_of("w") == path


@pytest.mark.slow
@pytest.mark.parametrize(
    "fmt",
    [
        "int8_channel",
        "int4:group32:fp32",
        "fp8",
        "uint4:group32:fp16:asym",
        "mxfp8",
        "mxint8",
        "int8:group32:e4m3",
        "e4m3:group32:e4m3",
    ],
)
def test_our_own_export(fmt, tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 32)).eval()
    bs.quantize_(model, fmt)
    bs.export.onnx(model, tmp_path / "m.onnx", torch.randn(2, 64))
    with bs.checkpoint(tmp_path / "m.onnx") as found:
        [name] = [n for n, each in found.stored.items() if each.format]
        values, expected = found[name].dequantize(), model[0].qweight.tensor.dequantize()
        assert torch.equal(values if values.shape == expected.shape else values.mT, expected)


def test_a_directory(tmp_path):
    matmul_nbits(tmp_path / "model.onnx", 4, 32, 32, 4)
    assert bs.checkpoint(tmp_path).evidence.startswith("it holds model.onnx")
    (tmp_path / "other.onnx").write_bytes(b"")
    with pytest.raises(bs.FileError, match="unrecognised checkpoint format"):
        bs.checkpoint(tmp_path)


def test_what_is_not_read(tmp_path):
    path = matmul_nbits(tmp_path / "m.onnx", 4, 32, 32, 4)
    model = onnx.load(path)
    model.graph.node[0].input.extend(["", "g_idx"])
    model.graph.initializer.append(floats("g_idx", np.zeros(32, np.int32)))
    onnx.save(model, path)
    with pytest.raises(bs.FileError, match=r"its columns are in another order \(g_idx\)"):
        bs.checkpoint(path)["b"]
    tensors = [stored("w", "float8e4m3fnuz", (4, 4), random_bytes(16)), floats("s", any_scales(()))]
    node = helper.make_node("DequantizeLinear", ["w", "s"], ["y"])
    with bs.checkpoint(save(tmp_path / "n.onnx", [node], tensors)) as found:
        assert "no format here has" in found.stored["w"].unread


def test_external_data_and_what_is_wrong_with_it(tmp_path):
    path = matmul_nbits(tmp_path / "m.onnx", 4, 32, 32, 4)
    expected = bs.checkpoint(path)["b"].dequantize()
    model = onnx.load(path)
    (tmp_path / "d").mkdir()
    onnx.save(model, path, save_as_external_data=True, location="d/m.data", size_threshold=0)
    assert torch.equal(bs.checkpoint(path)["b"].dequantize(), expected)
    data = (tmp_path / "d" / "m.data").read_bytes()
    with bs.checkpoint(path) as found:
        (tmp_path / "d" / "m.data").write_bytes(data[:40])
        with pytest.raises(bs.FileError, match="it was truncated while being read"):
            found["b"]
    with pytest.raises(bs.FileError, match="ends after the end"):
        bs.checkpoint(path)


@pytest.mark.parametrize(("opset", "warned"), [(21, 0), (19, 2)])
def test_blocks_and_int4_came_with_21(opset, warned, tmp_path):
    tensors = [tensor("w", "int4", (4, 16), random_bytes(32)), floats("s", scales((4, 2)))]
    node = helper.make_node("DequantizeLinear", ["w", "s"], ["y"], axis=1, block_size=8)
    with bs.checkpoint(save(tmp_path / "m.onnx", [node], tensors, (), 1, opset)) as model:
        assert len(model.warnings) == warned
        told = "its opset is 19, but it has int4, which need opset 21"
        assert not warned or told in model.warnings
        assert model["w"].shape == (4, 16)  # read all the same: types and blocks are told


def test_other_domains_have_versions_of_their_own(tmp_path):
    tensors = [tensor("w", "int4", (4, 16), random_bytes(32)), floats("s", scales((4, 1)))]
    node = helper.make_node(
        "GatherBlockQuantized", ["w", "i", "s"], ["y"], domain="com.microsoft", block_size=16
    )
    with bs.checkpoint(save(tmp_path / "m.onnx", [node], tensors, (), 1, 19)) as model:
        assert model.warnings == []
