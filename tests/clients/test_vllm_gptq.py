# SPDX-License-Identifier: BSD-3-Clause
"""GPTQ directories in vLLM: symmetric ones are served, others are refused as their notes say."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import blockscale as bs
from tests.clients import results
from tests.clients.vllm import divergence, expected_logprobs, prompt_logprobs

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore")]
CLIENT = "vLLM"
VOCABULARY = 96
PROMPTS = [[(7 * i + 3 * j) % VOCABULARY for j in range(24)] for i in range(2)]
FLOAT = ["lm_head", "model.embed_tokens"]


def llama() -> Any:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        model.lm_head.weight *= 8
    return model


def converted(fmt: str, folder: Path) -> tuple[Any, Any]:
    """The quantized model here, and its directory folder/out as GPTQ."""
    recipe = bs.Recipe(fmt, skip=FLOAT)
    llama().save_pretrained(folder / "float")
    bs.quantize_directory(folder / "float", folder / "ours", recipe)
    done = bs.export.convert_checkpoint(folder / "ours", folder / "out", "gptq")
    model = llama()
    bs.quantize_(model, recipe)
    return model, done


@pytest.mark.loads("GPTQ, symmetric")
def test_symmetric_models_are_served(tmp_path: Path) -> None:
    """Its kernels for GPTQ have no float32."""
    model, done = converted("int4:group128:fp16:full", tmp_path)
    assert not done.notes
    theirs = prompt_logprobs(tmp_path / "out", PROMPTS, VOCABULARY, "float16")
    kl = divergence(expected_logprobs(model, PROMPTS), theirs)
    results.close(kl, 1e-4)


@pytest.mark.loads("GPTQ with zero points")
def test_zero_points_are_refused(tmp_path: Path) -> None:
    """Should vLLM take them one day, the note of the writer has to go."""
    _, done = converted("uint4:group128:fp16:asym", tmp_path)
    assert "vLLM (0.32.0) supports only symmetric GPTQ" in done.notes[0]
    with pytest.raises(AssertionError, match="Unsupported quantization config: bits=4, sym=False"):
        prompt_logprobs(tmp_path / "out", PROMPTS, VOCABULARY, "float16")
    results.refused()
