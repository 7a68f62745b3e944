# SPDX-License-Identifier: BSD-3-Clause
"""torch's translation with pieces in the place of marks: names, opsets, what is left out."""

import os

import numpy as np
import onnx
import pytest
import torch
from onnx import helper
from torch import nn

import blockscale as bs
from blockscale.export.to_onnx import write
from blockscale.export.to_onnx import write as file
from blockscale.export.to_onnx.scope import put_tensor
from blockscale.export.to_onnx.take import MarkedWeight, placed
from blockscale.export.to_onnx.write import keep_sums
from tests.export.to_onnx.running import array, made, session
from tests.support.onnx_weight import stored


class Marked(nn.Module):
    """x @ w where w is a mark, and other float parts."""

    def __init__(self, wrap=lambda y: y):
        super().__init__()
        self.register_buffer("codes", torch.zeros(12, 40, dtype=torch.uint8))
        self.norm, self.wrap = nn.LayerNorm(12), wrap

    def forward(self, x):
        w = placed(0, self.codes, (40, 12), torch.float32)
        return self.wrap(self.norm(torch.matmul(x, w)))


def program(wrap=lambda y: y):
    return torch.export.export(Marked(wrap).eval(), (torch.ones(2, 40),))


@pytest.fixture(scope="module")
def model():
    made = write.translate(program(lambda y: {"states": y, "more": (y + 1, y * 2), "x": y - 1}))
    coded, _ = stored("e3m2:group8:e8m0")
    piece = MarkedWeight("layer.weight", coded, (("permute", (1, 0)),), torch.float32)
    needs = write.fill(made, [piece]).needs
    write.stamp(made, needs.opset)
    return made


@pytest.mark.slow
def test_the_file_is_a_valid_one(model):
    onnx.checker.check_model(model, full_check=True)
    assert [(each.domain, each.version) for each in model.opset_import] == [("", 24)]
    assert not model.functions  # OpenVINO reads none
    assert model.ir_version == 12


@pytest.mark.slow
def test_codes_take_the_place_of_the_mark(model):
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    named = {name for name in tensors if "scalar_tensor" not in name}  # torch's own constants
    assert named == {"norm.weight", "norm.bias", "layer.weight.codes", "layer.weight.scale"}
    assert array(tensors["layer.weight.codes"]).shape == (12, 30)
    assert tensors["layer.weight.codes"].doc_string == "e3m2:group8:e8m0/floor [12, 40]"
    assert not [node for node in model.graph.node if node.op_type == "Placed"]
    told = {value.name for value in model.graph.value_info}
    there = {name for node in model.graph.node for name in node.output}
    assert told <= there | set(tensors)


@pytest.mark.slow
def test_results_have_the_names_that_the_model_gives(model):
    """But for one that an input has."""
    names = [value.name for value in model.graph.output]
    assert names == ["states", "more_0", "more_1", "output_x"]
    assert [v.name for v in write.translate(program()).graph.output] == ["output"]


class Tokens(nn.Module):
    """Takes tokens as models of transformers do."""

    def forward(self, input_ids, attention_mask):
        x = input_ids * attention_mask
        return {"logits": x[..., None].float(), "flat": x.flatten()}


def sizes(model):
    values = (*model.graph.input, *model.graph.output)
    return [[d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in values]


@pytest.mark.slow
def test_free_sizes_have_the_names_that_programs_look_for(model):
    ids = torch.ones(2, 5, dtype=torch.int64)
    free = {0: torch.export.Dim("rows"), 1: torch.export.Dim("tokens")}
    made = torch.export.export(
        Tokens(), (ids, ids), dynamic_shapes={"input_ids": free, "attention_mask": free}
    )
    found = sizes(write.translate(made))
    assert found[:3] == [["batch", "sequence"]] * 2 + [["batch", "sequence", 1]]
    assert found[3] in (["batch*sequence"], ["sequence*batch"])
    assert sizes(model)[:2] == [[2, 40], [2, 12]]


def test_what_torch_cannot_translate():
    made = program(lambda y: torch.linalg.qr(y).R)
    with pytest.raises(ValueError, match=r"torch\.onnx cannot translate .*linalg_qr"):
        write.translate(made)


WEIGHT = torch.arange(3000.0).reshape(50, 60)


def model_of_file():
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
    file.save(model_of_file(), tmp_path / "m.onnx")
    assert [each.name for each in tmp_path.iterdir()] == ["m.onnx"]
    assert not file.is_large(model_of_file())


def test_tensors_beside_a_large_model(tmp_path, monkeypatch):
    file.save(model_of_file(), tmp_path / "one.onnx")
    monkeypatch.setattr(file, "LARGEST", 10_000)
    assert file.is_large(model_of_file())
    file.save(model_of_file(), tmp_path / "m.onnx")
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
        file.save(model_of_file(), tmp_path / "m.onnx")
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
        pytest.skip("the export of a model_of_file of 2.2 GB takes 7 GB of memory: less is free")
    with torch.device("meta"):
        model_of_file = Vocabulary()
    model_of_file = model_of_file.to_empty(device="cpu").eval()
    torch.manual_seed(0)
    nn.init.zeros_(model_of_file.table.weight)
    nn.init.normal_(model_of_file.table.weight[-5:])
    nn.init.normal_(model_of_file.layer.weight)
    nn.init.zeros_(model_of_file.layer.bias)
    bs.quantize_(model_of_file, bs.Recipe("int8_channel", skip=["table"]))
    tokens = torch.tensor([[0, 539_995, 539_997, 539_999]])
    bs.export.onnx(model_of_file, tmp_path / "m.onnx", tokens)
    assert (tmp_path / "m.onnx").stat().st_size < 10_000
    assert (tmp_path / "m.onnx.data").stat().st_size > 2**31
    expected = model_of_file(tokens).detach().numpy()
    del model_of_file
    [y] = session(str(tmp_path / "m.onnx")).run(None, {"tokens": tokens.numpy()})
    assert np.abs(y - expected).max() <= 1e-5 * np.abs(expected).max()


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
