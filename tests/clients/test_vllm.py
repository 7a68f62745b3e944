# SPDX-License-Identifier: BSD-3-Clause
"""Directories of ours in vLLM: what it computes is what the model here computes."""

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

import blockscale as bs
from tests.clients import results
from tests.clients.vllm import divergence, expected_logprobs, prompt_logprobs

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore")]
CLIENT = "vLLM"
VOCABULARY = 96
PROMPTS = [[(7 * i + 3 * j) % VOCABULARY for j in range(24)] for i in range(2)]
FLOAT = ["lm_head", "model.embed_tokens"]


def llama() -> Any:
    """Of several widths of weights, so that outer scales differ where they are not shared."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=128, intermediate_size=256, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for layer in model.model.layers:
            for name, size in (("q", 12.0), ("k", 3.0), ("v", 6.0), ("o", 4.0)):
                layer.self_attn.get_submodule(f"{name}_proj").weight *= size
            layer.mlp.gate_proj.weight *= 8
        model.lm_head.weight *= 8
    return model


def check(path: Path, model: Any, most: float, dtype: str = "float32") -> float:
    theirs = prompt_logprobs(path, PROMPTS, VOCABULARY, dtype)
    ours = expected_logprobs(model, PROMPTS)
    kl = divergence(ours, theirs)
    results.close(kl, most)
    return kl


@pytest.mark.loads("compressed-tensors, weights alone")
@pytest.mark.parametrize(("fmt", "dtype", "most"), [
    ("nvfp4", "float32", 1e-4),
    ("int4", "float16", 1e-2),  # its kernel on CPUs takes halves
])  # fmt: skip
def test_weights_alone(fmt: str, dtype: str, most: float, tmp_path: Path) -> None:
    model = llama()
    bs.quantize_(model, bs.Recipe(fmt, skip=FLOAT))
    bs.export.compressed_tensors(model, tmp_path / "out")
    check(tmp_path / "out", model, most, dtype)


@pytest.mark.loads("compressed-tensors by `blockscale convert`, NVFP4")
def test_a_directory_that_was_converted(tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path / "float")
    recipe = bs.Recipe("e2m1:group16:e4m3/inv", skip=FLOAT)
    bs.quantize_directory(tmp_path / "float", tmp_path / "ours", recipe)
    bs.export.convert_checkpoint(tmp_path / "ours", tmp_path / "out", "compressed-tensors")
    model = llama()
    bs.quantize_(model, recipe)
    check(tmp_path / "out", model, 1e-4)


@pytest.mark.loads("compressed-tensors whose outer scales differ (we refuse): nonsense")
def test_outer_scales_that_differ_are_nonsense_there(tmp_path: Path) -> None:
    """Why such a directory is refused: written past the refusal, it means other numbers there."""
    exporter = importlib.import_module("blockscale.export.to_compressed_tensors")
    model = llama()
    bs.quantize_(model, bs.Recipe("nvfp4", skip=FLOAT, fused=False))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(exporter, "disagreements", lambda *_: [])
        patched.setattr(exporter, "sharing", lambda *_: {})
        exporter.compressed_tensors(model, tmp_path / "out")
    theirs = prompt_logprobs(tmp_path / "out", PROMPTS, VOCABULARY)
    assert divergence(expected_logprobs(model, PROMPTS), theirs) > 1e-2


@pytest.mark.loads("compressed-tensors, weights and inputs in NVFP4")
def test_weights_and_inputs_in_nvfp4(tmp_path: Path) -> None:
    """Inputs are rounded to 4 bits by vLLM's own reference, under the outer scale of the file; a
    code that differs at a tie changes what follows, so that the whole is near and not equal."""
    model, batches = llama(), [{"input_ids": torch.tensor(PROMPTS)}]
    exact = expected_logprobs(model, PROMPTS)
    recipe = bs.Recipe("nvfp4", input="e2m1:group16:e4m3/given", skip=FLOAT)
    bs.calibrate(model, batches, recipe, progress=False)
    bs.export.compressed_tensors(model, tmp_path / "out")
    cost = divergence(exact, expected_logprobs(model, PROMPTS))
    kl = check(tmp_path / "out", model, cost / 3)
    print(f"KL to ours {kl:.2g}, ours to float {cost:.2g}")
