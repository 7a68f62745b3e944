# SPDX-License-Identifier: BSD-3-Clause
"""ONNX's tensors against the package onnx: raw, typed fields, other files, Constant nodes."""

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import blockscale as bs
from blockscale.export.checkpoints.onnx_tensors import read_model
from blockscale.files.metadata import FileError
from tests.export.checkpoints.onnx_files import floats, random_bytes, save, tensor

IDENTITY = helper.make_node("Identity", ["a"], ["y"])


@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "float16", "int8", "uint8", "int16", "uint16", "int32", "int64",
              "uint32", "uint64", "bool"],
)  # fmt: skip
def test_typed_fields(dtype, tmp_path):
    array = np.array([[0, 1, 5], [100, 0, 7]]).astype(dtype)
    if array.dtype.kind == "i":
        array[1, 1] = -100
    kind = helper.np_dtype_to_tensor_dtype(array.dtype)
    values = array.flatten()
    typed = helper.make_tensor("a", kind, array.shape, values)
    assert not typed.raw_data
    with bs.checkpoint(save(tmp_path / "m.onnx", [IDENTITY], [typed])) as model:
        assert model["a"].numpy().tolist() == numpy_helper.to_array(typed).tolist()


def test_constants_and_what_the_file_says(tmp_path):
    held = floats("inner", np.arange(4, dtype=np.float32))
    nodes = [helper.make_node("Constant", [], ["a"], value=held), IDENTITY]
    path = save(tmp_path / "m.onnx", nodes, [])
    model = onnx.load(path)
    model.producer_name = "me"
    model.metadata_props.add(key="k", value="v")
    onnx.save(model, path)
    found = read_model(path)
    assert [each.op for each in found.nodes] == ["Identity"]
    assert (found.properties["producer_name"], found.properties["k"], found.opset) == (
        "me",
        "v",
        21,
    )
    assert bs.checkpoint(path)["a"].tolist() == [0, 1, 2, 3]


def external(start, length, location="d", **more):
    made = TensorProto(name="a", data_type=1, dims=(4,))
    made.data_location = TensorProto.EXTERNAL
    told = {"location": location, "offset": start, "length": length} | more
    for key, value in told.items():
        if value is not None:
            made.external_data.add(key=key, value=str(value))
    return made


def test_other_files(tmp_path):
    data = np.arange(8, dtype=np.float32)
    (tmp_path / "real").write_bytes(data.tobytes())
    (tmp_path / "d").symlink_to("real")  # as caches of downloads have them
    for length in (16, None):
        path = save(tmp_path / "m.onnx", [IDENTITY], [external(8, length)])
        assert bs.checkpoint(path)["a"].tolist() == [2, 3, 4, 5]


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (external(20, 16), "ends after the end"), (external(-4, 16), "ends after the end"),
        (external(0, 12), "has 12 bytes, expected 16"),
        (external("x", 16), "is not a number of bytes"),
        (external(0, 16, "../d"), "outside the directory"),
        (external(0, 16, "/etc/passwd"), "outside the directory"),
        (external(0, 16, ""), "outside the directory"), (external(0, 16, "e"), "is not there"),
        (tensor("a", "int8", (4,), b"123"), "has 3 bytes, expected 4"),
        (tensor("a", "int8", (2**31, 2**31, 2**31), b"1"), "has the shape"),
        (tensor("a", "int8", (-4,), b""), "has the shape"),
        (TensorProto(name="a", data_type=99, dims=(1,)), "of type 99, which ONNX does not have"),
        (tensor("a" * 5000, "int8", (1,), b"1"), "name has 5,000 characters"),
    ],
)  # fmt: skip
def test_hostile_tensors(made, reason, tmp_path):
    (tmp_path / "d").write_bytes(bytes(32))
    with pytest.raises(FileError, match=reason):
        read_model(save(tmp_path / "m.onnx", [IDENTITY], [made]))


def test_tensors_twice_and_tensors_that_share_bytes(tmp_path):
    one = floats("a", np.ones(4, np.float32))
    with pytest.raises(FileError, match="has the tensor 'a' twice"):
        read_model(save(tmp_path / "m.onnx", [IDENTITY], [one, one]))
    (tmp_path / "d").write_bytes(bytes(32))
    first, second = external(0, 16), external(8, 16)
    second.name = "b"
    with pytest.raises(FileError, match="tensors 'a' and 'b' share bytes"):
        bs.checkpoint(save(tmp_path / "m.onnx", [IDENTITY], [first, second]))


@pytest.mark.parametrize("every", [17, pytest.param(1, marks=pytest.mark.slow)])
def test_cut_anywhere_and_changed_anywhere(every, tmp_path):
    node = helper.make_node("DequantizeLinear", ["w", "s"], ["y"], axis=1, block_size=8)
    tensors = [tensor("w", "int4", (4, 16), random_bytes(32))]
    tensors.append(floats("s", np.ones((4, 2), np.float32)))
    path = save(tmp_path / "m.onnx", [node], tensors)
    data = path.read_bytes()
    for end in range(0, len(data), every):
        path.write_bytes(data[:end])
        _opens_or_errs(path)
    generator = torch.Generator().manual_seed(0)
    for _ in range(400 // every):
        changed = bytearray(data)
        places = torch.randint(0, len(data), (3,), generator=generator).tolist()
        for place in places:
            changed[place] = int(torch.randint(0, 256, (1,), generator=generator))
        path.write_bytes(changed)
        _opens_or_errs(path)


def _opens_or_errs(path):
    """A FileError, or tensors that can be read or say why not: nothing else."""
    try:
        with bs.checkpoint(path) as model:
            for name in model:
                model[name]
    except FileError:
        pass
