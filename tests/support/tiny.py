# SPDX-License-Identifier: BSD-3-Clause
"""Tiny random models of transformers, with a tokenizer, as directories that a converter takes."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

VOCABULARY = 288
SIZES = {
    "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
    "bos_token_id": 256, "eos_token_id": 257, "pad_token_id": None,
}  # fmt: skip
HEAD = SIZES | {"head_dim": 32}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
GEMMA = HEAD | {"query_pre_attn_scalar": 32, "sliding_window": 16, "tie_word_embeddings": True}
THETAS = {
    "rope_parameters": {
        "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5},
        "sliding_attention": {"rope_type": "default", "rope_theta": 700.0},
    }
}
KINDS: dict[str, dict[str, Any]] = {  # {model_type: the settings of its config}
    "llama": SIZES | {"attention_bias": True, "mlp_bias": True},
    "mistral": SIZES | {"sliding_window": None},
    "qwen2": SIZES,
    "qwen3": HEAD,
    "mixtral": SIZES | {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": SIZES | EXPERTS | {"num_experts": 4, "shared_expert_intermediate_size": 64},
    "qwen3_moe": HEAD | EXPERTS | {"num_experts": 4, "norm_topk_prob": True},
    "gemma2": GEMMA | {
        "num_hidden_layers": 3, "attn_logit_softcapping": 20.0, "final_logit_softcapping": 10.0,
    },
    "gemma3_text": GEMMA | {"num_hidden_layers": 7, "final_logit_softcapping": 20.0, **THETAS},
    "phi3": SIZES | {
        "pad_token_id": 0,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5
        },
    },
    "granite": SIZES | {
        "attention_multiplier": 0.3, "embedding_multiplier": 3.0, "residual_multiplier": 0.4,
        "logits_scaling": 2.0,
    },
    "gpt2": {
        "vocab_size": VOCABULARY, "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128,
        "bos_token_id": 256, "eos_token_id": 257,
    },
}  # fmt: skip


def model(kind: str, seed: int = 0, **more: Any) -> Any:
    """A model with random weights, none of them 0 or 1: norms and biases count, too."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(seed)
    made = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **(KINDS[kind] | more)))
    for name, parameter in made.named_parameters():
        spread = 0.3 if parameter.ndim == 1 else 0.12
        parameter.data += torch.randn_like(parameter) * spread * ("embed" not in name)
    return made.eval()


def write(folder: Path, kind: str, seed: int = 0, **more: Any) -> Any:
    """Save one as a directory with a tokenizer of bytes; returns the model."""
    made = model(kind, seed, **more)
    made.save_pretrained(folder)
    tokenizer(folder)
    return made


def tokenizer(folder: Path) -> None:
    """A byte-level BPE of 256 bytes, two special tokens and a merge."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {letter: i for i, letter in enumerate(letters)} | {"<s>": 256, "</s>": 257, "Ġt": 258}
    made = Tokenizer(models.BPE(words, [("Ġ", "t")]))
    made.add_special_tokens(["<s>", "</s>"])
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.save(str(folder / "tokenizer.json"))
    told = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(told))


def tokens(count: int, seed: int = 1) -> list[int]:
    """Random tokens of bytes."""
    return torch.randint(0, 256, (count,), generator=torch.manual_seed(seed)).tolist()


def logits(made: Any, ids: list[int]) -> Tensor:
    """float32 [tokens, vocabulary] of transformers."""
    with torch.no_grad():
        return made(torch.tensor([ids])).logits[0].float()
