# SPDX-License-Identifier: BSD-3-Clause
"""Small models of transformers that have plans, whose heads and features two processes share."""

from typing import Any

import torch
from torch import Tensor


def llama() -> Any:
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=96, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def moe() -> Any:
    import transformers

    config = transformers.Qwen3MoeConfig(
        vocab_size=96, hidden_size=64, intermediate_size=128, moe_intermediate_size=64,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        num_experts=4, num_experts_per_tok=2, max_position_embeddings=32,
    )  # fmt: skip
    return transformers.Qwen3MoeForCausalLM(config)


def ids() -> Tensor:
    return torch.randint(0, 96, (2, 8), generator=torch.Generator().manual_seed(2))
