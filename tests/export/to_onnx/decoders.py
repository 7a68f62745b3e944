# SPDX-License-Identifier: BSD-3-Clause
"""Small language models of each kind, and onnxruntime's session of a file."""

from pathlib import Path
from typing import Any

import onnxruntime
import torch
import transformers

SMALL = {
    "vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "intermediate_size": 96, "head_dim": 16, "pad_token_id": 0,
    "max_position_embeddings": 128,
}  # fmt: skip
LAYERS = ["sliding_attention", "full_attention"]
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"tie_word_embeddings": True}),
    "mistral": ("Mistral", {"sliding_window": 8}),
    "gpt2": ("GPT2", {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}),
    "bloom": ("Bloom", {"n_layer": 2, "n_head": 4}),  # counts positions by the mask
    "gemma3": (
        "Gemma3",
        {"sliding_window": 8, "layer_types": LAYERS, "tie_word_embeddings": False},
    ),
}  # fmt: skip


def model_of(kind: str, **options: Any) -> Any:
    name, own = KINDS[kind]
    torch.manual_seed(0)
    config_name = "Gemma3TextConfig" if name == "Gemma3" else f"{name}Config"
    config = getattr(transformers, config_name)(**{**SMALL, **own, **options})
    kinds = [f"{name}ForCausalLM", f"{name}LMHeadModel"]
    model = next(getattr(transformers, each) for each in kinds if hasattr(transformers, each))
    made = model(config).eval()
    for name, each in made.named_parameters():  # so that tokens differ, and biases are something
        if "norm" not in name and "ln_" not in name:
            torch.nn.init.normal_(each, std=0.02 if "embed" in name or "wte" in name else 0.3)
    return made


def session(path: Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "0")
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
