# SPDX-License-Identifier: BSD-3-Clause
"""Our decoders in onnxruntime-genai: its generator chooses the tokens that torch chooses."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import blockscale as bs
from tests.clients import programs, results

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore")]
CLIENT = "onnxruntime-genai"
SCRIPT = """
import json, sys
import numpy as np, onnxruntime_genai as genai
ids = np.array(json.loads(sys.argv[2]), np.int32)
model = genai.Model(sys.argv[1])
parameters = genai.GeneratorParams(model)
parameters.set_search_options(max_length=ids.shape[1] + 64, batch_size=len(ids), do_sample=False)
generator = genai.Generator(model, parameters)
generator.append_tokens(ids)
while not generator.is_done():
    generator.generate_next_token()
print(json.dumps([generator.get_sequence(i).tolist() for i in range(len(ids))]))
"""


@pytest.mark.loads("ONNX decoders with a cache, in codes")
@pytest.mark.parametrize("weights", ["int4:group32:fp32", "mxfp4"])
def test_tokens_are_those_of_torch(weights: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=96, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, intermediate_size=96, eos_token_id=95,
    )  # fmt: skip
    model: Any = LlamaForCausalLM(config).eval()
    bs.quantize_(model, weights)
    bs.export.onnx(model, tmp_path / "model.onnx", cache=True)
    ids = torch.randint(0, 90, (2, 5))
    expected = model.generate(ids, max_new_tokens=64, do_sample=False)
    found = programs.run("light", SCRIPT, tmp_path, ids.tolist())
    for row, tokens in zip(found, expected.tolist(), strict=True):
        results.equal([row], [tokens[: len(row)]])
        assert len(row) == 69 or row[-1] == 95
