"""torch's translation with pieces in the place of marks: names, opsets, what is left out."""

import onnx
import pytest
import torch
from torch import nn

from blockscale.export.onnx import write
from blockscale.export.onnx.pieces import Weight, placed
from tests.export.onnx.running import array
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
    made = write.translated(program(lambda y: {"states": y, "more": (y + 1, y * 2), "x": y - 1}))
    coded, _ = stored("e3m2:group8:e8m0")
    piece = Weight("layer.weight", coded, (("permute", (1, 0)),), torch.float32)
    needs = write.filled(made, [piece]).needs
    write.stamp(made, needs.opset)
    return made


def test_the_file_is_a_valid_one(model):
    onnx.checker.check_model(model, full_check=True)
    assert [(each.domain, each.version) for each in model.opset_import] == [("", 24)]
    assert not model.functions  # OpenVINO reads none
    assert model.ir_version == 12


def test_codes_take_the_place_of_the_mark(model):
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    named = {name for name in tensors if "scalar_tensor" not in name}  # torch's own constants
    assert named == {"norm.weight", "norm.bias", "layer.weight.codes", "layer.weight.scale"}
    assert array(tensors["layer.weight.codes"]).shape == (12, 30)
    assert tensors["layer.weight.codes"].doc_string == "e3m2:group8:e8m0/floor"
    assert not [node for node in model.graph.node if node.op_type == "Placed"]
    told = {value.name for value in model.graph.value_info}
    there = {name for node in model.graph.node for name in node.output}
    assert told <= there | set(tensors)


def test_results_have_the_names_that_the_model_gives(model):
    """But for one that an input has."""
    names = [value.name for value in model.graph.output]
    assert names == ["states", "more_0", "more_1", "output_x"]
    assert [v.name for v in write.translated(program()).graph.output] == ["output"]


class Tokens(nn.Module):
    """Takes tokens as models of transformers do."""

    def forward(self, input_ids, attention_mask):
        x = input_ids * attention_mask
        return {"logits": x[..., None].float(), "flat": x.flatten()}


def sizes(model):
    values = (*model.graph.input, *model.graph.output)
    return [[d.dim_param or d.dim_value for d in v.type.tensor_type.shape.dim] for v in values]


def test_free_sizes_have_the_names_that_programs_look_for(model):
    ids = torch.ones(2, 5, dtype=torch.int64)
    free = {0: torch.export.Dim("rows"), 1: torch.export.Dim("tokens")}
    made = torch.export.export(
        Tokens(), (ids, ids), dynamic_shapes={"input_ids": free, "attention_mask": free}
    )
    found = sizes(write.translated(made))
    assert found[:3] == [["batch", "sequence"]] * 2 + [["batch", "sequence", 1]]
    assert found[3] in (["batch*sequence"], ["sequence*batch"])
    assert sizes(model)[:2] == [[2, 40], [2, 12]]


def test_what_torch_cannot_translate():
    made = program(lambda y: torch.linalg.qr(y).R)
    with pytest.raises(ValueError, match=r"torch\.onnx, which translates .*linalg_qr"):
        write.translated(made)
