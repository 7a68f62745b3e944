"""Files appear whole; where one would be too large, the tensors lie beside it."""

import numpy as np
import onnx
import pytest
import torch

from blockscale.export.onnx import file
from blockscale.export.onnx.stored import put_tensor
from tests.export.onnx.running import made, session

WEIGHT = torch.arange(3000.0).reshape(50, 60)


def model():
    x = torch.ones(1, 50)

    def build(scope, names):
        small = put_tensor(scope.file, "small", torch.tensor([2.0]))
        product = scope.op("MatMul", names[0], put_tensor(scope.file, "weight", WEIGHT))
        other = scope.op("Mul", put_tensor(scope.file, "other", WEIGHT[:20]), small)
        return scope.op("Add", product, scope.op("ReduceSum", other))

    return made(build, x)


def result(path):
    return session(str(path)).run(None, {"x0": np.ones((1, 50), np.float32)})[0]


def test_one_file(tmp_path):
    file.save(model(), tmp_path / "m.onnx")
    assert [each.name for each in tmp_path.iterdir()] == ["m.onnx"]
    assert not file.is_large(model())


def test_tensors_beside_a_large_model(tmp_path, monkeypatch):
    file.save(model(), tmp_path / "one.onnx")
    monkeypatch.setattr(file, "LARGEST", 10_000)
    assert file.is_large(model())
    file.save(model(), tmp_path / "m.onnx")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["m.onnx", "m.onnx.data", "one.onnx"]
    assert (tmp_path / "m.onnx").stat().st_size < 3000
    assert np.array_equal(result(tmp_path / "m.onnx"), result(tmp_path / "one.onnx"))
    onnx.checker.check_model(str(tmp_path / "m.onnx"), full_check=True)
    told = onnx.load(str(tmp_path / "m.onnx"), load_external_data=False).graph.initializer
    outside = {t.name: {e.key: e.value for e in t.external_data} for t in told}
    assert outside["small"] == {}  # small ones stay
    assert outside["weight"]["location"] == "m.onnx.data"  # a name, so that both can be moved
    assert all(int(e["offset"]) % 4096 == 0 for e in outside.values() if e)


def test_nothing_is_left_of_what_failed(tmp_path, monkeypatch):
    monkeypatch.setattr(file, "LARGEST", 10_000)

    def fails(tensor, *rest):
        raise OSError("disk is full")

    monkeypatch.setattr(file, "_move_out", fails)
    (tmp_path / "m.onnx").write_text("before")
    with pytest.raises(OSError, match="disk is full"):
        file.save(model(), tmp_path / "m.onnx")
    assert [each.name for each in tmp_path.iterdir()] == ["m.onnx"]
    assert (tmp_path / "m.onnx").read_text() == "before"
