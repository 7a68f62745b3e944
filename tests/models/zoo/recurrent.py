# SPDX-License-Identifier: BSD-3-Clause
"""Language models of transformers with a state instead of, or beside, attention."""

from tests.models.zoo.hub import LLAMA, SMALL, hub
from tests.models.zoo.inputs import WORDS

_STATE = {"vocab_size": WORDS, "hidden_size": 64, "state_size": 8, "num_hidden_layers": 2}

hub("mamba", "MambaForCausalLM", "MambaConfig", _STATE | {"time_step_rank": 4})
hub(
    "mamba2",
    "Mamba2ForCausalLM",
    "Mamba2Config",
    _STATE | {"num_heads": 8, "head_dim": 16, "n_groups": 1, "chunk_size": 8},
)
hub(
    "lfm2",
    "Lfm2ForCausalLM",
    "Lfm2Config",
    LLAMA | {"layer_types": ["conv", "full_attention"], "block_multiple_of": 32},
)
hub(
    "rwkv",
    "RwkvForCausalLM",
    "RwkvConfig",
    {"vocab_size": WORDS, "hidden_size": 64, "num_hidden_layers": 2, "context_length": 64},
)
hub("recurrent_gemma", "RecurrentGemmaForCausalLM", "RecurrentGemmaConfig", LLAMA | {
    "lru_width": 64, "attention_window_size": 8, "block_types": ["recurrent", "attention"],
})  # fmt: skip
hub("falcon_mamba", "FalconMambaForCausalLM", "FalconMambaConfig", _STATE | {"time_step_rank": 4})
hub("qwen3_next", "Qwen3NextForCausalLM", "Qwen3NextConfig", SMALL | {
    "num_key_value_heads": 2, "head_dim": 16,
    "linear_num_key_heads": 2, "linear_num_value_heads": 4,
    "linear_key_head_dim": 16, "linear_value_head_dim": 16, "num_experts": 4,
    "num_experts_per_tok": 2, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64,
    "layer_types": ["linear_attention", "full_attention"],
})  # fmt: skip
