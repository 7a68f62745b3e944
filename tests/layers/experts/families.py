# SPDX-License-Identifier: BSD-3-Clause
"""Tiny models with experts, as transformers builds them from their configs."""

import copy
from typing import Any

import torch
from torch import nn

from blockscale.layers.layer import QLayer
from blockscale.layers.store import all_held

COMMON = {
    "vocab_size": 96, "hidden_size": 64, "intermediate_size": 32, "moe_intermediate_size": 32,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "max_position_embeddings": 64, "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4,
    "num_experts_per_tok": 2, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2,
}  # fmt: skip
_MLA = {
    "q_lora_rank": 32, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
    "v_head_dim": 16, "head_dim": 8, "num_key_value_heads": 4, "first_k_dense_replace": 0,
    "n_group": 1, "topk_group": 1, "n_shared_experts": 1,
}  # fmt: skip
_DBRX = {
    "d_model": 64, "n_heads": 4, "n_layers": 1, "max_seq_len": 64, "vocab_size": 96,
    "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
    "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 64},
    "pad_token_id": 0, "tie_word_embeddings": False,
}  # fmt: skip
_JAMBA = {
    "attn_layer_period": 1, "attn_layer_offset": 0, "expert_layer_period": 1,
    "expert_layer_offset": 0, "use_mamba_kernels": False,
}  # fmt: skip
_LLAMA4 = {"intermediate_size_mlp": 32, "interleave_moe_layer_step": 1}

# {model type: settings beside COMMON; the layout of its stacks; parts of the first one}
FAMILIES: dict[str, tuple[dict[str, Any], str, int]] = {
    "mixtral": ({}, "plain", 2),
    "qwen2_moe": ({"shared_expert_intermediate_size": 32}, "plain", 2),
    "qwen3_moe": ({"decoder_sparse_step": 1}, "plain", 2),
    "gpt_oss": ({}, "transposed", 1),
    "deepseek_v2": (_MLA, "plain", 2),
    "deepseek_v3": (_MLA, "plain", 2),
    "glm4_moe": ({"first_k_dense_replace": 0, "n_group": 1, "topk_group": 1}, "plain", 2),
    "llama4_text": (_LLAMA4, "transposed", 1),
    "olmoe": ({}, "plain", 2),
    "granitemoe": ({}, "plain", 1),
    "jamba": (_JAMBA, "plain", 2),
    "jetmoe": ({"intermediate_size": 64}, "plain", 1),  # 32 columns would be a kernel's, in files
    "dbrx": (_DBRX, "plain", 4),
}
FORMATS = (
    "mxfp4", "nvfp4", "int8_channel", "int4:group32:fp32", "nf4:group64:fp32", "int8:tensor:fp32",
)  # fmt: skip


def build(kind: str, **settings: Any) -> Any:
    """A model of one layer, with random weights."""
    import transformers as hf

    own = FAMILIES[kind][0]
    config = hf.AutoConfig.for_model(kind, **(own if kind == "dbrx" else COMMON | own | settings))
    torch.manual_seed(0)
    model = hf.AutoModelForCausalLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 0.1)
    return model


def twin(model: nn.Module, quantized: nn.Module) -> nn.Module:
    """A copy of the float model with the quantized one's weights, dequantized."""
    other = copy.deepcopy(model)
    for name, weight in all_held(quantized):
        parameter = other.get_parameter(name)
        parameter.data = weight.dequantize()  # as it lies: stacks [E, k, n] stay views
    for name, layer in quantized.named_modules():
        if isinstance(layer, QLayer):
            with torch.no_grad():
                other.get_submodule(name).weight.copy_(layer.dequantize_weight())  # type: ignore[operator, union-attr]
    return other


def logits(model: Any, tokens: int = 9) -> torch.Tensor:
    """Of one row of tokens."""
    with torch.no_grad():
        result: torch.Tensor = model(torch.arange(tokens).reshape(1, -1) % 96).logits
    return result
