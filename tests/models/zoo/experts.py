# SPDX-License-Identifier: BSD-3-Clause
"""Mixtures of experts of transformers: matrices fused to stacks of three dimensions."""

from tests.models.zoo.hub import LLAMA, hub

_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
_LOCAL = LLAMA | {"num_local_experts": 4, "num_experts_per_tok": 2}
_DEEPSEEK = {
    "moe_intermediate_size": 64,
    "num_key_value_heads": 4,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "q_lora_rank": 32,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 16,
    "first_k_dense_replace": 1,
}
_LLAMA4 = {
    "intermediate_size": 64,
    "intermediate_size_mlp": 128,
    "head_dim": 16,
    "num_experts_per_tok": 1,
    "interleave_moe_layer_step": 2,
}

hub("mixtral", "MixtralForCausalLM", "MixtralConfig", _LOCAL)
hub("qwen2_moe", "Qwen2MoeForCausalLM", "Qwen2MoeConfig",
    LLAMA | _EXPERTS | {"shared_expert_intermediate_size": 64})  # fmt: skip
hub("qwen3_moe", "Qwen3MoeForCausalLM", "Qwen3MoeConfig", LLAMA | _EXPERTS | {"head_dim": 16})
hub("gpt_oss", "GptOssForCausalLM", "GptOssConfig", _LOCAL | {"head_dim": 16, "sliding_window": 8})
hub("deepseek_v3", "DeepseekV3ForCausalLM", "DeepseekV3Config", LLAMA | _DEEPSEEK)
hub("olmoe", "OlmoeForCausalLM", "OlmoeConfig", LLAMA | _EXPERTS)
hub("granitemoe", "GraniteMoeForCausalLM", "GraniteMoeConfig", _LOCAL)
hub("llama4", "Llama4ForCausalLM", "Llama4TextConfig", _LOCAL | _LLAMA4)
hub("jamba", "JambaForCausalLM", "JambaConfig", LLAMA | _EXPERTS | {
    "attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2,
    "expert_layer_offset": 1, "use_mamba_kernels": False, "mamba_d_state": 8, "mamba_dt_rank": 4,
})  # fmt: skip
