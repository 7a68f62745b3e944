"""Files appear whole; where one would be too large, the tensors lie beside it."""

import os

import numpy as np
import onnx
import pytest
import torch
from torch import nn

import blockscale as bs
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


class Vocabulary(nn.Module):
    """A float table of more bytes than protobuf holds, and a quantized layer."""

    def __init__(self):
        super().__init__()
        self.table, self.layer = nn.Embedding(540_000, 1024), nn.Linear(1024, 8)

    def forward(self, tokens):
        return self.layer(self.table(tokens))


@pytest.mark.slow
def test_one_tensor_of_more_than_2_gb(tmp_path):
    if os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") < 10e9:
        pytest.skip("the export of a model of 2.2 GB takes 7 GB of memory: less is free")
    with torch.device("meta"):
        model = Vocabulary()
    model = model.to_empty(device="cpu").eval()
    torch.manual_seed(0)
    nn.init.zeros_(model.table.weight)
    nn.init.normal_(model.table.weight[-5:])
    nn.init.normal_(model.layer.weight)
    nn.init.zeros_(model.layer.bias)
    bs.quantize_(model, bs.Recipe("int8_channel", skip=["table"]))
    tokens = torch.tensor([[0, 539_995, 539_997, 539_999]])
    bs.export.onnx(model, tmp_path / "m.onnx", tokens)
    assert (tmp_path / "m.onnx").stat().st_size < 10_000
    assert (tmp_path / "m.onnx.data").stat().st_size > 2**31
    expected = model(tokens).detach().numpy()
    del model
    [y] = session(str(tmp_path / "m.onnx")).run(None, {"tokens": tokens.numpy()})
    assert np.abs(y - expected).max() <= 1e-5 * np.abs(expected).max()
