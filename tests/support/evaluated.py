# SPDX-License-Identifier: BSD-3-Clause
"""A small decoder, its quantized copy and batches, for what evaluates."""

import copy

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import blockscale as bs


def llama(seed=0):
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=99, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def batches(count=3, rows=2, length=16):
    generator = torch.Generator().manual_seed(7)
    return [
        {"input_ids": torch.randint(0, 99, (rows, length), generator=generator)}
        for _ in range(count)
    ]


def quantized_copy(model, weight):
    changed = copy.deepcopy(model)
    bs.quantize_(changed, bs.Recipe(weight=weight))
    return changed
