# SPDX-License-Identifier: BSD-3-Clause
"""Tiny decoders whose outputs are float64 throughout, and what to give them."""

from typing import Any

import torch
import transformers as hf
from torch import nn

SIZES = {
    "vocab_size": 99, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "max_position_embeddings": 64, "use_cache": False,
    "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
GROUPED = SIZES | {"num_key_value_heads": 2}
GPT2 = {"vocab_size": 99, "n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 64,
        "use_cache": False, "bos_token_id": 0, "eos_token_id": 0}  # fmt: skip
OPT = {k: v for k, v in SIZES.items() if k != "intermediate_size"}
OPT |= {"ffn_dim": 64, "word_embed_proj_dim": 48}
DECODERS = {
    "llama": lambda: hf.LlamaForCausalLM(
        hf.LlamaConfig(**GROUPED, attention_bias=True, mlp_bias=True, tie_word_embeddings=True)
    ),
    "mistral": lambda: hf.MistralForCausalLM(hf.MistralConfig(**GROUPED)),
    "qwen3": lambda: hf.Qwen3ForCausalLM(hf.Qwen3Config(**GROUPED, head_dim=16)),
    "gemma": lambda: hf.GemmaForCausalLM(hf.GemmaConfig(**GROUPED, head_dim=16)),
    "phi3": lambda: hf.Phi3ForCausalLM(hf.Phi3Config(**GROUPED, pad_token_id=0)),
    "mixtral": lambda: hf.MixtralForCausalLM(hf.MixtralConfig(**GROUPED, num_local_experts=4)),
    "gpt2": lambda: hf.GPT2LMHeadModel(hf.GPT2Config(**GPT2)),
    "opt": lambda: hf.OPTForCausalLM(hf.OPTConfig(**OPT)),
    "neox": lambda: hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**SIZES)),
}
REFUSED = {
    "gemma2": lambda: hf.Gemma2ForCausalLM(hf.Gemma2Config(**GROUPED, head_dim=16)),
    "olmo2": lambda: hf.Olmo2ForCausalLM(hf.Olmo2Config(**GROUPED, pad_token_id=0)),
    "bert": lambda: hf.BertForMaskedLM(hf.BertConfig(**SIZES)),
    "no head": lambda: hf.LlamaModel(hf.LlamaConfig(**GROUPED)),
}


def decoder(name: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    """A model with large gains and biases, so that a forgotten one shows."""
    torch.manual_seed(0)
    model: nn.Module = (DECODERS | REFUSED)[name]().eval().to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.3 * torch.randn_like(parameter)
            else:
                parameter *= 5
    return model


def batches(count: int = 2) -> list[dict[str, Any]]:
    generator = torch.Generator().manual_seed(1)
    return [{"input_ids": torch.randint(0, 99, (2, 17), generator=generator)} for _ in range(count)]
