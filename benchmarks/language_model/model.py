# SPDX-License-Identifier: BSD-3-Clause
"""The language model that accuracy is measured on: a small Llama, and how it is read back."""

import pathlib
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

LENGTH = 512  # tokens of a sequence
FLOAT = ("lm_head", "model.embed_tokens")  # what a recipe skips


def config(**changes: Any) -> LlamaConfig:
    """15.7 million parameters: 8 layers of 384."""
    sizes = {
        "vocab_size": 4096,
        "hidden_size": 384,
        "intermediate_size": 1024,
        "num_hidden_layers": 8,
        "num_attention_heads": 6,
        "num_key_value_heads": 6,
        "max_position_embeddings": LENGTH,
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    return LlamaConfig(**{**sizes, **changes})


@dataclass(frozen=True)
class Trained:
    """A model in float32, in evaluation mode, with tokens [sequences, length] in int64 of text that
    it was not trained on: `train` to calibrate with, `held` and `held2` to measure with."""

    model: nn.Module
    train: Tensor
    held: Tensor
    held2: Tensor


def load(folder: str | pathlib.Path) -> Trained:
    """What benchmarks.language_model.train wrote. Raises OSError for what is not there."""
    folder = pathlib.Path(folder)
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    parts = ("train", "held", "held2")
    tokens = [torch.load(folder / f"{part}.pt").to(torch.int64) for part in parts]
    return Trained(model, *tokens)
