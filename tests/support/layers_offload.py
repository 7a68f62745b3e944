# SPDX-License-Identifier: BSD-3-Clause
"""What the tests of several files share with
tests/layers/test_offload.py: `held_bytes`, `llama`, `X`.
"""

from typing import Any

import torch
import transformers as hf
from torch import nn

X = torch.arange(20).reshape(2, 10)


def llama(**more: Any) -> nn.Module:
    torch.manual_seed(0)
    config = hf.LlamaConfig(
        hidden_size=64, num_hidden_layers=4, num_attention_heads=2, num_key_value_heads=1,
        vocab_size=64, intermediate_size=64, tie_word_embeddings=True, **more,
    )  # fmt: skip
    return hf.LlamaForCausalLM(config).eval()


def held_bytes(model: nn.Module) -> int:
    """Bytes of all tensors that the model has in memory, each counted once."""
    tensors = {id(t): t for t in (*model.parameters(), *model.buffers())}.values()
    return sum(t.nbytes for t in tensors if t.device.type != "meta")
