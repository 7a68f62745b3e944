# SPDX-License-Identifier: BSD-3-Clause
"""A model that reads the keys and values of earlier tokens from codes.

Tokens go through in steps: attention reads what lies before a step as the cache's format has it,
and the step itself in float, as `blockscale.integrations.transformers.QuantizedCache` does while it
generates.
"""

from typing import Any

import torch
from torch import Tensor, nn

STEP = 32  # tokens; the cache quantizes as many together


def quantized_cache(model: nn.Module, spelling: str) -> Any:
    """An empty cache: "FORMAT", or "FORMAT keys per channel", without a window in float."""
    from blockscale.integrations.transformers import QuantizedCache

    fmt, _, per = spelling.partition(" keys per ")
    return QuantizedCache(model.config, fmt, keys_per=per or "token", window=0)


def logits_through(model: nn.Module, batch: Tensor, cache: Any) -> Tensor:
    """Tokens [sequences, length] -> logits [sequences, length, vocabulary], step by step."""
    found = [
        model(input_ids=step, past_key_values=cache, use_cache=True).logits
        for step in batch.split(STEP, dim=1)
    ]
    return torch.cat(found, dim=1)


@torch.inference_mode()
def cache_bits(model: Any, spelling: str, tokens: Tensor) -> float:
    """Bits of codes, scales and zero points for each key and value of one batch of tokens
    [sequences, length], the length a multiple of STEP."""
    cache, config = quantized_cache(model, spelling), model.config
    logits_through(model, tokens, cache)
    heads, size = config.num_key_value_heads, config.hidden_size // config.num_attention_heads
    return 8 * cache.nbytes / (2 * config.num_hidden_layers * heads * size * tokens.numel())
